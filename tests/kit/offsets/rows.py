"""Rows that tests put into a `SegmentCatalog`: states of partitions and objects; and all its
content."""

from __future__ import annotations

from typing import Any

from kafkawire.metadata.checkpoint import PartitionCheckpoint, ProducerEntry
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
    COPY_STARTED,
    DELETE_STARTED,
    DELETING,
    LIVE,
    NEVER,
    STARTED,
    ObjectRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    pack_ranges,
)
from tests.kit.offsets.worlds import FOREIGN, GONE, MINE, finished

STATES = (STARTED, LIVE, DELETING)
ALL = (COPY_STARTED, COPY_FINISHED, DELETE_STARTED)
FIRST = 1 << 120


def state(number: int, next_offset: int = 9) -> PartitionCheckpoint:
    producers = [
        ProducerEntry(2**40, 32767, [(i, i + 1, 10 * i, 1700000000000) for i in range(5)]),
        ProducerEntry(7, 0, []),
    ]
    return PartitionCheckpoint(number, next_offset, 3, [(0, 0), (4, 5)], producers)


def uuid(at: int) -> bytes:
    return (FIRST + at).to_bytes(16, "big")


def at_of(row: ObjectRow) -> int:
    return int.from_bytes(row.uuid, "big") - FIRST


def thing(at: int, row: SegmentRow, tier: int = 0, node_id: int = 1) -> ObjectRow:
    ranges = pack_ranges([(at, 0, 10)])
    return ObjectRow(uuid(at), row.id, node_id, tier, COPY_STARTED, 4096, 700 + at, 0, ranges)


async def uploaded(
    storage: SegmentCatalog, at: int, *rows: SegmentRange, tier: int = 0
) -> SegmentRow:
    """A segment with a finished object `at`, as it was passed to the catalog."""
    row = await finished(storage, *rows)
    assert await storage.start_objects([thing(at, row, tier)], {}) == [uuid(at)]
    (now,) = await storage.finish_objects([uuid(at)], {})
    assert (now.object, now.tier) == (uuid(at), tier)
    return row


async def states(storage: SegmentCatalog) -> dict[int, int]:
    rows = await storage.objects(1, ALL, 1000)
    return {at_of(row): row.state for row in rows}


async def ends(storage: SegmentCatalog, number: int) -> tuple[int, int]:
    (row,) = await storage.load_partitions([number])
    return row.dispatch_offset, row.commit_offset


async def everything(storage: SegmentCatalog) -> list[Any]:
    """The whole content of the catalog, as the port shows it."""
    numbers = [*MINE, FOREIGN, *GONE]
    return [
        await storage.load_log_position(1),
        await storage.load_log_position(2),
        await storage.load_partitions(numbers),
        await storage.segments(1, STATES, 1000),
        await storage.expiring(NEVER, 1000),
        await storage.stats(numbers),
        await storage.objects(1, ALL, 1000),
        await storage.objects(2, ALL, 1000),
        await storage.unneeded_objects(1, 1000),
        await storage.tiers(),
        await storage.metrics(),
    ]
