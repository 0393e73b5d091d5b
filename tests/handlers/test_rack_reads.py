"""Fetches of clients that name their rack: two brokers in racks a and b, one bucket.

Covers: kafkawire.handlers.fetch.rack_reads, kafkawire.handlers.fetch.request,
kafkawire.broker.rack_reads.views.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.rack_reads import views as views_module
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.fetch import MAX_ITEMS
from kafkawire.messages.fetch import FetchPartition, FetchRequest
from kafkawire.messages.leaders import LeaderIdAndEpoch
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.metadata.store import MetadataError
from tests.kit.client import Client
from tests.kit.log.transactional import Producer, consume
from tests.kit.produce_fetch import values
from tests.kit.racks import Racks, ask, from_rack, racks
from tests.kit.tier.commands import buckets_in_memory  # noqa: F401  (a fixture, by name)
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.waiting import until

pytestmark = pytest.mark.slow

OLD, TAIL = [b"old-%d" % n for n in range(6)], [b"tail-%d" % n for n in range(3)]


@pytest.fixture
async def two(tmp_path: Path, buckets: dict[str, FakeBucket]) -> AsyncIterator[Racks]:
    """Six records that are uploaded, in two segments, and three that are not."""
    async with racks(tmp_path) as made:
        await made.create()
        for at in (0, 3):
            await made.append(*OLD[at : at + 3])
            await made.upload()
        made.pause()
        await made.append(*TAIL)
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


def check_refused(row: Any) -> None:
    assert row.error_code == E.NOT_LEADER_OR_FOLLOWER
    assert not row.records


def check_sent_away(row: Any) -> None:
    assert (row.error_code, row.preferred_read_replica) == (0, 2)
    assert not row.records


def long_fetch(offset: int, rack: str, wait_ms: int = 0) -> FetchRequest:
    """A Fetch of so many partitions that it is decoded in slices; one of them exists."""
    request = from_rack(rack, offset, wait_ms)
    missing = [FetchPartition(partition=9 + n) for n in range(MAX_ITEMS)]
    request.topics[0].partitions += missing
    return request


@pytest.mark.parametrize("version", [11, 12, 16])
async def test_leader_sends_clients_of_another_rack_away(
    two: Racks, leader: Client, version: int
) -> None:
    request = from_rack("b", 4, 30_000)
    if version >= 13:
        request.topics[0].topic_id = two.partition.topic_id
    row = await ask(leader, request, version)  # at once, though it would wait for records
    check_sent_away(row)
    assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (9, 9, 0)
    assert two.one.counts.redirects == 1


@pytest.mark.parametrize(
    ("rack", "offset", "version"),
    [("a", 0, 11), ("c", 0, 11), ("", 0, 11), ("b", 0, 10), ("b", 6, 11), ("b", 8, 12)],
)
async def test_leader_serves_others_itself(
    leader: Client, rack: str, offset: int, version: int
) -> None:
    row = await ask(leader, from_rack(rack, offset), version)
    assert (row.error_code, row.preferred_read_replica) == (0, -1)
    assert values(row)[:1] == [[*OLD, *TAIL][offset]]


async def test_leader_answers_offsets_out_of_range_itself(leader: Client) -> None:
    row = await ask(leader, from_rack("b", 99))
    assert (row.error_code, row.preferred_read_replica) == (E.OFFSET_OUT_OF_RANGE, -1)


async def test_reader_serves_what_is_uploaded_and_refuses_the_rest(
    two: Racks, reader: Client
) -> None:
    found: list[bytes] = []
    while len(found) < len(OLD):
        row = await ask(reader, from_rack("b", len(found), 30_000))
        assert (row.error_code, row.high_watermark, row.log_start_offset) == (0, 6, 0)
        found += values(row)
    assert found == OLD
    assert two.two.counts.replica_bytes
    assert not two.two.log.partitions  # it leads nothing, and has no state of a leader
    for offset in (6, 7, 99):
        check_refused(await ask(reader, from_rack("b", offset, 30_000)))
    row = await ask(reader, from_rack("b", 6), 12)
    assert row.current_leader is None  # hints begin with v16
    answer = await reader.call(by_id(two, 6), 16)
    assert answer.responses[0].partitions[0].current_leader == LeaderIdAndEpoch(1, 0)
    assert [node.node_id for node in answer.node_endpoints] == [1]


def by_id(two: Racks, offset: int) -> FetchRequest:
    request = from_rack("b", offset)
    request.topics[0].topic_id = two.partition.topic_id
    return request


@pytest.mark.parametrize(("rack", "version"), [("", 11), ("b", 10)])
async def test_reader_refuses_clients_without_rack(reader: Client, rack: str, version: int) -> None:
    check_refused(await ask(reader, from_rack(rack, 0), version))


async def test_leader_epochs_are_compared_at_the_reader(reader: Client) -> None:
    row = await ask(reader, from_rack("b", 0, current_leader_epoch=7))
    assert row.error_code == E.UNKNOWN_LEADER_EPOCH
    row = await ask(reader, from_rack("b", 0, current_leader_epoch=0))
    assert row.error_code == E.NONE


async def test_client_that_comes_back_is_served_by_the_leader(two: Racks, leader: Client) -> None:
    check_sent_away(await ask(leader, from_rack("b", 0)))
    for offset in (0, 1, 4):
        row = await ask(leader, from_rack("b", offset))
        assert row.preferred_read_replica == -1
        assert values(row)[0] == OLD[offset]
    other = await two.client(1)
    check_sent_away(await ask(other, from_rack("b", 0)))
    check_sent_away(await ask(other, from_rack("b", 3)))  # it got records in between
    await other.close()


async def test_requests_of_many_partitions(two: Racks, leader: Client, reader: Client) -> None:
    check_sent_away(await ask(leader, long_fetch(0, "b", 30_000)))
    row = await ask(leader, long_fetch(0, "a"))
    assert values(row) == OLD + TAIL
    row = await ask(reader, long_fetch(3, "b", 30_000), 12)
    assert (row.error_code, values(row)) == (0, OLD[3:])
    check_refused(await ask(reader, long_fetch(6, "b")))
    check_refused(await ask(reader, long_fetch(3, "")))


@pytest.mark.parametrize("version", [11, 12])
async def test_committed_records(two: Racks, reader: Client, version: int) -> None:
    first, second = Producer(100), Producer(200)
    first.send(two.partition, b"aborted-1", keyed=True)
    await two.transaction(second, b"committed", commit=True)
    await two.transaction(second, b"aborted-2", commit=False)
    await two.transaction(first, b"aborted-3", commit=False)
    await two.append(b"last")
    two.pause(paused=False)
    await two.upload()
    found, offset = [], 0
    end = two.partition.commit_offset
    while offset < end:
        request = from_rack("b", offset)
        request.isolation_level = 1
        row = await ask(reader, request, version)
        assert row.error_code == E.NONE
        aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions]
        some, offset = consume([bytes(row.records)], offset, sorted(aborted, key=lambda x: x[1]))
        found += [value for _, value in some]
    assert found == [*OLD, *TAIL, b"committed", b"last"]


async def test_view_is_loaded_again(
    two: Racks, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end, so that a client which follows the uploads need not return to the leader."""
    monkeypatch.setattr(views_module, "MIN_AGE_S", 60.0)
    check_refused(await ask(reader, from_rack("b", 6)))
    two.pause(paused=False)
    await two.upload()
    check_refused(await ask(reader, from_rack("b", 6)))  # it was loaded less than MIN_AGE_S ago
    monkeypatch.setattr(views_module, "MIN_AGE_S", 0.0)
    assert values(await ask(reader, from_rack("b", 6)))[:1] == TAIL[:1]
    monkeypatch.setattr(views_module, "MIN_AGE_S", 60.0)
    await two.partition.delete_records(2)
    monkeypatch.setattr(views_module, "MAX_AGE_S", 0.001)
    row = await ask(reader, from_rack("b", 3))
    assert row.log_start_offset == 2


