"""Statistics of one partition and of all partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafkawire.offsets.catalog.port import StoredStats


@dataclass(frozen=True, slots=True)
class OffsetMetrics:
    """Statistics of all partitions of a registry, in offsets, not bytes."""

    partitions: int
    applied: int  # sum of the next offsets
    pending: int  # assigned and not written yet
    not_checkpointed: int  # written since the last checkpoint: what a recovery must scan


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """Statistics of one partition. `stored` offsets are those below the last segment's end; -1: no
    such time."""

    number: int
    log_start: int
    high_watermark: int
    next_offset: int
    checkpoint_offset: int
    segments: int
    records_in_segments: int
    bytes_in_segments: int
    last_activity_ms: int

    @property
    def readable(self) -> int:
        """Number of offsets that readers can read; after compaction not each has a record."""
        return self.high_watermark - self.log_start

    @property
    def uncommitted(self) -> int:
        """Number of offsets written but not readable yet."""
        return self.next_offset - self.high_watermark

    @property
    def not_checkpointed(self) -> int:
        """Bytes of journals that a recovery would have to scan."""
        return max(0, self.next_offset - max(self.checkpoint_offset, self.log_start))


def partition_stats(
    stored: StoredStats, log_start: int, high_watermark: int, next_offset: int
) -> PartitionStats:
    """Combine the statistics of the storage and of the log."""
    return PartitionStats(
        stored.number,
        log_start,
        high_watermark,
        next_offset,
        stored.checkpoint_offset,
        stored.mappings,
        stored.records,
        stored.size_bytes,
        stored.last_activity_ms,
    )


def total_lag(positions: Iterable[tuple[int, int]]) -> int:
    """Return the total lag of readers, from (position, high watermark) pairs."""
    return sum(max(0, high_watermark - position) for position, high_watermark in positions)
