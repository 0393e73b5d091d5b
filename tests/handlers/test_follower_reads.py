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
from kafkawire.metadata.catalog import Catalog
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


async def until_it_waits(two: Racks) -> None:
    """Wait until a Fetch waits for records in the copy."""
    log = two.two.views._copies._logs[1]
    number = two.partition.number
    await until(lambda: number in log._partitions and bool(log._partitions[number].watchers))


async def test_fetch_at_the_end_waits_for_the_next_record(two: Racks, reader: Client) -> None:
    await read(reader, 0)
    for offset in (5, 9):  # a client may know of a record before this broker does
        waiting = asyncio.create_task(read(reader, offset))
        await until_it_waits(two)
        await two.append(*(b"more-%d" % n for n in range(offset - 4, offset - 1)))
        row = await waiting
        assert (row.error_code, values(row)[0]) == (0, b"more-%d" % (offset - 4 + offset // 9))


async def test_offset_that_does_not_come_is_out_of_range(reader: Client) -> None:
    """With this error clients ask the leader, and do not reset their position."""
    row = await read(reader, 99, 50)
    assert (row.error_code, values(row)) == (E.OFFSET_OUT_OF_RANGE, [])


async def test_committed_records(two: Racks, reader: Client) -> None:
    """The last stable offset and aborted transactions, also of one that is open for long."""
    first, second = Producer(100), Producer(200)
    first.send(two.partition, b"aborted-1", keyed=True)
    await two.transaction(second, b"committed", commit=True)
    row = await read(reader, 0, isolation=1)
    assert (row.last_stable_offset, row.high_watermark) == (5, 8)
    assert values(row) == FRESH
    waiting = asyncio.create_task(read(reader, 5, isolation=1))
    await until_it_waits(two)
    await two.transaction(second, b"aborted-2", commit=False)
    assert not waiting.done()
    await two.transaction(first, b"aborted-3", commit=False)
    row = await waiting
    await two.append(b"last")
    while (await read(reader, 0)).high_watermark < two.partition.high_watermark:
        pass
    found, offset, end = [], 0, two.partition.high_watermark
    while offset < end:
        row = await read(reader, offset, isolation=1)
        assert (row.error_code, row.last_stable_offset) == (0, end)
        aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions]
        some, offset = consume([bytes(row.records)], offset, sorted(aborted, key=lambda x: x[1]))
        found += [value for _, value in some]
    assert found == [*FRESH, b"committed", b"last"]


async def test_uploaded_records_are_read_on_from_the_copy(two: Racks, reader: Client) -> None:
    """Also at the end of a partition of which the copy has no journal any more."""
    folder = two.follower.folder / "1" / str(two.two.catalog.brokers[1].epoch)
    held = [each for each in folder.iterdir() if b"fresh" in each.read_bytes()]
    two.pause(paused=False)
    await two.upload()
    await until(lambda: not any(each.exists() for each in held))
    two.pause()
    row = await read(reader, 0)
    assert (row.error_code, values(row)) == (0, FRESH)
    waiting = asyncio.create_task(read(reader, 5))
    await until_it_waits(two)
    await two.append(b"next")
    row = await waiting
    assert (row.error_code, row.high_watermark, values(row)) == (0, 6, [b"next"])


async def test_copy_that_is_not_in_sync_serves_what_it_has(
    two: Racks, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert values(await read(reader, 2)) == FRESH[2:]
    monkeypatch.setattr(copies_module, "CURRENT_S", 0.0)
    assert values(await read(reader, 2)) == FRESH[2:]
    check_refused(await read(reader, 5))


async def test_end_of_the_follower_sends_clients_to_the_leader(
    two: Racks, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next start is followed again."""
    monkeypatch.setattr(copies_module, "RETRY_S", 0.0)
    monkeypatch.setattr(views_module, "MIN_AGE_S", 0.05)
    await read(reader, 0)
    waiting = asyncio.create_task(read(reader, 5))
    await until_it_waits(two)
    await asyncio.to_thread(two.follower.stop)
    check_refused(await waiting)
    check_refused(await read(reader, 0))
    two.follower.start()
    async with asyncio.timeout(60):
        while values(row := await read(reader, 0)) != FRESH:
            check_refused(row)
    await until(lambda: two.one.log.commit_log.follower_sink.refusal is None)
    await two.append(b"next")
    assert values(await read(reader, 5)) == [b"next"]


async def test_deleted_records_are_not_read(
    two: Racks, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await read(reader, 0)
    await two.partition.delete_records(2)
    monkeypatch.setattr(views_module, "MAX_AGE_S", 0.05)
    async with asyncio.timeout(60):
        while not (row := await read(reader, 1)).error_code:
            pass  # the log start that was read before is not older than that yet
    check_refused(row)
    monkeypatch.setattr(views_module, "MAX_AGE_S", 60.0)
    row = await read(reader, 2)
    assert (row.log_start_offset, values(row)) == (2, FRESH[2:])


async def test_topic_that_is_created_again(two: Racks, reader: Client) -> None:
    assert values(await read(reader, 0)) == FRESH
    await two.one.topics.delete([two.partition.topic_id])
    await until(lambda: "t" not in two.two.catalog.by_name)
    assert (await read(reader, 0)).error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    await two.create(durability="replicated")
    waiting = asyncio.create_task(read(reader, 0))
    await until_it_waits(two)
    await two.append(b"new")
    assert values(await waiting) == [b"new"]


async def test_topic_whose_records_come_before_it(two: Racks, reader: Client) -> None:
    """Its creation arrives here after its first records."""
    await read(reader, 0)
    catalog = two.two.catalog
    number, locate = two.partition.number, catalog.locate
    copies = two.two.views._copies
    copies._logs[1].stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "locate", lambda self, at: None if at == number else locate(at))
        patch.setattr(copies_module, "RETRY_S", 0.0)
        assert await copies._follow(1) is not None
        await copies._logs[1].loaded.wait()
    assert copies._logs[1].skipped == {number}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies_module, "RETRY_S", 0.0)
        patch.setattr(views_module, "MAX_AGE_S", 0.05)
        assert await until_read(reader) == FRESH


async def until_read(client: Client) -> list[bytes]:
    """Read from the beginning until that is not refused."""
    async with asyncio.timeout(60):
        while (row := await read(client, 0)).error_code:
            check_refused(row)
    return values(row)


async def test_damaged_copy_is_not_read(two: Racks, reader: Client) -> None:
    (path,) = sorted((two.follower.folder / "1").glob("*/*.journal"))[-1:]
    data = path.read_bytes()
    path.write_bytes(data.replace(b"fresh-1", b"FRESH-1"))
    check_refused(await read(reader, 0))


async def test_log_without_readers_is_not_followed(
    two: Racks, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await read(reader, 0)
    followed_log = two.two.views._copies._logs[1]
    monkeypatch.setattr(copies_module, "IDLE_S", 0.0)
    await until(lambda: followed_log.ended)


def check_refused(row: Any) -> None:
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert not row.records
