"""The offsets of many partitions: recovery, assignment, checkpoints, statistics.

`OffsetRegistry` has a manager for each partition; `OffsetAssigner` assigns offsets of any of them.
After a crash the next offset is the maximum (`recovered_next_offset`) of the last checkpoint, the
segments, and a scan of the records written since. For programs that number records of their own
(docs/offsets.md); the broker's partitions have their own managers, which
kafkawire.log.recovery.restore recovers by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog, StoredStats
from kafkawire.offsets.manager import FIRST_OFFSET, PartitionOffsetManager
from kafkawire.offsets.types import OffsetRange


def recovered_next_offset(row: PartitionRow, scanned_end: int = FIRST_OFFSET) -> int:
    """Return the first unused offset; `scanned_end`: the end of the scanned records."""
    checkpoint = FIRST_OFFSET if row.checkpoint is None else row.checkpoint.next_offset
    segments = row.mappings[-1].end_offset if row.mappings else FIRST_OFFSET
    return max(checkpoint, segments, scanned_end)


class OffsetRegistry:
    """Managers by partition number. Created by `recover`, or empty."""

    def __init__(self, node_id: int = 1) -> None:
        self._node_id = node_id
        self._managers: dict[int, PartitionOffsetManager] = {}
        self._log_starts: dict[int, int] = {}
        self._saved: dict[int, int] = {}

    @classmethod
    async def recover(
        cls,
        storage: SegmentCatalog,
        numbers: Iterable[int],
        scanned_ends: Mapping[int, int] | None = None,
        node_id: int = 1,
    ) -> OffsetRegistry:
        """Recover the partitions after a crash or a clean stop. `scanned_ends`: number -> end of
        the scanned records."""
        registry = cls(node_id)
        for row in await storage.load_partitions(list(numbers)):
            end = (scanned_ends or {}).get(row.number, FIRST_OFFSET)
            registry.add(row.number, recovered_next_offset(row, end))
            if row.checkpoint is not None:
                registry._log_starts[row.number] = row.checkpoint.log_start
                registry._saved[row.number] = row.checkpoint.next_offset
        return registry

    def add(self, number: int, next_offset: int = FIRST_OFFSET) -> PartitionOffsetManager:
        """Add a partition. Raises ValueError if it exists."""
        if number in self._managers:
            raise ValueError(f"partition {number} is registered already")
        made = PartitionOffsetManager(next_offset)
        self._managers[number] = made
        return made

    def remove(self, number: int) -> None:
        """Remove a partition; its offsets must not be assigned again."""
        for known in (self._managers, self._log_starts, self._saved):
            known.pop(number, None)

    def __getitem__(self, number: int) -> PartitionOffsetManager:
        """Return the manager of a partition. Raises KeyError if it is not registered."""
        return self._managers[number]

    def __contains__(self, number: int) -> bool:
        return number in self._managers

    def __iter__(self) -> Iterator[int]:
        return iter(self._managers)

    def __len__(self) -> int:
        return len(self._managers)

    async def checkpoint(self, storage: SegmentCatalog, log_position: int = 0) -> int:
        """Store what has moved since the last one, in one transaction; how many partitions."""
        # As of now: while it is stored, more may be applied.
        moved = {
            number: manager.next_offset
            for number, manager in self._managers.items()
            if manager.next_offset != self._saved.get(number)
        }
        rows = [
            PartitionCheckpoint(number, next_offset, self._log_starts.get(number, FIRST_OFFSET))
            for number, next_offset in moved.items()
        ]
        await storage.save_checkpoint(Checkpoint(self._node_id, log_position, rows))
        # Not before: after a failure the next checkpoint has them again.
        self._saved.update(moved)
        return len(moved)

    def metrics(self) -> OffsetMetrics:
        managers = self._managers.values()
        applied = sum(manager.next_offset for manager in managers)
        return OffsetMetrics(
            partitions=len(managers),
            applied=applied,
            pending=sum(manager.pending for manager in managers) - applied,
            not_checkpointed=sum(
                manager.next_offset - self._saved.get(number, FIRST_OFFSET)
                for number, manager in self._managers.items()
            ),
        )


class OffsetAssigner:
    """Assigns offsets of the partitions in a registry. Raises KeyError for an unknown one."""

    __slots__ = ("_registry",)

    def __init__(self, registry: OffsetRegistry) -> None:
        self._registry = registry

    def assign(self, number: int) -> int:
        """Assign the next offset of a partition. It becomes valid with `applied`."""
        return self._registry[number].assign(1)

    def assign_batch(self, number: int, count: int) -> OffsetRange:
        """Assign the next `count` >= 1 offsets of a partition."""
        base = self._registry[number].assign(count)
        return OffsetRange(base, base + count)

    def applied(self, number: int, end: int) -> None:
        """All offsets of the partition below `end` are written."""
        self._registry[number].apply(end)

    def failed(self, number: int) -> int:
        """A write failed: revoke assigned offsets that were not applied; return how many."""
        return self._registry[number].rollback()

    def next_offset(self, number: int) -> int:
        """Return the first offset of the partition that no written record has."""
        return self._registry[number].next_offset


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
        """Number of offsets that a recovery would have to scan."""
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
