"""The remote tier as the log sees it: its ports, and what the broker has attached.

`RemoteTier` is created before the parts of the log that read or remove segments, and passed to each
of them. The tier itself is above the log (kafkawire.tiering.service): it attaches a `Cold` that
reads its segments (kafkawire.tiering.read.cold_reader), and a `Localizer` that downloads them as
local files for merges and compaction (kafkawire.tiering.retention.local_retention). Without one, a
segment without a local file can neither be read nor merged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.control import Aborted
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.segments.store.index_cache import WarmIndex
from kafkawire.log.segments.store.segment_store import Segment, not_local
from kafkawire.offsets.catalog.port import SegmentRange

if TYPE_CHECKING:
    from kafkawire.log.partition.state import LoadedPartition
    from kafkawire.log.segments.store.segment_store import Segment, SegmentStore


class Localizer(Protocol):
    """Raises KAFKA_STORAGE_ERROR for what the remote tier cannot deliver, or not now; OSError."""

    def copies(self, numbers: Iterable[int]) -> bool:
        """Return whether the results of merging these partitions' segments are uploaded again, so
        that a remote segment may be merged."""

    def pays(self, segments: Collection[Segment]) -> bool:
        """Return whether one object instead of these is worth the cost of reading and writing them
        once."""

    async def localize(self, segments: Collection[Segment]) -> None:
        """Return when all of these have a local file, complete and checked. The caller keeps them
        pinned: the files are removed some time after the last pin."""

    async def read(self, segment: Segment, start: int, length: int) -> bytes:
        """Return a few bytes of a segment that has no file; a negative start counts from its
        end."""


class RemoteReadRequest(NamedTuple):
    """A request for whole batches of a partition from `offset` on, below `end`, at most `room`
    bytes; with `first` one batch whatever its size. `patience_s`: how long to wait for a remote
    tier; None: until it answers or has failed for good, 0: take what is in memory. `committed`:
    the reader leaves out the records of aborted transactions and has to know these. `spans`: it
    takes spans of files instead of bytes."""

    partition: LoadedPartition
    offset: int
    end: int
    room: int
    first: bool
    patience_s: float | None
    committed: bool = False
    spans: bool = False


@dataclass(slots=True)
class Taken:
    """The result of reading one row: the next offset, and whether it is the row's end. Each of the
    views in `batches` has whole batches; `span`, if any, is all that was read. `aborted`: the
    aborted transactions that touch them, for readers of committed records."""

    batches: list[memoryview]
    next_offset: int
    whole: bool
    aborted: list[Aborted] = field(default_factory=list)
    span: FileSpan | None = None

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.batches)) if self.span is None else len(self.span)


class Exchanged(Exception):
    """The row that was read has been replaced: look it up again."""


class Cold(Protocol):
    """Reads segments that are in a remote tier."""

    async def read_batches(
        self, request: RemoteReadRequest, mapping: SegmentRange, segment: Segment
    ) -> Taken:
        """Return batches out of the row `mapping` of the partition, which covers the offset.
        Without batches, and with `whole` not set, if they did not arrive in time: they are cached
        when they do.

        CORRUPT_MESSAGE if they are damaged, KAFKA_STORAGE_ERROR if they cannot be read, or not
        now; Exchanged.
        """

    def file_damaged(self, segment: Segment) -> None:
        """Report that a read of the segment's local file failed and its object was read instead."""

    async def load_index(
        self, partition: LoadedPartition, mapping: SegmentRange, segment: Segment
    ) -> WarmIndex:
        """Return the sparse index of the row. Raises as `read_batches`."""

    async def read_range(
        self,
        partition: LoadedPartition,
        mapping: SegmentRange,
        segment: Segment,
        start: int,
        length: int,
    ) -> bytes:
        """Return bytes of the segment that are not cached, in one attempt. Raises as `take`."""


def readable_log_start(partition: LoadedPartition, store: SegmentStore) -> int:
    """Return the first offset for readers: the log start, or with tieredStorageLevel=disable the
    local log start, since what is only in the remote tier is not read then."""
    if partition.config.tier_level is TierLevel.DISABLE:
        return local_log_start(partition, store)
    return partition.log_start


def local_log_start(partition: LoadedPartition, store: SegmentStore) -> int:
    """Return the offset from which on everything is on the local disk: KIP-405's local log
    start."""
    segments = partition.segments
    at = len(segments)
    # From the newest row back, as long as all have files.
    while at and store.is_local(segments.segment[at - 1]):
        at -= 1
    start = segments.base[at] if at < len(segments) else partition.cut_offset
    return max(start, partition.log_start)


class RemoteTier:
    """The remote tier as the log sees it, empty until the broker attaches one. `cold` reads
    segments of the remote tier; `localizer` downloads their files; `relief` removes local files of
    uploaded segments when the disk fills up; `hurry` uploads segments of some partitions as soon as
    possible. Each is None while nothing is attached."""

    __slots__ = ("cold", "hurry", "localizer", "relief")

    def __init__(self) -> None:
        self.cold: Cold | None = None
        self.localizer: Localizer | None = None
        self.relief: Callable[[], Awaitable[None]] | None = None
        self.hurry: Callable[[Set[int]], None] | None = None

    def attach_uploads(self, hurry: Callable[[Set[int]], None]) -> None:
        self.hurry = hurry

    def attach_reader(self, cold: Cold) -> None:
        """Read segments without a local file through `cold` from now on."""
        self.cold = cold

    def attach_files(
        self, localizer: Localizer, relief: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Download and remove local files through these from now on."""
        self.localizer, self.relief = localizer, relief

    def detach_files(self) -> None:
        """Stop downloading and removing local files: local retention has ended."""
        self.localizer = self.relief = None

    async def have_files(self, segments: Collection[Segment]) -> None:
        """Return when all of these, which the caller keeps pinned, have a file for the worker.

        NotLocal if one has none and no tier is attached; raises as `Localizer.localize`.
        """
        # After the pin of the caller: a file that is there now stays.
        away = [segment for segment in segments if not segment.row.local]
        if away and self.localizer is None:
            raise not_local(away[0])
        if away and self.localizer is not None:
            await self.localizer.localize(away)
