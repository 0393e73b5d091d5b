"""Which bytes of a segment may be sent from its file instead of being read into memory.

Only whole blocks that were checked since their index was loaded: batches lie in a segment back to
back, and an index block begins with a batch. So a reader that continues where its last response
ended needs no byte of the file: both ends are in the index. One that begins within a block has that
block read once to find its batch. Everything else is read as bytes (kafkawire.log.segments.store.
warm_reader): short reads, damaged blocks, and the last batches before an end within a block.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from kafkawire.codec.control import Aborted
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.file_span import FileSpan
from kafkawire.log.io.ports import File
from kafkawire.log.partition.read_plan import SegmentRead, skip_before
from kafkawire.log.segments.store.index_cache import WarmIndex, WarmIndexes
from kafkawire.log.segments.store.remote_tier import RemoteReadRequest, Taken
from kafkawire.log.segments.store.segment_store import Segment, SegmentStore
from kafkawire.offsets.catalog.port import SegmentRange

MIN_SPAN_BYTES = 16 << 10
"""Shorter reads are copied. Of a response with 20 partitions of this size each costs two thirds of
the CPU time of a copy, though each needs two calls to send it."""

CHECKED_BYTES = 256 << 10
"""Bytes read and checked in one step: they stay in the processor's cache."""

AHEAD_BYTES = 8 << 20
"""Bytes that are checked ahead of a reader that continues, in less than a millisecond."""


def is_long(size_bytes: int) -> bool:
    """Return whether a read of this size is worth sending from the file."""
    return size_bytes >= MIN_SPAN_BYTES


class BatchRange(NamedTuple):
    """Bytes [start, stop) of a file, whole batches."""

    start: int
    stop: int


def plan_send(
    warm: WarmIndex, mapping: SegmentRange, request: RemoteReadRequest
) -> BatchRange | None:
    """Return the whole blocks to send for a request; None if they are too few."""
    # Both ends are in the index: no byte of the file is read for this.
    end = None if mapping.end_offset <= request.end else request.end
    start, length, _ = warm.index.whole_blocks(request.offset, end, request.room)
    return BatchRange(start, start + length) if is_long(length) else None


def is_ready(warm: WarmIndex, stretch: BatchRange, offset: int) -> bool:
    start, stop = stretch
    return warm.index.block(warm.index.find(start))[2] == offset and warm.is_checked(
        start, stop - start
    )


def check_blocks(
    file: File, warm: WarmIndex, mapping: SegmentRange, batches: BatchRange, offset: int
) -> BatchRange | None:
    """Check the blocks that were not, and skip batches before the offset; runs in a thread. None if
    too few bytes before the first damaged block are left. OSError from the disk."""
    start, wanted = batches
    stop = _check(file, warm, start, wanted, cached_only=False)
    # A reader that continues: the block before was checked. Then those that follow, too.
    before = warm.index.find(start - 1)
    follows = before < 0 or warm.is_checked(*warm.index.block(before)[:2])
    # Ahead, as far as they are in the page cache: its next reads then need no thread.
    if stop == wanted and follows:
        end = min(wanted + AHEAD_BYTES, mapping.start + mapping.length)
        with suppress(OSError):  # reported when the reader gets there
            _check(file, warm, wanted, end, cached_only=True)
    if not is_long(stop - start):
        return None
    position, length, first, _, _ = warm.index.block(warm.index.find(start))
    # It begins within a block, of which the first batches are left out.
    if first < offset:
        head = file.pread(length, position)
        try:
            start = position + skip_before(head, 0, len(head), offset)
        except KafkaError:  # the file has changed since the check; reading it as bytes reports that
            return None
    return BatchRange(start, stop) if is_long(stop - start) else None


def _check(file: File, warm: WarmIndex, start: int, stop: int, *, cached_only: bool) -> int:
    """Check the blocks of [start, stop) that were not; return where the intact ones end.
    `cached_only`: stop before what is not in the page cache."""
    for position, length in warm.index.runs(start, stop, CHECKED_BYTES):
        if warm.is_checked(position, length):
            continue
        if cached_only and not file.is_cached(length, position):
            return position
        data = memoryview(file.pread(length, position))
        bad = warm.find_damaged_block(position, data)
        if bad is None and len(data) < length:  # the file ends within a block
            bad = warm.index.block(warm.index.find(position + len(data)))[0]
        if bad is not None:
            return bad
    return stop


def offset_after(warm: WarmIndex, mapping: SegmentRange, stretch: BatchRange) -> tuple[int, bool]:
    """Return the offset that follows the bytes, and whether they end the mapping's."""
    if stretch.stop >= mapping.start + mapping.length:
        return mapping.end_offset, True
    return warm.index.block(warm.index.find(stretch.stop))[2], False


def row_of(request: RemoteReadRequest) -> SegmentRange:
    """Return the mapping row that covers the offset. OFFSET_OUT_OF_RANGE below the log start."""
    if request.offset < request.partition.log_start:  # which has moved since the plan was made
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    segments = request.partition.segments
    return segments.mapping(request.partition.number, segments.find(request.offset))


class SegmentSpans:
    """Makes spans of segment files, each of which keeps its segment pinned."""

    __slots__ = ("_indexes", "_store")

    def __init__(self, store: SegmentStore, indexes: WarmIndexes) -> None:
        self._store = store
        self._indexes = indexes

    def checked_span(
        self,
        segment: Segment,
        file: File,
        mapping: SegmentRange,
        request: RemoteReadRequest,
        warm: WarmIndex,
        batches: BatchRange,
    ) -> Taken | None:
        """Return checked batches as a span; None if it is not known which transactions were
        aborted, and the reader has to know."""
        start, stop = batches
        after, whole = offset_after(warm, mapping, batches)
        taken = Taken([], after, whole)
        if request.committed:
            known = self._indexes.aborted.find(mapping.segment_id)
            # Reading them needs a thread: the batches are read as bytes there.
            if known is None:
                return None
            taken.aborted = known.overlapping(mapping.number, request.offset, after)
        # The pin goes with the span, to whatever sends it.
        taken.span = FileSpan(
            file, [(start, stop - start)], self._store.pin(segment), warm.forget_checks
        )
        return taken

    def ready(self, plan: SegmentRead, aborted: list[Aborted] | None) -> FileSpan | None:
        """Return all batches of a plan as one span, if its file is open and its blocks were
        checked; `aborted` is extended as by WarmReader.read."""
        request = RemoteReadRequest(
            plan.partition, plan.offset, plan.end, plan.max_bytes, plan.first, None,
            aborted is not None, True,
        )  # fmt: skip
        mapping = row_of(request)
        opened = self._store.opened_already(mapping.segment_id)
        warm = self._indexes.find((mapping.segment_id, mapping.number))
        if opened is None or warm is None:
            return None
        batches = plan_send(warm, mapping, request)
        if batches is None or not is_ready(warm, batches, plan.offset):
            return None
        after, whole = offset_after(warm, mapping, batches)
        if whole and after < plan.end:
            return None  # what follows may be added
        taken = self.checked_span(*opened, mapping, request, warm, batches)
        if taken is None:
            return None
        if aborted is not None:
            aborted += taken.aborted
            aborted += plan.partition.list_aborted(plan.offset, after)
        return taken.span
