"""The disk, metadata and memory that a load takes, before it is there. Pure.

The model of cuts and merges is that of kafkawire.tiering.cost.estimate. Records are in the journals
until they are cut into segments, for at most twice `journal.roll.ms`. Segments are kept for
`retention.ms`, with a remote tier for `local.retention.ms`, and a little longer: until the next
check, until the newest record of a segment expires, and `log.segment.delete.delay.ms`. The metadata
has a row for each segment and one for each partition in it, as long as the records exist, on the
disk or in the tier.

A test compares the sizes with those of a broker in virtual time, and the bytes of rows with those
in a file of SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kafkawire.codec.segment.index import BLOCK_BYTES, ENTRY_BYTES
from kafkawire.log.journal.format import BATCH_HEAD_BYTES
from kafkawire.tiering.cost.estimate import (
    DAY_S,
    CutSegments,
    Machine,
    TopicLoad,
    cut_every_s,
    merges_done,
    segments_of_cut,
)
from kafkawire.tiering.cost.merge_model import Merges
from kafkawire.tiering.cost.prices import Prices

RECORD_HEAD_BYTES = 9
"""The fields of a record next to key and value, of a few bytes each."""
INDEX_PART = ENTRY_BYTES / BLOCK_BYTES
"""Bytes of the sparse index for each byte of small batches."""

# Bytes of rows in SQLite with their indexes and checksums, the latter with a copy of all texts.
EMPTY_BYTES = 300 << 10
WAL_BYTES = 4 << 20
"""The write-ahead log before a checkpoint: 1,000 pages."""
TOPIC_BYTES = 260
PARTITION_ROWS = 4
PARTITION_BYTES = 600
"""Of a partition, its checkpoint with two producers, its totals and its upload progress."""
SEGMENT_BYTES = 240
MAPPING_BYTES = 120
OBJECT_BYTES = 140
OBJECT_RANGE_BYTES = 48
PAGE_BYTES = 4096

START_MEMORY_BYTES = 56 << 20
WORKER_MEMORY_BYTES = 32 << 20
"""The process that cuts and merges."""
TIER_MEMORY_BYTES = 64 << 20
"""The storage process, without the block cache."""
LOADED_BYTES = 4096
"""A partition in memory."""
LOADED_MAPPING_BYTES = 100


@dataclass(frozen=True, slots=True)
class Sizes:
    """`segment_bytes` and what contains it are of the time when retention deletes as much as is
    produced; -1: growing without limit, and then `segments` and rows are those after a month.
    `written_a_day`: bytes written to the disk; `planned_bytes`: the disk to buy."""

    bytes_a_day: float
    written_a_day: float
    journal_bytes: float
    segment_bytes: float
    metadata_bytes: float
    disk_bytes: float
    planned_bytes: float
    segments: float
    rows_per_partition: float
    row_bytes_per_partition: float
    memory_bytes: float
    most_memory_bytes: float


def stored_bytes(records: float, record_bytes: float, batch_records: float, ratio: float) -> float:
    """Return the bytes of records in batches; `ratio`: compressed by."""
    heads = RECORD_HEAD_BYTES * records
    return (records * record_bytes + heads) / ratio + BATCH_HEAD_BYTES * records / batch_records


@dataclass(slots=True)
class _Kept:
    """Totals over the segments of a cut."""

    local_bytes: float = 0.0
    merged_bytes_per_s: float = 0.0
    segments: float = 0.0
    mappings: float = 0.0
    row_bytes: float = 0.0
    unending: bool = False


def sizes(loads: Sequence[TopicLoad], machine: Machine, prices: Prices) -> Sizes:
    """Return the sizes for loads that share journals, segments and metadata; some have traffic."""
    flowing = [load for load in loads if load.bytes_per_s > 0]
    rate = sum(load.bytes_per_s for load in flowing)
    full_s = machine.journal_bytes / rate
    every_s = cut_every_s(flowing, machine) or min(full_s, machine.journal_roll_ms / 1000)
    kept = _Kept()
    for made in segments_of_cut(flowing, every_s):
        _add(made, every_s, machine, prices, kept)
    partitions = sum(load.partitions for load in loads)
    row_bytes = len(loads) * TOPIC_BYTES + partitions * PARTITION_BYTES + kept.row_bytes
    metadata_bytes = EMPTY_BYTES + WAL_BYTES + row_bytes
    journal_bytes = machine.journal_bytes * journals(flowing, machine)
    used = journal_bytes + kept.local_bytes + metadata_bytes
    planned = (used + machine.recycle_bytes) * 100 / machine.warn_percent
    tiered = any(load.copies for load in flowing)
    memory = (
        START_MEMORY_BYTES
        + WORKER_MEMORY_BYTES
        + (TIER_MEMORY_BYTES if tiered else 0)
        + min(partitions, machine.max_loaded) * LOADED_BYTES
        + kept.mappings * LOADED_MAPPING_BYTES * min(1.0, machine.max_loaded / partitions)
    )
    return Sizes(
        bytes_a_day=rate * DAY_S,
        # Into a journal, into a segment, and by merges.
        written_a_day=(2 * rate + kept.merged_bytes_per_s) * DAY_S,
        journal_bytes=journal_bytes,
        segment_bytes=-1 if kept.unending else kept.local_bytes,
        metadata_bytes=metadata_bytes,
        disk_bytes=-1 if kept.unending else used,
        planned_bytes=-1 if kept.unending else planned,
        segments=kept.segments,
        rows_per_partition=PARTITION_ROWS + kept.mappings / partitions,
        row_bytes_per_partition=row_bytes / partitions,
        memory_bytes=memory,
        most_memory_bytes=memory + machine.hot_bytes + machine.buffer_bytes,
    )


def journals(flowing: Sequence[TopicLoad], machine: Machine) -> int:
    """Return the number of journal files: the active one, the next one, and those that are hot or
    wait for a cut. A journal takes its whole size from its start on."""
    full_s = machine.journal_bytes / sum(load.bytes_per_s for load in flowing)
    roll_s = machine.journal_roll_ms / 1000
    every_s = cut_every_s(flowing, machine)
    # They are rolled by age, not because they are full.
    if full_s >= min(every_s or roll_s, roll_s):
        return 2 if every_s else 3
    waiting_s = every_s or roll_s
    hot = machine.hot_bytes / machine.journal_bytes
    return 3 + ceil(min(hot, waiting_s / full_s))


def _add(made: CutSegments, every_s: float, machine: Machine, prices: Prices, total: _Kept) -> None:
    load = made.load
    merges = [one for one, _ in merges_done(made, every_s, machine, prices)]
    local_ms = load.local_ms if load.copies else load.retention_ms
    total.unending |= local_ms < 0
    kept_s = _seconds(load.retention_ms)
    late_s = (machine.check_interval_ms + machine.file_delete_delay_ms) / 1000
    span_s = every_s / made.count / (merges[-1].per_cut if merges else 1 / made.count)
    bytes_per_s = made.count * made.size_bytes / every_s
    merged_per_s = sum(one.per_cut * one.size_bytes for one in merges) * made.count / every_s
    # A segment is kept until its newest record expires.
    local_s = _seconds(local_ms) + late_s + (span_s if kept_s > span_s else 0)
    total.local_bytes += bytes_per_s * (1 + INDEX_PART) * local_s
    # The inputs of a merge stay for the delay.
    total.local_bytes += merged_per_s * machine.file_delete_delay_ms / 1000
    total.merged_bytes_per_s += merged_per_s
    segments = _alive(made, merges, every_s, kept_s + late_s)
    total.segments += segments
    total.mappings += segments * made.partitions
    total.row_bytes += segments * segment_rows(made.partitions, load.copies)


def _alive(made: CutSegments, merges: Sequence[Merges], every_s: float, kept_s: float) -> float:
    """Return how many segments have records at a time: those that wait for each kind of merge, and
    the results of the last one."""
    cut = made.count * max(1.0, kept_s / every_s)
    if not merges:
        return cut
    return min(cut, sum(one.inputs for one in merges) + merges[-1].per_cut * cut)


def segment_rows(partitions: float, in_tier: bool) -> float:
    """Return the bytes of the rows of a segment of so many partitions, and of its object."""
    rows = SEGMENT_BYTES + MAPPING_BYTES * partitions
    if not in_tier:
        return rows
    row = OBJECT_BYTES + OBJECT_RANGE_BYTES * partitions
    # A row that is larger than a quarter of a page has pages that it does not share.
    if row > PAGE_BYTES / 4:
        row = PAGE_BYTES * ceil(row / PAGE_BYTES) + PAGE_BYTES / 8
    return rows + row


def _seconds(retention_ms: int) -> float:
    """Return a retention in seconds; of an unlimited one a month."""
    return 30 * DAY_S if retention_ms < 0 else retention_ms / 1000
