"""Find the first offset that was stored at or after a time, by the store times of segments.

Store times rise with offsets, so the segments of a partition are bisected: two small requests for
each of a few files. Segments of earlier versions have no store times, and count as stored before
all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    STORED,
    TAIL_BYTES,
    read_stored,
    read_trailer,
    section_body,
)
from kafkawire.codec.segment.stored import Step, select_steps
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import Piece, SourceError

FILES_KEPT = 4096
"""Files whose store times are cached: partitions share files."""


def find_stored(places: Sequence[Place], pieces: Sequence[Piece], ms: int) -> int | None:
    """Return the first offset of a partition's pieces that was stored at `ms` or later; None if
    there is none. Raises SourceError, FileNotFoundError."""
    low, high = 0, len(pieces)
    while low < high:
        middle = (low + high) // 2
        steps = _steps(places, pieces[middle])
        if steps and steps[0][1] >= ms:
            high = middle
        else:
            low = middle + 1
    # The piece before the first that begins at or after the time may reach it.
    if low:
        for offset, stored_ms in _steps(places, pieces[low - 1]):
            if stored_ms >= ms:
                return offset
    return pieces[low].base if low < len(pieces) else None


def _steps(places: Sequence[Place], piece: Piece) -> list[Step]:
    place = places[piece.place]
    try:
        steps = _read(place, piece.key, piece.file_bytes).get(piece.number, [])
    except FormatError as failure:
        where = place.where(piece.key)
        raise SourceError(f"{where}: its store times cannot be read: {failure}") from failure
    return select_steps(steps, piece.base, piece.end)


@lru_cache(FILES_KEPT)
def _read(place: Place, key: str, file_bytes: int) -> dict[int, list[Step]]:
    size = min(TAIL_BYTES, file_bytes)
    trailer = read_trailer(place.get_range(key, file_bytes - size, size), file_bytes)
    section = trailer.optional(STORED)
    if section is None:
        return {}
    return read_stored(
        section_body(section, place.get_range(key, section.start, section.stop - section.start))
    )
