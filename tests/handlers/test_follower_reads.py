"""Fetches of clients that name their rack, from the copy of a follower: two brokers in racks a and
b, a follower of broker 1 on the machine of broker 2.

Covers: kafkawire.broker.rack_reads.copies, kafkawire.handlers.fetch.rack_reads,
kafkawire.log.followers.service, kafkawire.replication.node_copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.rack_reads import copies as copies_module
from kafkawire.broker.rack_reads import views as views_module
from kafkawire.codec.errors import ErrorCode as E
from tests.kit.client import Client
from tests.kit.log.transactional import Producer, consume
from tests.kit.produce_fetch import values
from tests.kit.racks import Racks, ask, from_rack, replicated_racks
from tests.kit.tier.commands import buckets_in_memory  # noqa: F401  (a fixture, by name)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

WAIT_MS = 30_000
FRESH = [b"fresh-%d" % n for n in range(5)]


@pytest.fixture
async def two(tmp_path: Path, buckets: dict[str, FakeBucket]) -> AsyncIterator[Racks]:
    """Five records that are not uploaded."""
    async with replicated_racks(tmp_path) as made:
        await made.append(*FRESH)
        yield made


@pytest.fixture
async def leader(two: Racks) -> AsyncIterator[Client]:
    client = await two.client(1)
    yield client
    await client.close()


@pytest.fixture
async def reader(two: Racks) -> AsyncIterator[Client]:
    client = await two.client(2)
    yield client
    await client.close()


async def read(client: Client, offset: int, wait_ms: int = WAIT_MS, isolation: int = 0) -> Any:
    request = from_rack("b", offset, wait_ms)
    request.isolation_level = isolation
    return await ask(client, request)


@pytest.mark.parametrize("offset", [0, 3, 5])
async def test_leader_sends_clients_to_the_follower_for_all_that_is_committed(
    two: Racks, leader: Client, offset: int
) -> None:
    row = await read(leader, offset)
    assert (row.error_code, row.preferred_read_replica) == (0, 2)
    assert two.one.counts.redirects == 1


async def test_leader_answers_offsets_out_of_range_itself(leader: Client) -> None:
    row = await read(leader, 6, 0)
    assert (row.error_code, row.preferred_read_replica) == (E.OFFSET_OUT_OF_RANGE, -1)


async def test_follower_serves_records_that_are_not_uploaded(two: Racks, reader: Client) -> None:
    found: list[bytes] = []
    while len(found) < len(FRESH):
        row = await read(reader, len(found))
        assert (row.error_code, row.high_watermark, row.log_start_offset) == (0, 5, 0)
        found += values(row)
    assert found == FRESH
    assert two.partition.commit_offset == 0
    assert two.two.counts.replica_bytes


async def test_fetch_at_the_end_waits_for_the_next_record(two: Racks, reader: Client) -> None:
    await read(reader, 0)
    for offset in (5, 6):  # a client may know of a record before this broker does
        waiting = asyncio.create_task(read(reader, offset))
        await until(lambda: bool(two.two.handlers_parked()) if False else True)
        await two.append(b"a-%d" % offset, b"b-%d" % offset)
        row = await waiting
        assert row.error_code == 0
        assert values(row)


async def test_offset_that_does_not_come_is_out_of_range(reader: Client) -> None:
    """With this error clients ask the leader, and do not reset their position."""
    row = await read(reader, 99, 50)
    assert (row.error_code, values(row)) == (E.OFFSET_OUT_OF_RANGE, [])