async def test_rows_that_were_replaced_are_read_again(two: Racks, reader: Client) -> None:
    """A segment that the reader does not know any more, as after a merge."""
    assert values(await ask(reader, from_rack("b", 0)))
    store = two.two.log.segments.store
    for segment_id in list(store.others):
        store.renew_other(segment_id, None)
    assert values(await ask(reader, from_rack("b", 0)))[0] == OLD[0]


async def test_failures_send_clients_to_the_leader(
    two: Racks, reader: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_: object) -> Any:
        raise MetadataError("away")

    assert values(await ask(reader, from_rack("b", 0)))
    store = two.two.log.segments.store
    for segment_id in list(store.others):
        store.renew_other(segment_id, None)
    monkeypatch.setattr(two.two.storage, "load_partitions", broken)
    check_refused(await ask(reader, from_rack("b", 0)))
    assert "cannot read the rows of partitions that other brokers lead" in caplog.text
    check_refused(await ask(reader, from_rack("b", 0)))


async def test_range_without_records_at_its_end_is_refused(two: Racks, reader: Client) -> None:
    """Compaction may have removed the last records: an empty answer would never end."""
    assert values(await ask(reader, from_rack("b", 5)))
    number = two.partition.number
    view = two.two.views.find(number, 5)
    view.segments.end[-1] += 3
    view.cut_offset = view.next_offset = view.cut_offset + 3
    view.raise_high_watermark(view.next_offset)
    row = await ask(reader, from_rack("b", 6, 30_000))
    check_refused(row)


