"""Segment files that no reader uses: their contents, and whether these exist elsewhere.

A cut or merge that a crash interrupted leaves a file whose row is STARTED; its inputs still exist,
so it can be deleted. With metadata that is older than the folder the same row may belong to a file
that is the only copy of its records: it is finished, and its offsets are in no other segment and no
journal. Such a file is never deleted, nor is such an object of a remote tier.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.log.partition.damaged_ranges import Range, uncovered
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import SegmentCatalog

if TYPE_CHECKING:
    from kafkawire.log.partition.partition import Partition

Known = Callable[[Collection[int]], Awaitable[set[int]]]
"""Those of the partition numbers that SQL ever assigned: `Metadata.known_partitions`."""
MAX_SHOWN = 5
"""Partitions named in one message."""


def unaccounted(
    entries: Iterable[PartitionEntry], held: Callable[[PartitionEntry], list[Range] | None]
) -> list[tuple[PartitionEntry, Range]]:
    """Return the offset ranges of a segment file that are nowhere else. Pure.

    `held` returns the ranges of a partition that are elsewhere, or were deleted on purpose; None:
    the partition's topic was deleted."""
    found = []
    for entry in entries:
        ranges = held(entry)
        if ranges is not None:
            for missing in uncovered(entry.base_offset, entry.end_offset, sorted(ranges)):
                found.append((entry, missing))
    return found


async def find_unaccounted(
    entries: Sequence[PartitionEntry],
    catalog: Catalog,
    storage: SegmentCatalog,
    known: Known,
    in_journals: Callable[[int], list[Range]],
) -> list[tuple[PartitionEntry, Range]]:
    """Return the offset ranges of a segment that no mapping and no journal has, of topics that were
    not deleted. Raises what the storage and `known` raise."""
    numbers = sorted({entry.number for entry in entries})
    alive = [number for number in numbers if catalog.locate(number) is not None]
    rows = {row.number: row for row in await storage.load_partitions(alive)}
    gone = await known([number for number in numbers if number not in rows])

    def held(entry: PartitionEntry) -> list[Range] | None:
        where = catalog.locate(entry.number)
        if where is None or where.topic_id != entry.topic_id or entry.number not in rows:
            return None if where is None and entry.number in gone else []
        row = rows[entry.number]
        start = row.checkpoint.log_start if row.checkpoint is not None else 0
        mapped = [(m.base_offset, m.end_offset) for m in row.mappings]
        return [(0, start), *mapped, *in_journals(entry.number)]

    return unaccounted(entries, held)


def describe(found: list[tuple[PartitionEntry, Range]]) -> str:
    """Describe the ranges: `orders-0 offsets 0-99, orders-1 offsets 3-7`."""
    shown = [
        f"{entry.topic}-{entry.index} offsets {first}-{end - 1}"
        for entry, (first, end) in found[:MAX_SHOWN]
    ]
    more = [f"{len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
    return ", ".join(shown + more)


def held_in_memory(partition: Partition) -> list[Range]:
    """Return the offset ranges of a loaded partition in its segments and journals, and those below
    its log start."""
    segments, extents, rows = partition.segments, partition.journal_extents, partition.rows
    counted = zip(rows.base, rows.count, strict=True)
    return [
        (0, partition.log_start),
        *zip(segments.base, segments.end, strict=True),
        *zip(extents.first, extents.end, strict=True),
        *((base, base + count) for base, count in counted),
    ]
