"""Offsets committed in transactions, through a socket: verification, visibility, codes.

Covers: kafkawire.handlers.txn_offset_commit, kafkawire.broker.verification.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running
from tests.kit.transactions.raw import RawProducer

SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "1"}


@pytest.fixture(name="server")
async def serve(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", flush="commit", **SETTINGS) as started:
        yield started


@pytest.fixture
async def producer(client: Client) -> RawProducer:
    await make(client, "t")
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    return await RawProducer(client).init()


async def fetched(client: Client, *, stable: bool = False) -> tuple[int, int]:
    """(code, offset) of partition 0."""
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = OffsetFetchRequestGroup("g", topics=[topic])
    request = OffsetFetchRequest(groups=[group], require_stable=stable)
    row = (await client.call(request, 8)).groups[0].topics[0].partitions[0]
    return row.error_code, row.committed_offset


async def until_offset(client: Client, offset: int) -> None:
    while await fetched(client, stable=True) != (0, offset):
        pass


@pytest.mark.parametrize("version", range(5))
async def test_offsets_need_their_group_in_the_transaction(
    client: Client, producer: RawProducer, version: int
) -> None:
    code = 120 if version >= 4 else 48
    assert await producer.commit_offset(5, version) == code
    assert await producer.add_offsets() == 0
    assert await producer.commit_offset(5, version) == 0
    assert await fetched(client, stable=True) == (E.UNSTABLE_OFFSET_COMMIT, -1)
    assert await fetched(client) == (0, -1)
    await producer.end()
    await until_offset(client, 5)
    assert (await producer.init()).epoch == 1
    assert await producer.add_offsets() == 0
    assert await producer.commit_offset(6, version) == 0
    await producer.end(commit=False)
    await until_offset(client, 5)


async def test_version_5_adds_the_group_by_itself(client: Client, producer: RawProducer) -> None:
    for number in range(3):
        while (code := await producer.commit_offset(number, 5)) == E.CONCURRENT_TRANSACTIONS:
            pass  # not waited for by the broker, as in Kafka
        assert code == 0
        assert await producer.commit_offset(number + 10, 5) == 0
        assert await producer.end(version=5) == 0
        await until_offset(client, number + 10)
    assert producer.epoch == 3


@pytest.mark.parametrize(
    ("changed", "version", "code"),
    [
        ({"generation_id": 99}, 3, E.ILLEGAL_GENERATION),
        ({"generation_id": -1}, 3, 0),
        ({"member_id": "stranger", "generation_id": 1}, 3, E.UNKNOWN_MEMBER_ID),
        ({"metadata": "x" * 4097}, 3, E.OFFSET_METADATA_TOO_LARGE),
        ({"topic": "nosuch"}, 3, E.UNKNOWN_TOPIC_OR_PARTITION),
        ({"group": ""}, 3, E.INVALID_GROUP_ID),
        ({"producer_id": 999}, 3, E.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_id": 999}, 5, E.INVALID_PRODUCER_ID_MAPPING),
        ({"producer_epoch": 9}, 0, E.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 9}, 5, E.INVALID_PRODUCER_EPOCH),
    ],
)
async def test_codes(
    producer: RawProducer, changed: dict[str, Any], version: int, code: int
) -> None:
    assert await producer.add_offsets() == 0
    if "member_id" in changed:
        assert await producer.commit_offset(1) == 0  # the group exists
    assert await producer.commit_offset(5, version, **changed) == code


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_replaced_producer_gets_invalid_producer_epoch(
    client: Client, producer: RawProducer, version: int
) -> None:
    await producer.add_offsets()
    await producer.commit_offset(5)
    await RawProducer(client).init()
    assert await producer.commit_offset(6, version) == E.INVALID_PRODUCER_EPOCH
    await until_offset(client, -1)


async def test_verification_can_be_disabled(tmp_path: Path) -> None:
    """Then offsets outside of a transaction stay pending, as in Kafka."""
    off = {"transaction.partition.verification.enable": "false"}
    async with running(tmp_path, **SETTINGS, **off) as server:
        client = await Client.connect(port_of(server))
        await make(client, "t")
        await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        producer = await RawProducer(client).init()
        assert await producer.commit_offset(5, 3) == 0
        assert await producer.end() == E.INVALID_TXN_STATE
        assert await fetched(client, stable=True) == (E.UNSTABLE_OFFSET_COMMIT, -1)
        await client.close()