async def test_segments_without_object_are_left_out(two: Racks, reader: Client) -> None:
    """As those that a merge has made since the upload."""
    segments = two.partition.segments
    assert list(segments.base) == [0, 3]
    row = two.one.log.segments.store.get_segment(segments.segment[0]).row
    await two.one.storage.delete_objects([row.object], 1 << 60)
    check_refused(await ask(reader, from_rack("b", 0)))
    assert values(await ask(reader, from_rack("b", 3))) == OLD[3:]


async def test_topics_that_read_local_files_alone(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with racks(tmp_path) as made:
        await made.create(tieredStorageLevel="disable")
        await made.append(*OLD)
        await made.upload()
        leader, reader = await made.client(1), await made.client(2)
        assert values(await ask(leader, from_rack("b", 0))) == OLD
        check_refused(await ask(reader, from_rack("b", 0)))
        for client in (leader, reader):
            await client.close()


async def test_without_the_setting_the_leader_serves_all(
    tmp_path: Path, buckets: dict[str, FakeBucket]
) -> None:
    async with racks(tmp_path, replica_selector_class="") as made:
        await made.create()
        await made.append(*OLD)
        await made.upload()
        leader, reader = await made.client(1), await made.client(2)
        assert values(await ask(leader, from_rack("b", 0))) == OLD
        check_refused(await ask(reader, from_rack("b", 0)))
        assert await replicas(leader) == [1]
        for client in (leader, reader):
            await client.close()


async def replicas(client: Client) -> list[int]:
    answer = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
    (row,) = answer.topics[0].partitions
    assert row.isr_nodes == row.replica_nodes
    assert not row.offline_replicas
    return list(row.replica_nodes)


async def test_readers_are_replicas_in_metadata(two: Racks, leader: Client, reader: Client) -> None:
    """Java clients send to no broker that is no replica."""
    assert await replicas(leader) == await replicas(reader) == [1, 2]
    two.one.catalog.set_silent(frozenset([2]))
    assert await replicas(leader) == [1]
    row = await ask(leader, from_rack("b", 0))
    assert values(row)[0] == OLD[0]


async def test_partition_that_the_reader_leads_now(two: Racks, reader: Client) -> None:
    assert values(await ask(reader, from_rack("b", 0)))
    two.pause(paused=False)
    await two.upload()
    number = two.partition.number
    assert not (await two.one.log.hand_over([number])).refused
    await two.one.metadata.move_partitions([number], 2, two.one.catalog.stored_version)
    await until(lambda: two.two.catalog.leader_of(number) == 2)
    row = await ask(reader, from_rack("b", 0))
    assert (row.error_code, row.high_watermark) == (0, 9)
    assert two.two.table.find_by_name("t", 0).next_offset == 9
