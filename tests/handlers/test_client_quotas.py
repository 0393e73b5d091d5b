"""DescribeClientQuotas and AlterClientQuotas over a socket.

Covers: kafkawire.handlers.describe_client_quotas, kafkawire.handlers.alter_client_quotas,
kafkawire.security.quotas.service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.messages import alter_client_quotas as alter
from kafkawire.messages import describe_client_quotas as describe
from tests.kit.client import Client
from tests.kit.quotas import USER, set_quotas
from tests.kit.server import port_of, running

VERSIONS = (0, 1)
CLIENT = (("client-id", None), ("user", "u"))
ADDRESS = (("ip", "10.0.0.1"),)


async def ask(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> Any:
    wanted = [describe.ComponentData(*each) for each in components]
    return await client.call(describe.DescribeClientQuotasRequest(wanted, strict), version)


def found(answer: Any) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    assert (answer.error_code, answer.error_message) == (0, "")
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_quotas_are_set_described_and_removed(client: Client, version: int) -> None:
    await set_quotas(client, USER, {"producer_byte_rate": 1e6, "request_percentage": 12.5})
    await set_quotas(client, CLIENT, {"consumer_byte_rate": 5})
    await set_quotas(client, ADDRESS, {"connection_creation_rate": 3})
    everything = found(await ask(client, version=version))
    assert everything == {
        USER: {"producer_byte_rate": 1e6, "request_percentage": 12.5},
        CLIENT: {"consumer_byte_rate": 5.0},
        ADDRESS: {"connection_creation_rate": 3.0},
    }
    of_users = found(await ask(client, ("user", 2, None), version=version))
    assert of_users.keys() == {USER, CLIENT}
    assert found(await ask(client, ("user", 2, None), strict=True)).keys() == {USER}
    assert found(await ask(client, ("client-id", 1, None))).keys() == {CLIENT}
    assert found(await ask(client, ("ip", 0, "10.0.0.1"))).keys() == {ADDRESS}
    assert found(await ask(client, ("ip", 0, "10.0.0.2"))) == {}
    await set_quotas(client, USER, {"producer_byte_rate": None, "request_percentage": None})
    await set_quotas(client, USER, {"producer_byte_rate": None})
    assert found(await ask(client)).keys() == {CLIENT, ADDRESS}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", 2, None), ("client-id", 1, None)], ErrorCode.NONE),
        ([("user", 0, "a"), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 2, "a")], ErrorCode.INVALID_REQUEST),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("tenant", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_filters_are_checked(
    client: Client, version: int, components: list[Any], code: ErrorCode
) -> None:
    answer = await ask(client, *components, version=version)
    assert answer.error_code == code
    assert (answer.entries == []) is (code is ErrorCode.NONE)
    assert (answer.entries is None) is (code is not ErrorCode.NONE)
    assert bool(answer.error_message) is (code is not ErrorCode.NONE)


async def test_valid_entries_apply_although_others_fail(client: Client) -> None:
    def entry(name: str, key: str, value: float) -> alter.EntryData:
        return alter.EntryData([describe.EntityData("user", name)], [alter.OpData(key, value)])

    asked = [
        entry("good", "producer_byte_rate", 1),
        entry("bad", "x", 1),
        entry("good", "producer_byte_rate", 2),
        entry("fine", "consumer_byte_rate", 3),
    ]
    answer = await client.call(alter.AlterClientQuotasRequest(asked), 1)
    codes = {row.entity[0].entity_name: row.error_code for row in answer.entries}
    invalid = ErrorCode.INVALID_REQUEST
    assert codes == {"good": invalid, "bad": invalid, "fine": 0}
    assert found(await ask(client)) == {
        (("user", "good"),): {"producer_byte_rate": 1.0},
        (("user", "fine"),): {"consumer_byte_rate": 3.0},
    }


async def test_validation_sets_nothing(client: Client) -> None:
    entry = alter.EntryData(
        [describe.EntityData("user", "a")], [alter.OpData("producer_byte_rate", 5)]
    )
    answer = await client.call(alter.AlterClientQuotasRequest([entry], validate_only=True), 1)
    assert [row.error_code for row in answer.entries] == [0]
    assert found(await ask(client)) == {}


async def test_an_entry_of_many_operations_is_refused(client: Client) -> None:
    ops = [alter.OpData(f"key-{number}", 1) for number in range(10_000)]
    entry = alter.EntryData([describe.EntityData("user", "a")], ops)
    answer = await client.call(alter.AlterClientQuotasRequest([entry]), 1)
    assert [row.error_code for row in answer.entries] == [ErrorCode.INVALID_REQUEST]


async def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    for expected in ({}, {USER: {"producer_byte_rate": 7.0}}):
        async with running(tmp_path / "data") as server:
            client = await Client.connect(port_of(server))
            assert found(await ask(client)) == expected
            await set_quotas(client, USER, {"producer_byte_rate": 7})
            await client.close()
