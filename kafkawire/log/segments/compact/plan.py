"""Which compacted partitions are due to be cleaned: pure decisions (Kafka: LogCleanerManager).

A partition is clean as far as the cleaner wrote its leading segments, according to their class.
What follows is dirty, up to the first segment with a record younger than `min.compaction.lag.ms`;
batches in the journals are never checked. It is due when its dirty part has more than
`min.cleanable.dirty.ratio` of the bytes, or when the first record of that is older than
`max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.partition.partition import Partition
from kafkawire.log.segments.store.grouping import LARGE_BYTES, group, retention_class
from kafkawire.offsets.catalog.port import SegmentRange

NEVER = 1 << 62
UNBOUNDED_MS = (1 << 63) - 1
MAX_SHARES = 1000
"""Partitions of one job: packing their states takes milliseconds."""
SHARED_BYTES = 64 << 20
"""The most bytes of partitions cleaned in one job into one segment, as in the cutter."""
MAX_OUTPUTS = 1000
"""Most segments that one partition is written to: rows of one transaction."""


@dataclass(slots=True)
class Dirty:
    """The cleanable part of a partition: segment rows [0, stop), those from `first` on dirty."""

    partition: Partition
    first: int
    stop: int
    clean_bytes: int
    dirty_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.clean_bytes + self.dirty_bytes

    @property
    def ratio(self) -> float:
        """The dirty bytes among them."""
        return self.dirty_bytes / max(1, self.size_bytes)

    def mappings(self) -> list[SegmentRange]:
        """Return its rows as SQL has them."""
        partition = self.partition
        return [partition.segments.mapping(partition.number, at) for at in range(self.stop)]


def dirty_part(
    partition: Partition, is_clean: Callable[[int], bool | None], now_ms: int
) -> tuple[Dirty | None, int]:
    """Return (what can be cleaned now or None, the time (ms) from which more can without a further
    cut).

    `is_clean` returns it for the id of a segment; None: there is no such readable segment.
    """
    segments, lag_ms = partition.segments, partition.config.min_compaction_lag_ms
    first = stop = 0
    ids = segments.segment
    # The leading segments of the cleaner are clean; what follows is dirty, whatever wrote it.
    while first < len(ids) and is_clean(ids[first]):
        first += 1
    stop, more_ms = first, NEVER
    while stop < len(ids) and is_clean(ids[stop]) is not None:
        # A record is too young: what follows waits too, since a part must be contiguous.
        if lag_ms > 0 and segments.newest[stop] > now_ms - lag_ms:
            more_ms = segments.newest[stop] + lag_ms
            break
        stop += 1
    if stop == first:
        return None, more_ms
    clean_bytes, dirty_bytes = sum(segments.length[:first]), sum(segments.length[first:stop])
    return Dirty(partition, first, stop, clean_bytes, dirty_bytes), more_ms


def due_ms(dirty: Dirty, first_ms: int | None) -> int:
    """Return when to clean it (ms): 0 is now. `first_ms`: the time of its first dirty record, if
    `max.compaction.lag.ms` is set."""
    config = dirty.partition.config
    # Now, by ratio; else when the first record has reached the lag.
    if dirty.ratio > config.min_cleanable_dirty_ratio:
        return 0
    if first_ms is None or first_ms <= 0:
        return NEVER
    return min(NEVER, first_ms + config.max_compaction_lag_ms)


def asks_for_age(config: TopicConfig) -> bool:
    """Return whether the age of the dirty part matters."""
    return config.max_compaction_lag_ms < UNBOUNDED_MS


def batches(found: Iterable[Dirty], alone: set[int]) -> list[tuple[str, list[Dirty]]]:
    """Yield the partitions that are cleaned in one job, and their class, the dirtiest first.

    Large ones and those of `alone` have a job each.
    """
    jobs: list[tuple[str, list[Dirty]]] = []
    small: dict[int, Dirty] = {}
    for dirty in sorted(found, key=lambda dirty: dirty.ratio, reverse=True):
        number = dirty.partition.number
        # Large ones may be written to several segments, which only a job for one partition does.
        if dirty.size_bytes >= LARGE_BYTES or number in alone:
            jobs.append((retention_class(dirty.partition.config, cleaned=True), [dirty]))
        else:
            small[number] = dirty
    kinds = [
        (number, retention_class(small[number].partition.config, cleaned=True), dirty.size_bytes)
        for number, dirty in sorted(small.items())
    ]
    for kind, numbers in group(kinds, SHARED_BYTES):
        for at in range(0, len(numbers), MAX_SHARES):
            jobs.append((kind, [small[number] for number in numbers[at : at + MAX_SHARES]]))
    return jobs
