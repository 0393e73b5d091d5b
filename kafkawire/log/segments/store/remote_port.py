"""Ports for reading segments of a remote tier, and the start of a partition's local part.

The tier itself is above the log (kafkawire.tiering.read.cold_reader) and is attached through
kafkawire.log.segments.store.remote_tier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkawire.codec.configs.settings import TierLevel
from kafkawire.codec.control import Aborted
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.segments.store.index_cache import WarmIndex
from kafkawire.offsets.catalog.port import SegmentRange

if TYPE_CHECKING:
    from kafkawire.log.partition.state import LoadedPartition
    from kafkawire.log.segments.store.segment_store import Segment, SegmentStore


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
        """The size of all views, or of the span."""
        return sum(map(len, self.batches)) if self.span is None else len(self.span)


class Exchanged(Exception):
    """The row that was read has been replaced: look it up again."""


class Cold(Protocol):
    """Reads segments that are in a remote tier."""

    async def take(
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
        """Return the sparse index of the row. Raises as `take`."""


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
    while at and store.is_local(segments.segment[at - 1]):
        at -= 1
    start = segments.base[at] if at < len(segments) else partition.cut_offset
    return max(start, partition.log_start)
