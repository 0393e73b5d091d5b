"""The port to what is stored of offsets: checkpoints, segments, and which offsets lie in which.

`SegmentCatalog` is implemented in memory (`catalog.memory`), in the metadata's database
(`sql.storage`) and in RocksDB (`kv.rocksdb`); tests/offsets/catalog checks each of them for
the same behaviour. The path of a produce never calls
it: the log does, for what is already committed. A *mapping* is the row of one partition in one
segment; the mappings of a partition are contiguous (each begins where the one before ended),
whatever compaction has left inside of them. An *object* is a segment file in the remote tier; a
segment has one finished object at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, Protocol

from kafkawire.codec.format_errors import FormatError
from kafkawire.metadata.checkpoint import (
    Checkpoint,
    PartitionCheckpoint,
)

NEVER = 1 << 62
"""As `due_ms`: retention need not check the mapping."""
EVERYTHING = 1 << 62
"""As a log start in `remove_mappings`: the partition's topic is deleted, nothing of it stays."""

STARTED, LIVE, DELETING = 0, 1, 2
"""States of a segment: its file is being written and no one reads it; it is read; nothing points
to it any more and its file may go after `delete_after_ms`, once no one reads it."""

COPY_STARTED, COPY_FINISHED, DELETE_STARTED = 0, 1, 2
"""States of an object (Kafka's RemoteLogSegmentState): it is being uploaded and no one reads it; it
is read; it may go after `delete_after_ms`. Its row goes when it is gone."""

CURRENT, BEING_LEFT, LEFT = 0, 1, 2
"""States of a tier: objects are uploaded there; they are moved away from there; none is there."""


class StaleSwap(Exception):
    """The rows a swap was planned on have changed meanwhile. Nothing was done: plan again."""


class SegmentRange(NamedTuple):
    """One partition's share of one segment: offsets [base_offset, end_offset) lie in the bytes
    [start, start + length) of its file, their sparse index at `index_start`."""

    number: int  # of the partition
    segment_id: int
    base_offset: int
    end_offset: int
    start: int
    length: int
    index_start: int
    index_length: int
    index_checksum: int
    max_timestamp: int  # ms, -1: none
    batches: int
    records: int
    due_ms: int = NEVER  # when retention should check it


@dataclass(slots=True)
class SegmentRow:
    """One segment file. `id` is given by `start_segments` and never again. Where it is `local` it
    has a file here; where it has an `object`, that is the uuid of its finished one, in `tier`."""

    uuid: bytes
    node_id: int
    created_ms: int
    id: int = 0
    state: int = STARTED
    size_bytes: int = 0  # of the file
    live_bytes: int = 0  # sum of `length` of its mappings; kept by the storage
    generation: int = 0  # 0: cut from journals; a rewrite: 1 + that of its newest input
    retention_class: str = ""
    max_timestamp: int = -1
    delete_after_ms: int = 0  # of a DELETING one
    local: bool = True
    object: bytes = b""
    tier: int = 0


@dataclass(slots=True)
class PartitionRow:
    """The stored offsets of one partition. `mappings` in order of their offsets; up to its dispatch
    offset its segments have been registered for upload, up to its commit offset uploaded."""

    number: int
    checkpoint: PartitionCheckpoint | None = None
    mappings: list[SegmentRange] = field(default_factory=list)
    dispatch_offset: int = 0
    commit_offset: int = 0


@dataclass(slots=True)
class ObjectRow:
    """One object. `ranges`: `pack_ranges` of the mappings of its segment when it was uploaded."""

    uuid: bytes
    segment_id: int
    node_id: int
    tier: int = 0
    state: int = COPY_STARTED
    size_bytes: int = 0
    created_ms: int = 0
    delete_after_ms: int = 0  # of a DELETE_STARTED one
    ranges: bytes = b""


@dataclass(slots=True)
class TierRow:
    """A place for objects, by its URL."""

    id: int
    url: str
    state: int = CURRENT
    created_ms: int = 0


