"""The port to stored offsets: checkpoints, segments, and the offset ranges in segments.

`SegmentCatalog` is implemented in memory (`storage.memory`), in the metadata's database
(`sql.storage`) and in RocksDB (`kv.rocksdb`); tests/offsets/catalog runs the same tests for each of
them. The produce path never calls it; the log does, for committed records. A *mapping* is the row
of one partition in one segment. The mappings of a partition are contiguous (each begins at the end
of the previous one), even if compaction has removed records in them. An *object* is a segment file
in the remote tier; a segment has at most one finished object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple, Protocol

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.directory import PartitionEntry
from kafkawire.manifest.columns import Entry
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint

NEVER = 1 << 62
"""Value of `due_ms`: retention need not check the mapping."""
EVERYTHING = 1 << 62
"""Log start for `remove_mappings`: the partition's topic is deleted, so everything is removed."""

STARTED, LIVE, DELETING = 0, 1, 2
"""States of a segment. STARTED: its file is being written. LIVE: it is read. DELETING: it has no
mappings; its file is deleted after `delete_after_ms`, once it has no readers."""

COPY_STARTED, COPY_FINISHED, DELETE_STARTED = 0, 1, 2
"""States of an object (Kafka's RemoteLogSegmentState): being uploaded; finished and read; to be
deleted after `delete_after_ms`. Its row is deleted after the object."""

CURRENT, BEING_LEFT, LEFT = 0, 1, 2
"""States of a tier: target of uploads; objects are moved away from it; empty."""


class StaleSwap(Exception):
    """The rows a swap was planned with have changed. Nothing was written: plan again."""


class SegmentRange(NamedTuple):
    """One partition's share of one segment: the bytes [start, start + length) of its file have the
    offsets [base_offset, end_offset); their sparse index is at `index_start`."""

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
    due_ms: int = NEVER  # time of the next retention check


def range_of(entry: PartitionEntry | Entry, segment_id: int, due_ms: int) -> SegmentRange:
    return SegmentRange(
        entry.number, segment_id, entry.base_offset, entry.end_offset, entry.start, entry.length,
        entry.index_start, entry.index_length, entry.index_checksum, entry.max_timestamp,
        entry.batches, entry.records, due_ms,
    )  # fmt: skip


@dataclass(slots=True)
class SegmentRow:
    """One segment file. `id` is assigned by `start_segments` and never reused. `local`: it has a
    file in the folder of `node_id`, the broker that wrote it; `object`: the uuid of its finished
    object, in `tier`."""

    uuid: bytes
    node_id: int
    created_ms: int
    id: int = 0
    state: int = STARTED
    size_bytes: int = 0  # of the file
    live_bytes: int = 0  # sum of `length` of its mappings; kept by the storage
    generation: int = 0  # 0: cut from journals; a rewrite: 1 + the maximum of its inputs
    retention_class: str = ""
    max_timestamp: int = -1
    delete_after_ms: int = 0  # if DELETING
    local: bool = True
    object: bytes = b""
    tier: int = 0


@dataclass(slots=True)
class PartitionRow:
    """The stored offsets of one partition. `mappings` are in offset order. Segments below its
    dispatch offset have been registered for upload, those below its commit offset are uploaded."""

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
    delete_after_ms: int = 0  # if DELETE_STARTED
    ranges: bytes = b""


@dataclass(slots=True)
class TierRow:
    """A location of objects, by its URL. `node_id`: the broker that writes there; None: not known
    yet, the tier is of an earlier version."""

    id: int
    url: str
    state: int = CURRENT
    created_ms: int = 0
    node_id: int | None = None


@dataclass(slots=True)
class Swap:
    """One change of the live segments: `finished` segments (STARTED until now; size_bytes and
    max_timestamp as written) with their mappings replace the `removed` mappings. A segment left
    without mappings becomes DELETING; its file is kept until `delete_after_ms`."""

    finished: list[tuple[SegmentRow, list[SegmentRange]]]
    removed: list[SegmentRange] = field(default_factory=list)
    checkpoints: list[PartitionCheckpoint] = field(default_factory=list)
    delete_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredStats:
    """Statistics of one partition. Records and bytes: in segments; -1: no checkpoint or cut yet."""

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
    """Statistics of the whole storage. Counting reads every row, so the log does not use it."""

    checkpoints: int
    mappings: int
    segments: dict[int, int]  # state -> count
    size_bytes: int
    live_bytes: int


