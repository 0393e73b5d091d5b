"""The words of the Spark side: what is read, where it lies, what became of it. Pure.

All of it is small, pickles, and crosses from the driver to the tasks. Offsets are Kafka's; ranges
[base, end) have their beginning and not their end. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
MAX_REQUESTS = 64
"""Of a task at a time: half a gigabyte of buffers."""


class PartitionRange(NamedTuple):
    """The offsets [base, end) of a partition."""

    topic: str
    partition: int
    base: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from, as the options say it. At least one of `url` and `bootstrap`.

    `url`: s3://BUCKET/PREFIX, or a folder: a tier's, or a broker's data folder. `bootstrap`: the
    Kafka protocol, for what is in no segment yet: HOST:PORT[,HOST:PORT...]. `requests_at_once`:
    of a task for segments, with 8 MiB each, up to MAX_REQUESTS; 0: what is good for where they
    lie.
    """

    url: str = ""
    bootstrap: str = ""
    isolation: str = READ_COMMITTED
    fail_on_data_loss: bool = True
    requests_at_once: int = 0


class Piece(NamedTuple):
    """A partition's batches in one segment file, where they hold for [base, end).

    `place`: which of the catalog's places has the file; `key`: its name there; `start`, `length`:
    the bytes of all of the partition's batches in it, also of those outside [base, end);
    `index_start`, `index_length`, `index_checksum`: its sparse index (docs/segment-format.md), at
    absolute positions; `entry_base`: the base offset of the entry, which index offsets count from.
    `entry_end`: where the entry's offsets end; `number`: the partition's, by which the file's state
    section knows it; `file_bytes`: the file's size.
    """

    place: int
    key: str
    start: int
    length: int
    index_start: int
    index_length: int
    index_checksum: int
    entry_base: int
    base: int
    end: int
    entry_end: int
    number: int = -1
    file_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """About how many of the bytes hold [base, end)."""
        offsets = self.entry_end - self.entry_base
        return self.length * (self.end - self.base) // offsets if offsets > 0 else 0


@dataclass(frozen=True, slots=True)
class Part:
    """One range and the pieces that hold it, rising and apart from each other. What no piece
    covers is in the broker's journals, if there is a broker to ask, or lost."""

    range: PartitionRange
    pieces: tuple[Piece, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Input of one Spark task: parts in order, by topic, partition and offset."""

    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Of the batches as they are stored; what comes from the broker is estimated."""
        return sum(part.size_bytes for part in self.parts)


class OffsetGap(NamedTuple):
    """Offsets [base, end) that gave no row, and why."""

    base: int
    end: int
    reason: str


CONTROL, ABORTED, COMPACTED, LOST, DAMAGED = "control", "aborted", "compacted", "lost", "damaged"
REASONS = (CONTROL, ABORTED, COMPACTED, LOST, DAMAGED)
"""Why an offset gave no row. compacted: it is in no batch of a segment that covers it; lost: below
the log start by now, in nothing that could be read (only without failOnDataLoss), or given up with
--skip-lost; damaged: its bytes are (only where damage is to be left out)."""


@dataclass(slots=True)
class Account:
    """Account of every offset of a range: end - base = rows + all in `gaps`.

    `gaps` has at most `GAPS_LISTED` runs, neighbours of the same reason joined; `counts` has all.
    """

    range: PartitionRange
    rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    gaps: list[OffsetGap] = field(default_factory=list)

    def add_gap(self, base: int, end: int, reason: str) -> None:
        """Offsets [base, end) gave no row; called in the order of offsets."""
        if end <= base:
            return
        self.counts[reason] = self.counts.get(reason, 0) + end - base
        last = self.gaps[-1] if self.gaps else None
        if last is not None and last.end == base and last.reason == reason:
            self.gaps[-1] = last._replace(end=end)
        elif len(self.gaps) < GAPS_LISTED:
            self.gaps.append(OffsetGap(base, end, reason))

    def explain_lost(self, base: int, end: int) -> None:
        """Offsets [base, end) have no row because they were given up, not because of compaction."""
        base, end = max(base, self.range.base), min(end, self.range.end)
        count = min(end - base, self.counts.get(COMPACTED, 0))
        if count <= 0:
            return
        self.counts[LOST] = self.counts.get(LOST, 0) + count
        self.counts[COMPACTED] -= count
        if not self.counts[COMPACTED]:
            del self.counts[COMPACTED]
        gaps: list[OffsetGap] = []
        for gap in self.gaps:
            low, high = max(gap.base, base), min(gap.end, end)
            if gap.reason != COMPACTED or low >= high:
                gaps.append(gap)
                continue
            parts = gap._replace(end=low), OffsetGap(low, high, LOST), gap._replace(base=high)
            gaps += [part for part in parts if part.base < part.end]
        self.gaps = gaps[:GAPS_LISTED]

    @property
    def missing(self) -> int:
        """Return the number of offsets that are not accounted for yet; 0 for a range read to its
        end."""
        return self.range.end - self.range.base - self.rows - sum(self.counts.values())


GAPS_LISTED = 1000
"""Runs kept for each range: a compacted topic has millions, and a commit record must stay small."""


class SourceError(Exception):
    """The source cannot be read; the text is one sentence for the user of the options or the
    job."""


class DataLoss(SourceError):
    """Offsets that were asked for are not there any more (failOnDataLoss)."""


class DamagedData(SourceError):
    """Bytes that are not what was written: `where` names file, partition and offset; nothing of
    [base, end) was given."""

    def __init__(self, text: str, topic: str, partition: int, base: int, end: int) -> None:
        super().__init__(text)
        self.topic, self.partition, self.base, self.end = topic, partition, base, end

    def __reduce__(self) -> tuple[type[DamagedData], tuple[str, str, int, int, int]]:
        return type(self), (str(self), self.topic, self.partition, self.base, self.end)
