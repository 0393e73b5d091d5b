"""Requests for quotas to Apache Kafka and to ours: responses are compared, with their texts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from kafkawire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
)
from tests.java.twins import KEYS, Twins

Names = list[tuple[str, str | None]]
Ops = list[tuple[str, float | None]]
RATE, CONNECTIONS = "producer_byte_rate", "connection_creation_rate"
SET: list[tuple[Names, Ops]] = [
    ([("user", "same-a")], [(RATE, 1e12), ("request_percentage", 1234.5)]),
    ([("user", "same-a"), ("client-id", None)], [("consumer_byte_rate", 1e12)]),
    ([("user", "same-b"), ("client-id", "same-c")], [("controller_mutation_rate", 1e6)]),
    ([("client-id", "same-c")], [(RATE, 2.0**63)]),
    ([("ip", "10.11.12.13")], [(CONNECTIONS, 2.0**31 - 1)]),
]
"""Quotas of clients that no other test has: the node of Apache Kafka is shared."""


def entry(names: Names, ops: Ops) -> EntryData:
    return EntryData(
        [EntityData(*name) for name in names],
        [OpData(key, value or 0.0, value is None) for key, value in ops],
    )


def answered(answer: Any) -> Any:
    """Entities of a response with their results; neither side orders them."""
    rows = [] if answer.entries is None else answer.entries
    return answer.entries is None, sorted(
        (
            sorted((part.entity_type, part.entity_name or "the default") for part in row.entity),
            sorted((value.key, value.value) for value in getattr(row, "values", ())),
            (getattr(row, "error_code", 0), getattr(row, "error_message", None)),
        )
        for row in rows
    )


def ask(twins: Twins, api: str, request: object, version: int) -> tuple[Any, Any]:
    both = [each.request(KEYS[api], request, at_most=version) for each in twins.both]
    kafka, ours = (
        (getattr(answer, "error_code", 0), getattr(answer, "error_message", None),
         *answered(answer)) for answer in both
    )  # fmt: skip
    return kafka, ours


def described(connection: ClientConnection) -> Any:
    request = DescribeClientQuotasRequest([])
    return answered(connection.request(KEYS["DescribeClientQuotas"], request))


@pytest.fixture(scope="module")
def quotas(twins: Twins) -> Iterator[Twins]:
    """Both brokers with the quotas of SET, removed at the end."""
    for connection in twins.both:
        request = AlterClientQuotasRequest([entry(*each) for each in SET])
        answer = connection.request(KEYS["AlterClientQuotas"], request)
        assert {row.error_code for row in answer.entries} == {0}
    end = time.monotonic() + 60
    while described(twins.both[0]) != described(twins.both[1]):  # Kafka applies them later
        assert time.monotonic() < end
        time.sleep(0.05)
    yield twins
    gone = [entry(names, [(key, None) for key, _ in ops]) for names, ops in SET]
    for connection in twins.both:
        connection.request(KEYS["AlterClientQuotas"], AlterClientQuotasRequest(gone))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "components",
    [
        [],
        [("user", 2, None)],
        [("user", 0, "same-a")],
        [("user", 0, "same-a"), ("client-id", 1, None)],
        [("user", 2, None), ("client-id", 2, None)],
        [("client-id", 2, None)],
        [("user", 1, None)],
        [("ip", 2, None)],
        [("ip", 0, "10.11.12.13")],
        [("user", 0, None)],
        [("user", 1, "a")],
        [("user", 2, "a")],
        [("user", 9, None)],
        [("ip", 2, None), ("user", 2, None)],
        [("user", 2, None), ("user", 1, None)],
        [("tenant", 2, None)],
        [("tenant", 2, None), ("tenant", 2, None)],
        [("", 2, None)],
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [0, 1])
def test_described_quotas_match(
    quotas: Twins, components: list[Any], strict: bool, version: int
) -> None:
    request = DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)
    kafka, ours = ask(quotas, "DescribeClientQuotas", request, version)
    assert ours == kafka


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [([], [(RATE, 1)])],
        [([("tenant", "a")], [(RATE, 1)])],
        [([("user", "")], [(RATE, 1)])],
        [([("client-id", "")], [(RATE, 1)])],
        [([("ip", "1.2.3.4"), ("user", "a")], [(RATE, 1)])],
        [([("ip", "1.2.3.400")], [(CONNECTIONS, 1)])],
        [([("user", "a")], [("x", 1)])],
        [([("user", "a")], [(CONNECTIONS, 1)])],
        [([("ip", "1.2.3.4")], [(RATE, 1)])],
        [([("user", "a")], [(RATE, 0)])],
        [([("user", "a")], [(RATE, -1)])],
        [([("user", "a")], [(RATE, 1.5)])],
        [([("user", "a")], [(RATE, 1.0000001)])],
        [([("user", "a")], [(RATE, float("inf"))])],
        [([("user", "a")], [("request_percentage", float("inf"))])],
        [([("ip", "1.2.3.4")], [(CONNECTIONS, 2.0**31)])],
        [([("ip", "1.2.3.4")], [(CONNECTIONS, 1.5)])],
        [([("user", "a")], [(RATE, 1), ("x", 1)])],
        [([("user", "a")], [(RATE, 1), (RATE, 2)])],
        [([("user", "a")], [(RATE, 1)]), ([("user", "a")], [(RATE, 2)])],
        [([("user", "a"), ("user", "b")], [(RATE, 1)])],
        [([("user", "a")], [])],
        [([("user", "a")], [("x", None)])],
        [([("user", "a")], [("x", 1)]), ([("user", "b")], [(RATE, 1)])],
    ],
    ids=str,
)
@pytest.mark.parametrize("version", [0, 1])
def test_checks_of_quotas_match(
    twins: Twins, entries: list[tuple[Names, Ops]], version: int
) -> None:
    asked = [entry(*each) for each in entries]
    request = AlterClientQuotasRequest(asked, validate_only=True)
    kafka, ours = ask(twins, "AlterClientQuotas", request, version)
    assert ours == kafka


@pytest.mark.parametrize("value", [float("nan"), 1.0])
def test_what_differs(twins: Twins, value: float) -> None:
    """A limit that is no number, and names too long for an index of PostgreSQL, are refused."""
    name = "a" if value != value else "a" * 3_000
    asked = [entry([("user", name)], [("request_percentage", value)])]
    request = AlterClientQuotasRequest(asked, validate_only=True)
    for connection, code in zip(twins.both, (0, 42), strict=True):
        answer = connection.request(KEYS["AlterClientQuotas"], request)
        assert [row.error_code for row in answer.entries] == [code]
