"""Find the first record at or after a time in a piece of a segment: by its index, then exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.time_lookup import TimedPiece, find_first_since, run_in_thread
from kafkawire.codec.types import Buffer
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.read_ahead import read_index
from kafkawire.reading.model.source import DamagedData, Piece

SEARCH_BYTES = 256 << 10
"""Bytes read at a time. The first block that may have the time nearly always has it."""


class _SegmentPiece(TimedPiece):
    """The blocks of a piece from the first on that may have a record at or after a time."""

    def __init__(self, place: Place, piece: Piece, ms: int) -> None:
        self._bounds = piece.base, piece.end
        self._blocks = _read_blocks(place, piece, ms)

    def bounds(self) -> tuple[int, int]:
        return self._bounds

    async def read_next(self) -> Sequence[Buffer]:
        found = next(self._blocks, None)
        return () if found is None else (found,)


def find_time_in_piece(
    place: Place, piece: Piece, topic: str, partition: int, ms: int
) -> int | None:
    """Return the first offset of the piece whose record's timestamp is `ms` or later; None if there
    is none. Raises DamagedData, FileNotFoundError."""
    try:
        found = run_in_thread(find_first_since(_SegmentPiece(place, piece, ms), ms))
    except (FormatError, KafkaError) as failure:
        where = f"{place.where(piece.key)}, partition {partition} of topic {topic!r}"
        raise DamagedData(f"{where}: {failure}", topic, partition, piece.base, piece.end) from None
    return None if found is None else found.offset


def _read_blocks(place: Place, piece: Piece, ms: int) -> Iterator[bytes]:
    """Yield verified runs of whole blocks. Raises FormatError, FileNotFoundError."""
    if not piece.length:
        return
    index = read_index(place, piece)
    if index is None:
        raise FormatError("its index is damaged")
    position = index.since(ms)
    if position is None:
        return
    begin = index.block(index.find(index.span(piece.base, 1)[0]))[0]
    for start, length in index.runs(max(position, begin), piece.start + piece.length, SEARCH_BYTES):
        data = place.get_range(piece.key, start, length)
        bad = index.find_damaged_block(start, data)
        if len(data) != length or bad is not None:
            raise FormatError(f"its bytes at {start if bad is None else bad} are damaged")
        yield data
