"""Request and result messages of the job `compact` (kafkawire.log.segments.compact.job)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.worker_jobs import JobOrigin, Made, Packed, SegmentOutput, StoredDamage


@dataclass(slots=True)
class CompactSource:
    """The part of a segment that belongs to a partition: batches in the bytes [start, start +
    length), which cover the offsets [base_offset, end_offset). `records`: about how many there
    are."""

    path: str
    uuid: bytes
    start: int
    length: int
    base_offset: int
    end_offset: int
    records: int


@dataclass(slots=True)
class PartitionToClean:
    """A partition to clean: `sources` are adjacent, in the order of their offsets. It was cleaned
    before up to `dirty_from`, where one of them begins."""

    number: int
    topic_id: bytes
    topic: str
    index: int
    dirty_from: int
    delete_retention_ms: int
    sources: list[CompactSource]
    state: PartitionState


@dataclass(slots=True)
class CompactArguments:
    """`shares`: packed `PartitionToClean`, by rising numbers. `outputs`: for cleaned batches; the
    next one is begun when one has `segment_bytes`; more than one only for a single share. `rest`:
    for what follows the clean end in the source that contains it. `buffer_bytes` at `load_factor`
    bound the offset map."""

    node_id: int
    created_ms: int
    shares: Packed
    outputs: list[SegmentOutput]
    rest: SegmentOutput
    segment_bytes: int
    buffer_bytes: int
    load_factor: float
    origin: JobOrigin | None = None


@dataclass(slots=True)
class Stats:
    """Statistics of one cleaning, in records and bytes. `keyless` records are removed; `unreadable`
    batches stay whole."""

    read: int = 0
    kept: int = 0
    keyless: int = 0
    unreadable: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0


@dataclass(slots=True)
class CleanedShare:
    """The result of cleaning a share: [first source, `clean_end`) is in the outputs, [clean_end,
    `touched_end`) in the rest; sources from `touched_end` on were not read. clean_end ==
    dirty_from: nothing could be cleaned, and nothing of the partition is in any output."""

    number: int
    clean_end: int
    touched_end: int
    stats: Stats = field(default_factory=Stats)


@dataclass(slots=True)
class CompactResult:
    """`made` in the order of the outputs. Partitions of `damaged` are in none of them."""

    made: list[Made]
    rest: Made
    cleaned: list[CleanedShare] = field(default_factory=list)
    damaged: list[StoredDamage] = field(default_factory=list)
