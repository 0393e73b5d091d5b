"""The verified bytes of one piece: runs that can be decoded, and damaged ones in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kafkawire.codec.batches import HEAD_BYTES, iter_batches, read_head
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.segment.format import SparseIndex
from kafkawire.codec.types import Buffer
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.read_ahead import Load
from kafkawire.reading.model.source import DamagedData, PartitionRange, Piece


class BatchRun(NamedTuple):
    """Whole batches, with the offsets [base, upto) at most. `damaged`: a checksum is wrong;
    `check_crc`: not verified yet."""

    data: Buffer
    base: int
    upto: int
    damaged: bool = False
    check_crc: bool = False


class CheckedEntry:
    """A piece of a range while it is read. `stop`: its end for this range."""

    def __init__(self, place: Place, piece: Piece, wanted: PartitionRange) -> None:
        self._place = place
        self._piece = piece
        self._wanted = wanted
        self.stop = min(piece.end, wanted.end)
        self._carried = bytearray()

    def name_damage(self, error: DamagedData) -> DamagedData:
        """Return the same with the file's name; not beyond this piece."""
        return self._damage(str(error), error.base, min(error.end, self.stop))

    def damage(self, cursor: int, run: BatchRun) -> DamagedData:
        """Return the DamagedData error for a damaged run, from the cursor on."""
        base, end = max(cursor, run.base), min(run.upto, self.stop)
        topic, partition = self._wanted[:2]
        text = (
            f"offsets [{base}, {end}) of partition {partition} of topic {topic!r} are damaged: "
            f"{len(run.data)} bytes are not what was written"
        )
        return self._damage(text, base, end)

    def _damage(self, text: str, base: int, end: int) -> DamagedData:
        where = self._place.where(self._piece.key)
        return DamagedData(f"{where}: {text}", *self._wanted[:2], base, end)

    def blocks(self, load: Load) -> Iterator[BatchRun]:
        """Yield runs of sound blocks, and single damaged ones. Raises FileNotFoundError,
        PlaceError."""
        index = load.blocks
        assert index is not None
        first, (last, length) = index.span(self._piece.base, 1)[0], index.span(self.stop - 1, 1)
        position, stop = max(load.position, first), min(load.position + load.length, last + length)
        view = memoryview(load.data)[position - load.position :][: max(0, stop - position)]
        while position < stop:
            bad = _find_damaged_block(index, position, view, stop)
            upto = stop if bad is None else bad
            if position < upto:
                yield self._sound(index, position, view[: upto - position])
            if bad is None:
                return
            at = index.find(bad)
            _, length, base, _, _ = index.block(at)
            yield self._again(index, at, bytes(view[bad - position :][:length]), base)
            view = view[bad - position + length :]
            position = bad + length

    def _sound(self, index: SparseIndex, position: int, data: memoryview) -> BatchRun:
        """Return whole blocks, without the batches after the piece's end, which are valid in
        another file."""
        first, after = index.find(position), index.find(position + len(data) - 1) + 1
        base, upto = index.block(first)[2], self._offset(index, after)
        if self.stop < upto and self.stop < self._wanted.end:
            last = index.block(after - 1)[0] - position
            data = data[: last + _before(data[last:], self.stop)]
        return BatchRun(data, base, upto)

    def _again(self, index: SparseIndex, at: int, data: bytes, base: int) -> BatchRun:
        """Read a damaged block once more: it may have been damaged in transit."""
        position, length = index.block(at)[:2]
        fresh = self._place.get_range(self._piece.key, position, length)
        if _find_damaged_block(index, position, memoryview(fresh), position + length) is None:
            return self._sound(index, position, memoryview(fresh))
        return BatchRun(fresh or data, base, self._offset(index, at + 1), damaged=True)

    def _offset(self, index: SparseIndex, at: int) -> int:
        """Return the first offset of block `at`, or the end of the entry."""
        return index.block(at)[2] if at < len(index) else self._piece.entry_end

    def plain(self, load: Load) -> Iterator[BatchRun]:
        """Yield whole batches of an entry whose index is damaged, as they are read."""
        base, upto = self._piece.entry_base, self._piece.entry_end
        stop = self._piece.start + self._piece.length
        self._carried += load.data
        cut = len(load.data) < load.length
        left = 0 if cut else stop - load.position - load.length
        size = _whole(self._carried, left)
        data, self._carried = bytes(self._carried[:size]), self._carried[size:]
        if data:
            yield BatchRun(data, base, upto, check_crc=True)
        if cut:
            yield BatchRun(bytes(self._carried), base, upto, damaged=True)


def _find_damaged_block(
    index: SparseIndex, position: int, view: memoryview, stop: int
) -> int | None:
    """Return the first block from `position` on, before `stop`, that is damaged or incomplete."""
    bad = index.find_damaged_block(position, view)
    if bad is None and position + len(view) < stop:
        return index.block(index.find(position + len(view)))[0]
    return bad


def _before(data: memoryview, offset: int) -> int:
    """Return the size of the batches that begin below an offset."""
    try:
        for at, head in iter_batches(data):
            if head.base_offset >= offset:
                return at
    except KafkaError:
        pass  # reported by the decoder
    return len(data)


def _whole(data: bytearray, left: int) -> int:
    """Return the size of the whole batches at the beginning, with `left` bytes still to come. All,
    if none follows, or if there is no batch header: the decoder reports it."""
    size = 0
    try:
        for at, head in iter_batches(data):
            size = at + head.size_bytes
        if not left or size + read_head(data, size).size_bytes > len(data) + left:
            return len(data)
    except KafkaError:
        return size if left and len(data) - size < HEAD_BYTES else len(data)
    return size
