"""Check whether segment files contain records that the metadata does not know.

No operation and no crash leaves a file without a row, nor offsets of a live segment that no row
maps, so files with topics that the metadata never had, or with offsets that are nowhere else, prove
that the metadata is an older copy, belongs to another data folder or has lost rows, as journals do
(kafkawire.log.recovery.unknown_topics).

A cut or merge that a crash interrupted leaves a file whose row is STARTED; its inputs still exist,
so it can be deleted. With older metadata the same row may belong to a file that is the only copy of
its records: it is finished, and its offsets are in no other segment and no journal. Such a file is
never deleted, nor is such an object of a remote tier: `find_unaccounted`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from kafkawire.codec.segment.format import PartitionEntry
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.damaged_ranges import Range, find_uncovered
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.identity import IdentityError, rebuild_command
from kafkawire.log.recovery.unknown_topics import sentence
from kafkawire.log.segments.file.open import read_entries
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.pairing import known_topics
from kafkawire.metadata.store import SqlStore
from kafkawire.offsets.catalog.port import SegmentCatalog

Known = Callable[[Collection[int]], Awaitable[set[int]]]
"""Those of the partition numbers that SQL ever assigned: `Metadata.known_partitions`."""
MAX_SHOWN = 5
"""Partitions named in one message."""


async def check_segments(env: Env, home: str, paths: Iterable[str], metadata: SqlStore) -> None:
    """Raise IdentityError if segment files without a row contain topics that the metadata never
    had.

    For a folder whose identity is not known yet. Raises what the disk and the metadata raise."""
    topics: dict[bytes, str] = {}
    for path in paths:
        for entry in await env.offload.submit("files", read_entries, env.fs, path):
            topics[entry.topic_id] = entry.topic
    if topics:
        known = await metadata.transact(lambda session: known_topics(session, topics))
        strange = {name for topic_id, name in topics.items() if topic_id not in known}
        if strange:
            # Served like that, the broker would hide these records, or assign their offsets again.
            raise IdentityError(sentence(metadata.name, home, sorted(strange)))


async def check_records(
    env: Env,
    strays: Collection[str],
    live: Iterable[str],
    data: str,
    partitions: Mapping[int, Partition],
    catalog: Catalog,
    storage: SegmentCatalog,
    known: Known,
    node_id: int,
) -> None:
    """Raise IdentityError if a segment file has offsets that no row and no journal has. `strays`:
    files without a row; `live`: others to check; `partitions`: those with records in the journals;
    `data`: the data folder.

    Raises what the disk, the storage and the metadata raise."""

    def in_journals(number: int) -> list[Range]:
        partition = partitions.get(number)
        return held_in_memory(partition) if partition is not None else []

    def is_led(entry: PartitionEntry) -> bool:
        # RocksDB has no rows of the partitions that other brokers lead.
        return catalog.leader_of(entry.number) in (None, node_id)

    for path in [*strays, *live]:
        entries = await env.offload.submit("files", read_entries, env.fs, path)
        entries = [entry for entry in entries if is_led(entry)]
        found = await find_unaccounted(entries, catalog, storage, known, in_journals)
        if found:
            unwanted = ". If these records are not wanted, move the file away"
            raise IdentityError(
                f"{path} is the only copy of {describe(found)}, and table offset_mappings has no "
                "row of them: the stored offsets are older than the data folder or have lost rows; "
                f"put the newest copy back or rebuild them with {rebuild_command(data)}"
                f"{unwanted if path in strays else ''}"
            )


def subtract_held(
    entries: Iterable[PartitionEntry], held: Callable[[PartitionEntry], list[Range] | None]
) -> list[tuple[PartitionEntry, Range]]:
    """Return the offset ranges of a segment file that are nowhere else. Pure.

    `held` returns the ranges of a partition that are elsewhere, or were deleted on purpose; None:
    the partition's topic was deleted."""
    found = []
    for entry in entries:
        ranges = held(entry)
        if ranges is not None:
            for missing in find_uncovered(entry.base_offset, entry.end_offset, sorted(ranges)):
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

    def find_held(entry: PartitionEntry) -> list[Range] | None:
        where = catalog.locate(entry.number)
        if where is None or where.topic_id != entry.topic_id or entry.number not in rows:
            # None: its topic was deleted. A number that SQL never had, or that another topic has:
            # nothing of it is elsewhere.
            return None if where is None and entry.number in gone else []
        row = rows[entry.number]
        start = row.checkpoint.log_start if row.checkpoint is not None else 0
        mapped = [(m.base_offset, m.end_offset) for m in row.mappings]
        # What is below the log start was deleted on purpose.
        return [(0, start), *mapped, *in_journals(entry.number)]

    return subtract_held(entries, find_held)


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
