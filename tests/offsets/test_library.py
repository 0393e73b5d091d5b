"""Subscriptions, the registry and its assigner, statistics: the public API of kafkawire.offsets."""

from __future__ import annotations

import pytest

import kafkawire.offsets
from kafkawire.offsets import (
    Checkpoint,
    MemoryRows,
    MemoryStorage,
    OffsetAssigner,
    OffsetMetrics,
    OffsetOutOfRange,
    OffsetRange,
    OffsetRegistry,
    OffsetType,
    PartitionCheckpoint,
    Seeker,
    StoredStats,
    Subscriber,
    Subscription,
    partition_stats,
    total_lag,
    validate_offset_range,
)
from kafkawire.offsets.catalog.port import PartitionRow, SegmentRange
from kafkawire.offsets.registry import recovered_next_offset

NS = 1_000_000


class Source:
    """A partition with a record every 10 ms, offset * 10, in offsets [5, 20)."""

    def __init__(self, committed: int | None = None) -> None:
        self.low, self.high, self.group_offset = 5, 20, committed

    def log_start(self) -> int:
        return self.low

    def high_watermark(self) -> int:
        return self.high

    def offset_at(self, timestamp_ms: int) -> int | None:
        found = max(self.low, -(-timestamp_ms // 10))
        return found if found < self.high else None

    def committed(self, group: str) -> int | None:
        return self.group_offset if group == "g" else None


def test_types_have_protocol_numbers() -> None:
    assert {each.name: each.value for each in OffsetType} == {
        "RESUME_OR_EARLIEST": 0,
        "RESET_TO_EARLIEST": 5,
        "EXACT_TS_NS": 10,
        "RESET_TO_LATEST": 15,
        "RESUME_OR_LATEST": 20,
        "EXACT_OFFSET": 25,
        "RESET_TO_OFFSET": 30,
    }


@pytest.mark.parametrize(
    ("offset_type", "value", "committed", "expected"),
    [
        (OffsetType.RESUME_OR_EARLIEST, 0, None, 5),
        (OffsetType.RESUME_OR_EARLIEST, 0, 12, 12),
        (OffsetType.RESUME_OR_EARLIEST, 0, 20, 20),
        (OffsetType.RESUME_OR_EARLIEST, 0, 3, 5),  # deleted meanwhile
        (OffsetType.RESUME_OR_LATEST, 0, None, 20),
        (OffsetType.RESUME_OR_LATEST, 0, 12, 12),
        (OffsetType.RESUME_OR_LATEST, 0, 21, 20),  # of a log that existed before
        (OffsetType.RESET_TO_EARLIEST, 0, 12, 5),
        (OffsetType.RESET_TO_LATEST, 0, 12, 20),
        (OffsetType.EXACT_TS_NS, 100 * NS, 12, 10),
        (OffsetType.EXACT_TS_NS, 100 * NS + 1, 12, 11),  # a ns later is the next record
        (OffsetType.EXACT_TS_NS, 0, 12, 5),
        (OffsetType.EXACT_TS_NS, 10**9 * NS, 12, 20),
        (OffsetType.EXACT_OFFSET, 5, 12, 5),
        (OffsetType.EXACT_OFFSET, 20, 12, 20),
        (OffsetType.RESET_TO_OFFSET, 7, 12, 7),
        (OffsetType.RESET_TO_OFFSET, 1, 12, 5),
        (OffsetType.RESET_TO_OFFSET, 99, 12, 20),
    ],
)
def test_start_position_of_subscription(
    offset_type: OffsetType, value: int, committed: int | None, expected: int
) -> None:
    assert Subscription(Source(committed), offset_type, value, "g").position == expected


def test_subscription_without_group_does_not_resume() -> None:
    assert Subscription(Source(12), OffsetType.RESUME_OR_LATEST).position == 20


@pytest.mark.parametrize("offset", [-1, 4, 21])
def test_exact_offset_must_exist(offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match=rf"offset {offset} is not within 5\.\.20"):
        Subscription(Source(), OffsetType.EXACT_OFFSET, offset)


def test_read_advances_and_seek_moves_position() -> None:
    source = Source()
    reader = Subscription(source, OffsetType.RESET_TO_EARLIEST)
    assert (reader.next_range(10), reader.lag, reader.at_end) == (OffsetRange(5, 15), 15, False)
    reader.advance(15)
    assert reader.next_range(10) == OffsetRange(15, 20)
    reader.advance(20)
    assert (reader.next_range(10), reader.lag, reader.at_end) == (OffsetRange(20, 20), 0, True)
    source.high = 30
    assert (reader.lag, reader.next_range(3)) == (10, OffsetRange(20, 23))
    with pytest.raises(OffsetOutOfRange, match="cannot advance from 20 back to 19"):
        reader.advance(19)
    assert reader.seek_to_offset(7) == 7
    assert reader.seek(OffsetType.RESET_TO_LATEST) == 30
    with pytest.raises(OffsetOutOfRange):
        reader.seek_to_offset(31)
    assert reader.position == 30
    reader.seek(OffsetType.RESET_TO_EARLIEST)
    source.low = 9  # retention deleted beyond the reader's position
    with pytest.raises(OffsetOutOfRange, match="offset 5 is not within 9"):
        reader.next_range(1)


def test_invalid_ranges_are_refused() -> None:
    seeker = Seeker(Source())
    assert seeker.check_range(5, 20) == (5, 20)
    assert (seeker.check_range(7, 7).size, OffsetRange(5, 20).last) == (0, 19)
    for start, end in [(4, 10), (10, 21), (10, 9)]:
        with pytest.raises(OffsetOutOfRange, match=rf"range {start}\.\.{end} "):
            seeker.check_range(start, end)
        with pytest.raises(OffsetOutOfRange):
            validate_offset_range(start, end, 5, 20)
    with pytest.raises(OffsetOutOfRange, match="-1 offsets"):
        seeker.range_from(5, -1)
    assert (seeker.lag(5), seeker.lag(99)) == (15, 0)


def test_subscriptions_have_names() -> None:
    subscriber = Subscriber()
    made = subscriber.create("a", Source(8), OffsetType.RESUME_OR_EARLIEST, group="g")
    assert (made.position, subscriber.get("a"), len(subscriber)) == (8, made, 1)
    with pytest.raises(ValueError, match="'a' exists"):
        subscriber.create("a", Source(), OffsetType.RESET_TO_LATEST)
    assert list(subscriber) == [made]
    subscriber.close("a")
    subscriber.close("a")
    assert subscriber.get("a") is None


def storage_of(rows: MemoryRows) -> MemoryStorage:
    return MemoryStorage(rows, 1, lambda: 7)


async def test_offsets_survive_restart_and_are_unique() -> None:
    rows = MemoryRows()
    registry = OffsetRegistry()
    registry.add(1)
    registry.add(2, 100)
    assigner = OffsetAssigner(registry)
    assert [assigner.assign(1), assigner.assign(1)] == [0, 1]
    assert assigner.assign_batch(2, 10) == OffsetRange(100, 110)
    assert (assigner.next_offset(1), assigner.next_offset(2)) == (0, 100)
    assigner.applied(1, 1)
    assert assigner.failed(1) == 1
    assigner.applied(2, 110)
    assert registry.metrics() == OffsetMetrics(2, 111, 0, 111)
    assert await registry.checkpoint(storage_of(rows)) == 2
    assert await registry.checkpoint(storage_of(rows)) == 0
    assigner.applied(1, assigner.assign_batch(1, 4).end)
    # The process dies; a scan of what it wrote finds records of partition 1 up to 5.
    again = await OffsetRegistry.recover(storage_of(rows), [1, 2, 3], {1: 5})
    assert {number: again[number].next_offset for number in again} == {1: 5, 2: 110, 3: 0}
    assert again.metrics().not_checkpointed == 4
    with pytest.raises(ValueError, match="partition 2 is registered"):
        again.add(2)
    again.remove(2)
    assert (2 in again, len(again)) == (False, 2)
    with pytest.raises(KeyError):
        OffsetAssigner(again).assign(2)


async def test_checkpoint_keeps_log_start() -> None:
    rows = MemoryRows()
    saved = PartitionCheckpoint(1, 10, 4)
    await storage_of(rows).save_checkpoint(Checkpoint(1, 0, [saved]))
    registry = await OffsetRegistry.recover(storage_of(rows), [1])
    OffsetAssigner(registry).applied(1, OffsetAssigner(registry).assign_batch(1, 5).end)
    await registry.checkpoint(storage_of(rows))
    (row,) = await storage_of(rows).load_partitions([1])
    assert row.checkpoint == PartitionCheckpoint(1, 15, 4)


@pytest.mark.parametrize(
    ("checkpoint", "segment_end", "scanned", "expected"),
    [(None, 0, 0, 0), (10, 0, 0, 10), (10, 12, 0, 12), (10, 12, 15, 15), (20, 12, 15, 20)],
)
def test_next_offset_is_highest_known(
    checkpoint: int | None, segment_end: int, scanned: int, expected: int
) -> None:
    row = PartitionRow(1)
    if checkpoint is not None:
        row.checkpoint = PartitionCheckpoint(1, checkpoint, 0)
    if segment_end:
        row.mappings = [SegmentRange(1, 1, 0, segment_end, 0, 1, 0, 0, 0, 0, 1, 1)]
    assert recovered_next_offset(row, scanned) == expected


def test_statistics_add_up() -> None:
    stored = StoredStats(3, 90, 10, 2, 50, 5_000, 1, 77)
    stats = partition_stats(stored, 20, 95, 100)
    assert (stats.readable, stats.uncommitted, stats.not_checkpointed) == (75, 5, 10)
    assert (stats.segments, stats.records_in_segments, stats.last_activity_ms) == (2, 50, 77)
    assert total_lag([(5, 10), (12, 10), (0, 1)]) == 6


def test_public_names_can_be_imported() -> None:
    for name in kafkawire.offsets.__all__:
        assert getattr(kafkawire.offsets, name) is not None


def test_former_names_can_be_imported() -> None:
    assert kafkawire.offsets.OffsetStorage is kafkawire.offsets.SegmentCatalog
    assert kafkawire.offsets.Mapping is kafkawire.offsets.SegmentRange