@dataclass(slots=True)
class Swap:
    """One change of what is read: `finished` segments (STARTED until now; size_bytes and
    max_timestamp as written) with their mappings, in place of the `removed` mappings. A segment
    left without mappings is DELETING from then on, its file to be kept until `delete_after_ms`."""

    finished: list[tuple[SegmentRow, list[SegmentRange]]]
    removed: list[SegmentRange] = field(default_factory=list)
    checkpoints: list[PartitionCheckpoint] = field(default_factory=list)
    delete_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredStats:
    """One partition in numbers. Records and bytes are those in segments; -1: never checkpointed,
    never cut."""

    number: int
    checkpoint_offset: int = -1
    log_start: int = 0
    mappings: int = 0
    records: int = 0
    size_bytes: int = 0
    created_ms: int = -1  # of its first cut
    last_activity_ms: int = -1  # of the newest checkpoint or cut


@dataclass(frozen=True, slots=True)
class StorageMetrics:
    """The whole storage in numbers. Counting checks every row: for people, not for the log."""

    checkpoints: int
    mappings: int
    segments: dict[int, int]  # state -> how many
    size_bytes: int
    live_bytes: int


_RANGE = Struct("<Qqq")
Range = tuple[int, int, int]
"""(partition number, base offset, end offset)."""


def pack_ranges(ranges: Iterable[Range]) -> bytes:
    """As `ObjectRow.ranges`: 24 bytes each."""
    return b"".join([_RANGE.pack(*each) for each in ranges])


def unpack_ranges(packed: bytes) -> list[Range]:
    """Unpack offset ranges. FormatError."""
    if len(packed) % _RANGE.size:
        raise FormatError(f"the ranges of an object have {len(packed)} bytes, no multiple of 24")
    return list(_RANGE.iter_unpack(packed))


