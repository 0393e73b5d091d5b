"""Values of reading: sources, ranges of offsets, pieces of files, tasks, accounts. Pure.

All values are small and are pickled from the driver to the tasks. Offsets are Kafka's; ranges
[base, end) exclude their end. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
MAX_REQUESTS = 64
"""Maximum number of concurrent requests of a task: half a gigabyte of buffers."""


class PartitionRange(NamedTuple):
    """The offsets [base, end) of a partition."""

    topic: str
    partition: int
    base: int
    end: int


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of records, from the options. At least one of `url` and `bootstrap`.

    `url`: s3://BUCKET/PREFIX, or a folder: a tier's, or a broker's data folder. `bootstrap`:
    HOST:PORT[,HOST:PORT...] for records that are in no segment yet. `requests_at_once`: concurrent
    requests of a task for segments, with 8 MiB each, up to MAX_REQUESTS; 0: the default of the
    location. `security_file`: the file of --command-config, by which brokers are reached; it is
    read where a connection is made, so a plan has no password.
    """

    url: str = ""
    bootstrap: str = ""
    isolation: str = READ_COMMITTED
    fail_on_data_loss: bool = True
    requests_at_once: int = 0
    security_file: str = ""


class Piece(NamedTuple):
    """A partition's batches in one segment file, used for [base, end).

    `place`: index of the catalog's place with the file; `key`: its key there; `start`, `length`:
    the bytes of all of the partition's batches in it, including those outside [base, end);
    `index_start`, `index_length`, `index_checksum`: its sparse index (docs/segment-format.md), at
    absolute positions; `entry_base`: the base offset of the entry, the base of index offsets.
    `entry_end`: end of the entry's offsets; `number`: the partition's number in the file's state
    section; `file_bytes`: the file's size.
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
        """Estimated bytes of [base, end)."""
        offsets = self.entry_end - self.entry_base
        return self.length * (self.end - self.base) // offsets if offsets > 0 else 0


@dataclass(frozen=True, slots=True)
class TaskPart:
    """One range and its pieces, ascending and disjoint. Offsets without a piece are in the broker's
    journals, if there is a broker, or lost."""

    range: PartitionRange
    pieces: tuple[Piece, ...] = ()
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """Input of one task: parts in order, by topic, partition and offset."""

    parts: tuple[TaskPart, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the stored batches; estimated for records read from the broker."""
        return sum(part.size_bytes for part in self.parts)


class OffsetGap(NamedTuple):
    """Offsets [base, end) without a row, and the reason."""

    base: int
    end: int
    reason: str


CONTROL, ABORTED, COMPACTED, LOST, DAMAGED = "control", "aborted", "compacted", "lost", "damaged"
REASONS = (CONTROL, ABORTED, COMPACTED, LOST, DAMAGED)
"""Why an offset has no row. compacted: it is in no batch of a segment that covers it; lost: below
the log start and not readable (only without failOnDataLoss), or discarded with --skip-lost;
damaged: its bytes are (only if damage is left out)."""


@dataclass(slots=True)
class Account:
    """Account of every offset of a range: end - base = rows + all in `gaps`.

    `gaps` has at most `GAPS_LISTED` runs, adjacent ones with the same reason merged; `counts` has
    all.
    """

    range: PartitionRange
    rows: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    gaps: list[OffsetGap] = field(default_factory=list)

    def add_gap(self, base: int, end: int, reason: str) -> None:
        """Add offsets [base, end) without a row; called in offset order."""
        if end <= base:
            return
        self.counts[reason] = self.counts.get(reason, 0) + end - base
        last = self.gaps[-1] if self.gaps else None
        if last is not None and last.end == base and last.reason == reason:
            self.gaps[-1] = last._replace(end=end)
        elif len(self.gaps) < GAPS_LISTED:
            self.gaps.append(OffsetGap(base, end, reason))

    def explain_lost(self, base: int, end: int) -> None:
        """Record that offsets [base, end) without a row were lost rather than compacted."""
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
"""Gaps listed per range: a compacted topic has millions, and a commit record must stay small."""


class SourceError(Exception):
    """The source cannot be read; the text is one sentence for the user of the options or the
    job."""


class InvalidInput(SourceError):
    """A job, its options or its table are wrong: running it again without a change fails again."""


class Unreachable(SourceError):
    """A broker, bucket, catalog or registry does not answer now: running again may help."""


class DataLoss(SourceError):
    """Requested offsets do not exist any more (failOnDataLoss)."""


class Damaged(SourceError):
    """Stored bytes are not what was written; the text names the file."""


class DamagedData(Damaged):
    """Damaged bytes: `where` names file, partition and offset; no row of [base, end) was
    returned."""

    def __init__(self, text: str, topic: str, partition: int, base: int, end: int) -> None:
        super().__init__(text)
        self.topic, self.partition, self.base, self.end = topic, partition, base, end

    def __reduce__(self) -> tuple[type[DamagedData], tuple[str, str, int, int, int]]:
        return type(self), (str(self), self.topic, self.partition, self.base, self.end)


class TaskFailed(SourceError):
    """A Spark task failed; the message is that of its error."""


def exit_code(problem: SourceError, *, started: bool) -> int:
    """Return the exit code of a command: 1 if it failed and can be run again, or data is damaged
    or lost; 2 for wrong input. Before it has `started`, what is none of these failures is wrong."""
    failed = started or isinstance(problem, Unreachable | DataLoss | Damaged | TaskFailed)
    return 2 if isinstance(problem, InvalidInput) or not failed else 1