EnteredObject = tuple[SegmentRow, ObjectRow, Sequence[SegmentRange]]
"""A segment that is in the remote tier, its object, and mappings in it."""

_RANGE = Struct("<Qqq")
Range = tuple[int, int, int]
"""(partition number, base offset, end offset)."""


def pack_ranges(ranges: Iterable[Range]) -> bytes:
    """Pack ranges for `ObjectRow.ranges`: 24 bytes each."""
    return b"".join([_RANGE.pack(*each) for each in ranges])


def unpack_ranges(packed: bytes) -> list[Range]:
    """Unpack offset ranges. FormatError."""
    if len(packed) % _RANGE.size:
        raise FormatError(f"the ranges of an object have {len(packed)} bytes, no multiple of 24")
    return list(_RANGE.iter_unpack(packed))


class CheckpointCatalog(Protocol):
    """Checkpoints of one broker's partitions. See SegmentCatalog for transactions."""

    async def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Store the log position and the given partitions."""

    async def load_log_position(self, node_id: int) -> int:
        """Return the last log position stored for a broker; 0 if there is none."""

    async def load_partitions(self, numbers: Sequence[int]) -> list[PartitionRow]:
        """Return a row for each of the numbers, in their order; empty if nothing is stored."""


class RangeCatalog(Protocol):
    """Segments, and offset ranges of partitions in them. See SegmentCatalog for transactions."""

    async def start_segments(self, rows: Sequence[SegmentRow]) -> list[int]:
        """Insert segments that will be written as STARTED; return their ids."""

    async def finish_segments(self, swap: Swap) -> None:
        """Make the finished segments LIVE and replace the mappings. Raises StaleSwap if a removed
        mapping has changed, an added one covers offsets of another, or a finished segment is not
        STARTED."""

    async def remove_mappings(
        self, below: Mapping[int, int], delete_after_ms: int = 0
    ) -> list[SegmentRow]:
        """Drop the mappings that end at or below the log start of their partition (number -> log
        start); for EVERYTHING drop all its rows. Return the changed segments, of any broker; one
        without mappings is DELETING. Partitions that another broker leads are left out, those of
        deleted topics are not."""

    async def drop_segments(self, ids: Sequence[int]) -> None:
        """Delete the rows of segments whose files are deleted: abandoned STARTED ones, and DELETING
        ones. A segment that still has mappings is kept."""

    async def segments(
        self, node_id: int, states: Sequence[int], limit: int, after_id: int = 0
    ) -> list[SegmentRow]:
        """Return up to `limit` segments of a broker in these states, by id, above `after_id`."""

    async def segments_by_id(self, ids: Sequence[int]) -> list[SegmentRow]:
        """Return the segments that exist, by id."""

    async def segment_mappings(self, segment_ids: Sequence[int]) -> list[SegmentRange]:
        """Return all mappings of these segments, by segment, partition and offset."""

    async def mappings(self, ranges: Sequence[tuple[int, int, int]]) -> list[list[SegmentRange]]:
        """Return, for each (number, from, to), the mappings that cover an offset of [from, to), in
        order; one round trip for all."""

    async def expiring(self, before_ms: int, limit: int) -> list[SegmentRange]:
        """Return up to `limit` mappings with due_ms < before_ms of partitions this broker leads,
        the most overdue first. Mappings of deleted topics are `orphans`."""

    async def set_due(self, numbers: Sequence[int] | None, due_ms: int) -> None:
        """Set due_ms of all mappings of these partitions; None: of all partitions. Those that
        another broker leads are left out."""

    async def orphans(self, limit: int) -> list[int]:
        """Return up to `limit` partitions of deleted topics that this broker led and that still
        have rows. One call checks a bounded part of the store; the next call continues."""


class ObjectCatalog(Protocol):
    """Objects in the remote tier and their segments. See SegmentCatalog for transactions."""

    async def start_objects(
        self, rows: Sequence[ObjectRow], dispatched: Mapping[int, int]
    ) -> list[bytes]:
        """Insert objects as COPY_STARTED and raise the dispatch offsets (partition number ->
        offset); return the inserted uuids. Objects are left out if their segment is not LIVE and
        local, or already has a finished object in the same tier."""

    async def finish_objects(
        self, uuids: Sequence[bytes], committed: Mapping[int, int]
    ) -> list[SegmentRow]:
        """Make objects COPY_FINISHED and assign them to their segments; return the changed
        segments, by id. Objects are left out, unchanged, if they are not COPY_STARTED, or if their
        segment is not LIVE or already has a finished object in the same tier. A finished object in
        another tier becomes DELETE_STARTED. The commit offsets are raised only if no object was
        left out; otherwise the caller must compute them again."""

    async def delete_objects(self, uuids: Sequence[bytes], delete_after_ms: int) -> None:
        """Make objects DELETE_STARTED, in whatever other state they are; their segments have no
        object from then on."""

    async def schedule_object_deletion(self, rows: Sequence[ObjectRow]) -> None:
        """Insert objects without a row, found by a scrub, as DELETE_STARTED with their
        `delete_after_ms`. Existing rows are not changed."""

    async def drop_objects(self, uuids: Sequence[bytes]) -> None:
        """Delete the rows of deleted objects. Rows that are not DELETE_STARTED are kept."""

    async def objects(
        self, node_id: int, states: Sequence[int], limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        """Return up to `limit` objects of a broker in these states, by uuid, above `after`."""

    async def objects_by_uuid(self, uuids: Sequence[bytes]) -> list[ObjectRow]:
        """Return the objects that exist, by uuid."""

    async def unneeded_objects(
        self, node_id: int, limit: int, after: bytes = b""
    ) -> list[ObjectRow]:
        """Return up to `limit` COPY_FINISHED objects of a broker whose segment is DELETING or
        deleted, by uuid, above `after`."""

    async def set_local(self, ids: Sequence[int], local: bool) -> list[SegmentRow]:
        """Record whether LIVE segments have a local file; only segments with a finished object may
        have none. Return the segments that exist after the change, by id."""

    async def save_tiering_offsets(self, offsets: Mapping[int, tuple[int, int]]) -> None:
        """Raise offsets: partition number -> (dispatch, commit). Neither ever decreases."""

    async def list_uncommitted(self, limit: int, after: int = -1) -> list[int]:
        """Return up to `limit` partitions led by this broker whose commit offset is below their
        dispatch offset, by number, above `after`. Reads all offsets; used at start."""

    async def claim_tier(self, url: str, own_url: str, now_ms: int) -> TierRow:
        """Return the tier in which this broker writes its objects if it is started with a URL. If
        it has none, it becomes the writer of the tier at the URL itself if no other broker is, and
        otherwise gets one at `own_url`. Of brokers that call this at the same time one gets the
        URL."""

    async def adopt_tiers(self) -> list[TierRow]:
        """Return all tiers like `tiers`, after those of earlier versions became this broker's,
        unless only other brokers have objects there."""

    async def save_tier(self, row: TierRow) -> None:
        """Insert a tier, or update the one with this id."""

    async def tiers(self) -> list[TierRow]:
        """Return all tiers, of other brokers too, by id."""

    async def relocate_objects(self, moved: Mapping[bytes, ObjectRow]) -> list[SegmentRow]:
        """Replace old objects (the keys) by their finished copies in another tier. The old ones
        become DELETE_STARTED and are kept until the new row's delete_after_ms. Return the changed
        segments, by id. Copies are left out if the old object is not the finished one of a LIVE
        segment any more."""

    async def enter_remote(self, rows: Sequence[EnteredObject]) -> list[int]:
        """Insert LIVE segments that are in the remote tier only, with their finished objects and
        mappings; return the segment ids. Used by a restore, after the partitions were inserted.
        Raises StaleSwap if a mapping covers offsets of another."""

    async def replace_lost(self, swap: Swap, entered: Sequence[EnteredObject]) -> None:
        """Like `finish_segments`, and enter mappings into finished objects: the segment of each is
        LIVE afterwards, without a local file if it was not LIVE before; if it has no row any more,
        it gets a new one. Used after the loss of local files. Raises StaleSwap also if an object is
        not COPY_FINISHED, or not the one of its segment."""


class SegmentCatalog(CheckpointCatalog, RangeCatalog, ObjectCatalog, Protocol):
    """Each call is one transaction. When it returns, all its changes are durable; when it raises,
    nothing has changed. After a lost connection or a cancelled call either may be the case.
    MetadataError: the store is broken. Writes are ordered.

    Rows of partitions that do not exist are left out of every write. If another broker leads one of
    the partitions, NOT_LEADER_OR_FOLLOWER is raised and nothing is written.
    """

    async def stats(self, numbers: Sequence[int]) -> list[StoredStats]:
        """Return statistics of partitions, in the order given."""

    async def metrics(self) -> StorageMetrics:
        """Return statistics of the storage."""

    async def close(self) -> None:
        """Close the storage, its files and connections. Calling it again does nothing."""