class CheckpointCatalog(Protocol):
    """How far the state of one broker's partitions is known. Promises: see SegmentCatalog."""

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store the log position and the given partitions."""
        ...

    async def load_log_position(self, node_id: int) -> int:
        """The last log position stored for a broker; 0: there is none."""
        ...

    async def load_partitions(self, numbers: Sequence[int]) -> list[PartitionRow]:
        """A row for each of the numbers, in their order; empty where nothing is stored."""
        ...


class RangeCatalog(Protocol):
    """Segments, and which offsets of which partitions lie in them. Promises: see SegmentCatalog."""

    async def start_segments(self, rows: Sequence[SegmentRow]) -> list[int]:
        """Insert segments that will be written, as STARTED; their ids."""
        ...

    async def finish_segments(self, swap: Swap) -> None:
        """Make the finished segments LIVE and exchanges the mappings. StaleSwap when a removed
        mapping is not there as given, an added one covers offsets that are taken, or a finished
        segment is not STARTED."""
        ...

    async def remove_mappings(
        self, below: Mapping[int, int], delete_after_ms: int = 0
    ) -> list[SegmentRow]:
        """Drop the mappings that end at or below the log start of their partition (number ->
        log start); for EVERYTHING all that is stored of it. The segments this touched, as they
        are now: one without mappings is DELETING."""
        ...

    async def drop_segments(self, ids: Sequence[int]) -> None:
        """Forget segments whose files are gone: STARTED ones that were given up, DELETING ones.
        A segment that still has mappings is left alone."""
        ...

    async def segments(
        self, node_id: int, states: Sequence[int], limit: int, after_id: int = 0
    ) -> list[SegmentRow]:
        """Up to `limit` segments of a broker in these states, by id, from above `after_id`."""
        ...

    async def segments_by_id(self, ids: Sequence[int]) -> list[SegmentRow]:
        """Those of the segments that are there, by id."""
        ...

    async def segment_mappings(self, segment_ids: Sequence[int]) -> list[SegmentRange]:
        """All mappings into these segments, by segment, partition and offset."""
        ...

    async def mappings(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[SegmentRange]]:
        """For each (number, from, to) the mappings that cover an offset of [from, to), in order;
        one round trip for all."""
        ...

    async def expiring(self, before_ms: int, limit: int) -> list[SegmentRange]:
        """Up to `limit` mappings with due_ms < before_ms of partitions this broker leads, the
        most overdue first. None of deleted topics: these are `orphans`."""
        ...

    async def set_due(self, numbers: Sequence[int] | None, due_ms: int) -> None:
        """Set due_ms of all mappings of these partitions; None: of all partitions."""
        ...

    async def orphans(self, limit: int) -> list[int]:
        """Partitions of deleted topics that this broker led and of which something is stored, up
        to `limit`. An answer may be incomplete (a bounded part of the store is checked); asking
        again goes on."""
        ...


class ObjectCatalog(Protocol):
    """Objects in the remote tier and what they are the copies of. Promises: see SegmentCatalog."""

    async def start_objects(
        self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]
    ) -> list[bytes]:
        """Insert objects as COPY_STARTED and raises the dispatch offsets (partition number ->
        offset); the uuids of those entered. Left out are those whose segment is not LIVE and
        local, or has a finished object in the same tier already."""
        ...

    async def finish_objects(
        self, uuids: Sequence[bytes], committed: Mapping[int, int]
    ) -> list[SegmentRow]:
        """Make objects COPY_FINISHED and those of their segments; the segments, by id, as they
        are then. Left out, and as they were, are objects that are not COPY_STARTED, and those
        whose segment is not LIVE any more or has a finished object in the same tier already; of
        one in another tier the old object is DELETE_STARTED. The commit offsets are raised only
        if none was left out: else the caller must compute them again."""
        ...

    async def delete_objects(self, uuids: Sequence[bytes], delete_after_ms: int) -> None:
        """Make objects DELETE_STARTED, whatever they are, but for those that are so already; a
        segment that has one of them as its object has none from then on."""
        ...

    async def condemn_objects(self, rows: Sequence[ObjectRow]) -> None:
        """Insert objects that are no segment's as DELETE_STARTED, with their `delete_after_ms`: a
        scrub found them without a row. Those that have one by now are left as they are."""
        ...

    async def drop_objects(self, uuids: Sequence[bytes]) -> None:
        """Forget objects that are gone. Those that are not DELETE_STARTED are left alone."""
        ...

    async def objects(
        self, node_id: int, states: Sequence[int], limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        """Up to `limit` objects of a broker in these states, by uuid, from above `after`."""
        ...

    async def objects_by_uuid(self, uuids: Sequence[bytes]) -> list[ObjectRow]:
        """Those of the objects that are there, by uuid."""
        ...

    async def unneeded_objects(
        self, node_id: int, limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        """Up to `limit` COPY_FINISHED objects of a broker whose segment is DELETING or gone, by
        uuid, from above `after`."""
        ...

    async def set_local(self, ids: Sequence[int], local: bool) -> list[SegmentRow]:
        """Record whether LIVE segments have a local file; the latter only of those that
        have a finished object. The segments that are there, by id, as they are then."""
        ...

    async def save_tiering_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        """Raise dispatch and commit offsets: partition number -> (dispatch, commit). Neither
        ever falls."""
        ...

    async def uncommitted(self, limit: int, after: int = -1) -> list[int]:
        """Up to `limit` partitions that this broker leads whose commit offset is below their
        dispatch offset, by number, from above `after`. All offsets are checked: for a start."""
        ...

    async def save_tier(self, row: TierRow) -> None:
        """Insert a tier, or changes the one with this id."""
        ...

    async def tiers(self) -> list[TierRow]:
        """All of them, by id."""
        ...

    async def relocate_objects(self, moved: Mapping[bytes, ObjectRow]) -> list[SegmentRow]:
        """Finished objects copied into another tier take the place of the old ones (the keys),
        which are DELETE_STARTED from then on, to be kept until the new row's delete_after_ms; the
        segments, by id, as they are then. Left out are those whose old object is not the finished
        one of a LIVE segment any more."""
        ...

    async def enter_remote(
        self, rows: Sequence[tuple[SegmentRow, ObjectRow, Sequence[SegmentRange]]]
    ) -> list[int]:
        """Insert segments that lie in the remote tier only, LIVE with all that their rows say,
        their finished objects and their mappings; the ids of the segments. For a restore: the
        partitions are there. StaleSwap when a mapping covers offsets that are taken."""
        ...


class SegmentCatalog(CheckpointCatalog, RangeCatalog, ObjectCatalog, Protocol):
    """Each call is one transaction: when it returns, its effect is durable and whole; when it
    raises, nothing has changed, except after a lost connection or a cancelled call, where either
    may be the case. MetadataError: the store is broken. Writes are ordered.

    Rows of partitions that do not exist (any more) are left out of every write;
    NOT_LEADER_OR_FOLLOWER when another broker leads one of them, and then nothing is written.
    """

    async def stats(self, numbers: Sequence[int]) -> list[StoredStats]:
        """Partitions in numbers, in the order given."""
        ...

    async def metrics(self) -> StorageMetrics:
        """The storage in numbers."""
        ...

    async def close(self) -> None:
        """Close the storage and release its files and connections. Calling it again does
        nothing."""
        ...
