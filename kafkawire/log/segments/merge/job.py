"""The job `rewrite`: write the kept ranges of several segments into one.

Merges small segments and removes dead ranges; batches stay the same byte for byte, and are never
divided: one that reaches into a kept range is kept whole. Every batch is checked. A partition with
a bad one is left out and reported, the others continue; an input with damaged sections fails the
job. Memory: the directories of the inputs, the sparse index of the output, and the buffers of
SegmentWriter; the segments are read in the page cache.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct

from kafkawire.codec.batches import PREFIX_BYTES
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    DamagedBatch,
    PartitionEntry,
    PartitionState,
    SparseIndex,
)
from kafkawire.codec.segment.lost import LostRange, select_overlapping
from kafkawire.codec.segment.stored import Step, add_step, select_steps
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import (
    JobResult,
    Keep,
    Pace,
    RewriteArguments,
    StoredDamage,
    unpack_all,
)
from kafkawire.log.segments.file.open import DamagedBlock, SegmentFile
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter

_BATCH = Struct(">qi11xi")
"""Base offset, length, last delta."""


class _Source:
    """One input: its file, its entries and states by number."""

    __slots__ = ("entries", "file", "states")

    def __init__(self, file: SegmentFile, pace: Pace) -> None:
        self.file = file
        self.entries = {entry.number: entry for entry in file.directory}
        self.states = file.states(pace)


def run(fs: FileSystem, arguments: RewriteArguments, pace: Pace) -> JobResult:
    """Run the job. ValueError for ranges that are not in the inputs or not adjacent."""
    sources: list[_Source] = []
    keeps: dict[int, list[tuple[_Source, Keep]]] = {}
    result = JobResult([])
    try:
        for item in arguments.inputs:
            # All inputs first: a damaged section fails the job before anything is written.
            source = _Source(SegmentFile(fs, item.path, item.uuid, pace), pace)
            sources.append(source)
            for keep in unpack_all(item.keeps):
                keeps.setdefault(keep.number, []).append((source, keep))
        # A wrong plan must not write a segment with a gap.
        for number, parts in keeps.items():
            _check(number, parts)
        made_by = arguments.node_id, arguments.created_ms, JobOrigins(arguments.origin)
        with SegmentWriter(fs, arguments.output, *made_by) as writer:
            for number in sorted(keeps):
                damage = _copy(writer, keeps[number], pace)
                if damage is not None:
                    result.damaged.append(damage)
            result.made.append(writer.finish())
    finally:
        for source in sources:
            source.file.close()
    return result


def _check(number: int, parts: list[tuple[_Source, Keep]]) -> None:
    for source, keep in parts:
        entry = source.entries.get(number)
        if entry is None:
            raise ValueError(f"{source.file.path} holds no records of partition {number}")
        if not entry.base_offset <= keep.from_offset <= keep.to_offset <= entry.end_offset:
            raise ValueError(
                f"offsets {keep.from_offset}-{keep.to_offset} of partition {number} are not in "
                f"{source.file.path}, which has {entry.base_offset}-{entry.end_offset}"
            )
    for (_, one), (_, other) in pairwise(parts):
        if one.to_offset != other.from_offset:
            raise ValueError(
                f"of partition {number}, offsets up to {one.to_offset} and from "
                f"{other.from_offset} on do not join"
            )


def _copy(
    writer: SegmentWriter, parts: list[tuple[_Source, Keep]], pace: Pace
) -> StoredDamage | None:
    last, keep = parts[-1]
    entry = last.entries[keep.number]
    topic = (entry.topic_id, entry.topic, entry.index)
    writer.start_partition(keep.number, topic, parts[0][1].from_offset, _state(parts))
    for source, keep in parts:
        damage = _copy_range(writer, source, keep, pace)
        if damage is not None:
            writer.abandon()
            return damage
    writer.end_partition(parts[-1][1].to_offset)
    return None


def _state(parts: list[tuple[_Source, Keep]]) -> PartitionState:
    source, keep = parts[-1]
    state = source.states.get(keep.number) or PartitionState()
    start = parts[0][1].from_offset
    # Each input has its own aborted transactions; those that end before the kept range are not
    # needed.
    aborted = {
        entry
        for each, _ in parts
        for entry in (each.states.get(keep.number) or PartitionState()).aborted
        if entry.marker >= start
    }
    return PartitionState(
        # 0 for a partition that is not in memory; then the input's counts.
        max(keep.log_start, state.log_start),
        state.leader_epochs,
        state.producers,
        sorted(aborted, key=lambda entry: (entry.marker, entry.producer_id)),
        _collect_lost_ranges(parts),
        _collect_store_times(parts),
    )


def _collect_store_times(parts: list[tuple[_Source, Keep]]) -> list[Step]:
    """Return when the kept batches were stored, as far as the inputs list it."""
    found: list[Step] = []
    for source, keep in parts:
        state = source.states.get(keep.number) or PartitionState()
        for step in select_steps(state.stored, keep.from_offset, keep.to_offset):
            add_step(found, *step)
    return found


def _collect_lost_ranges(parts: list[tuple[_Source, Keep]]) -> list[LostRange]:
    """Return the lost ranges of the kept offsets, as the inputs list them."""
    ranges = [
        lost
        for source, keep in parts
        if keep.number in source.states
        for lost in source.states[keep.number].lost
    ]
    return select_overlapping(ranges, parts[0][1].from_offset, parts[-1][1].to_offset)


def _copy_range(
    writer: SegmentWriter, source: _Source, keep: Keep, pace: Pace
) -> StoredDamage | None:
    """Write the batches of one partition in one input that reach into the kept range."""
    entry, file = source.entries[keep.number], source.file
    position = entry.start
    try:
        index = file.index(entry, pace)
        start, stop = _byte_range(file, entry, index, keep, pace)
        for at, part in file.sound(entry, index, start, stop, pace):
            position = at
            writer.write([part])
    except DamagedBlock as failure:
        return StoredDamage(keep.number, failure.offset, file.path, failure.position, str(failure))
    except DamagedBatch as failure:
        return StoredDamage(
            keep.number, failure.offset, file.path, position + failure.at, str(failure)
        )
    # The index is damaged: no batch of the partition can be found.
    except FormatError as failure:
        return StoredDamage(keep.number, keep.from_offset, file.path, position, str(failure))
    return None


def _byte_range(
    file: SegmentFile, entry: PartitionEntry, index: SparseIndex, keep: Keep, pace: Pace
) -> tuple[int, int]:
    """Return the positions of the batches that reach into [from_offset, to_offset)."""
    start, stop = entry.start, entry.start + entry.length
    # Nothing is kept of this input, but its range is covered.
    if keep.from_offset == keep.to_offset:
        return start, start
    if keep.from_offset > entry.base_offset:
        start, _ = seek(file, entry, index, keep.from_offset, pace)
    if keep.to_offset < entry.end_offset:
        stop, base = seek(file, entry, index, keep.to_offset, pace)
        # The output would end within a batch, whose other offsets are in the next segment.
        if base < keep.to_offset:
            raise ValueError(
                f"offset {keep.to_offset} of partition {keep.number} lies within a batch of "
                f"{file.path}, and batches are never split"
            )
    return start, stop


def seek(
    file: SegmentFile, entry: PartitionEntry, index: SparseIndex, offset: int, pace: Pace
) -> tuple[int, int]:
    """Return (position, base offset) of the first batch that reaches to `offset` or begins after
    it.

    If none does, the end of the block that would have it, and `offset`.

    Raises as SegmentFile.sound.
    """
    at, length = index.span(offset, 0)
    for position, part in file.sound(entry, index, at, at + length, pace):
        within = 0
        while within < len(part):
            base, size, delta = _BATCH.unpack_from(part, within)
            if base + delta >= offset:
                return position + within, base
            within += size + PREFIX_BYTES
    return at + length, offset
