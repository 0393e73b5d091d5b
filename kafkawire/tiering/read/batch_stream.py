"""A range of batches, read from the cache block by block and verified."""

from __future__ import annotations

from kafkawire.codec.segment.format import SparseIndex
from kafkawire.log.io.read_limits import InFlight, SlowLane
from kafkawire.log.partition.read_plan import next_offset, skip_before, whole_batches
from kafkawire.log.segments.store.index_cache import DamagedSegment, sound_part
from kafkawire.log.segments.store.remote_tier import RemoteReadRequest, Taken
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import SegmentRange
from kafkawire.tiering.read.block_cache import CachedBlock
from kafkawire.tiering.read.loader import Loads
from kafkawire.tiering.read.requests import ColdCounts, Object

BATCH_BYTES = 256 << 10
"""Bytes that all cold reads together verify in one event-loop iteration: a twentieth of a
millisecond."""


class Stretch:
    """One read of one row. `copied` bounds the bytes assembled from several blocks of the cache."""

    __slots__ = ("_copied", "_counts", "_index", "_lane", "_loads", "_mapping", "_target")

    def __init__(
        self,
        lane: SlowLane,
        loads: Loads,
        counts: ColdCounts,
        copied: InFlight,
        target: Object,
        index: SparseIndex,
        mapping: SegmentRange,
    ) -> None:
        self._lane = lane
        self._loads = loads
        self._counts = counts
        self._copied = copied
        self._target = target
        self._index = index
        self._mapping = mapping

    async def read_batches(
        self, request: RemoteReadRequest, position: int, limit: int, deadline: float | None
    ) -> Taken | None:
        """Return the requested batches, from the index block at `position` on, up to `limit`;
        beyond that only if compaction removed everything before it. Waits for the first batch;
        later ones are returned if they are already loaded. None: the first was not loaded in time.

        Raises DamagedSegment if a checksum is wrong, StoreError if it cannot be loaded.
        """
        stop, size_bytes = self._mapping.start + self._mapping.length, self._loads.cache.block_bytes
        batches: list[memoryview] = []
        size, after = 0, request.offset
        while position < stop and (position < limit or not batches):
            end = piece_end(self._index, position, limit, size_bytes, BATCH_BYTES)
            try:
                await self._lane.wait()
                found = await self._piece(position, end, 0.0 if batches else deadline, after)
            # With batches before it the error is reported when the reader reaches it.
            except (StoreError, DamagedSegment):
                if batches:
                    break
                raise
            if found is None:
                if batches:
                    break
                return None
            begin, data, upto = found
            start = 0 if batches else skip_before(data, 0, len(data), request.offset)
            first = request.first and not batches
            cut = whole_batches(data, start, len(data), request.end, request.room - size, first)
            if cut > start:
                batches.append(data[start:cut])
                size += cut - start
                after = next_offset(data, start, cut, after)
            # The limit of the request is reached within this piece.
            if begin + cut < upto:
                break
            position = upto
        whole = position >= stop
        return Taken(batches, self._mapping.end_offset if whole else after, whole)

    async def _piece(
        self, position: int, end: int, deadline: float | None, offset: int
    ) -> tuple[int, memoryview, int] | None:
        """Return where the batches begin, the sound ones from `position` on, and where their blocks
        end (before `end` if a later block is damaged). If the first block is damaged, return the
        batches around `offset`."""
        # Twice: damaged blocks are loaded again, as the bytes may have been damaged in transit.
        for last in (False, True):
            found = await self._bytes(position, end, deadline)
            if found is None:
                return None
            data, block = found
            bad = (
                None
                if _is_checked(block, position, end)
                else self._index.find_damaged_block(position, data)
            )
            if bad is None:
                if block is not None:
                    _check(block, position, end)
                return position, data, end
            self._counts.damaged += 1
            if last and bad > position:
                return position, data[: bad - position], bad
            if last:
                break
            self._loads.evict_blocks(
                self._target, blocks_of(position, end, self._loads.cache.block_bytes)
            )
        return sound_part(self._index, position, data, offset, self._mapping)

    async def _bytes(
        self, position: int, end: int, deadline: float | None
    ) -> tuple[memoryview, CachedBlock | None] | None:
        """Return a view of one block of the cache, or bytes assembled from several."""
        cache, size = self._loads.cache, self._loads.cache.block_bytes
        numbers = blocks_of(position, end, size)
        if len(numbers) == 1:
            block = await self._block(numbers[0], deadline)
            if block is None:
                return None
            start = position - numbers[0] * size
            return cache.view(block, start, start + end - position), block
        large = end - position if end - position > size else 0
        await self._copied.wait_for_room(large)
        try:
            data = memoryview(bytearray(end - position))
            # One at a time: a batch may be larger than the cache.
            for number in numbers:
                block = await self._block(number, deadline)
                if block is None:
                    return None
                first, stop = max(position, number * size), min(end, (number + 1) * size)
                into = data[first - position : stop - position]
                cache.copy(block, first - number * size, stop - number * size, into)
            return data.toreadonly(), None
        finally:
            self._copied.give(large)

    async def _block(self, number: int, deadline: float | None) -> CachedBlock | None:
        block = await self._loads.get(self._target, number, deadline)
        if block is not None and block.ahead is not None:
            block.ahead.note_used()
            block.ahead = None
        return block


def _is_checked(block: CachedBlock | None, position: int, end: int) -> bool:
    return block is not None and block.checked[0] <= position and end <= block.checked[1]


def _check(block: CachedBlock, position: int, end: int) -> None:
    """Remember that these positions are verified, merged with adjacent ones."""
    start, stop = block.checked
    if position <= stop and start <= end:
        position, end = min(start, position), max(stop, end)
    block.checked = position, end


def piece_end(index: SparseIndex, position: int, limit: int, block_bytes: int, at_most: int) -> int:
    """Return the end of the piece that begins at `position`: at `limit` or before it, or one index
    block later if `position` is at `limit`. Both are positions in the file on boundaries of the
    index. A piece has at most `at_most` bytes, unless one index block has more."""
    if position >= limit:
        start, length = index.block(index.find(position))[:2]
        return start + length
    border = min((position // block_bytes + 1) * block_bytes, position + at_most)
    if limit <= border:
        return limit
    start, length = index.block(index.find(border))[:2]
    # An index block that crosses the border is a piece of its own: only such pieces are copied.
    return start if start > position else start + length


def blocks_of(start: int, stop: int, block_bytes: int) -> range:
    return range(start // block_bytes, -(-stop // block_bytes)) if stop > start else range(0)
