"""Find the first record at or after a time in a piece of a segment: by its index, then exactly."""

from __future__ import annotations

from kafkawire.codec.batches import CONTROL, iter_batches, records
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.read_ahead import read_index
from kafkawire.reading.model.source import DamagedData, Piece

SEARCH_BYTES = 256 << 10
"""Bytes read at a time. The first block that may have the time nearly always has it."""


def first_since(place: Place, piece: Piece, topic: str, partition: int, ms: int) -> int | None:
    """Return the first offset of the piece whose record's timestamp is `ms` or later; None if there
    is none. Raises DamagedData, FileNotFoundError."""
    if not piece.length:
        return None
    where = f"{place.where(piece.key)}, partition {partition} of topic {topic!r}"
    try:
        index = read_index(place, piece)
        if index is None:
            raise FormatError("its index is damaged")
        position = index.since(ms)
        if position is None:
            return None
        begin = index.block(index.find(index.span(piece.base, 1)[0]))[0]
        for start, length in index.runs(
            max(position, begin), piece.start + piece.length, SEARCH_BYTES
        ):
            data = place.get_range(piece.key, start, length)
            bad = index.damaged(start, data)
            if len(data) != length or bad is not None:
                raise FormatError(f"its bytes at {start if bad is None else bad} are damaged")
            found = _first(data, piece, ms)
            if found is not None:
                return found if found < piece.end else None
    except (FormatError, KafkaError) as failure:
        raise DamagedData(f"{where}: {failure}", topic, partition, piece.base, piece.end) from None
    return None


def _first(data: bytes, piece: Piece, ms: int) -> int | None:
    """Return the same for some whole batches; an offset beyond the piece means there is none."""
    for at, head in iter_batches(data):
        if head.base_offset >= piece.end:
            return head.base_offset
        if head.max_timestamp < ms or head.last_offset < piece.base or head.attributes & CONTROL:
            continue
        for record in records(data, at):
            if record.offset >= piece.base and record.timestamp >= ms:
                return record.offset
    return None
