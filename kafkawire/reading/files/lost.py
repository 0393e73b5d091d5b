"""Offsets of a range that were lost when damaged batches were left out of its segments.

A segment that was rewritten without damaged batches lists their offsets. It is read only if a range
has offsets without a record, which compaction also causes: one small request per file.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    LOST,
    TAIL_BYTES,
    LostRange,
    read_lost,
    read_trailer,
    section_body,
)
from kafkawire.reading.files.locations import Place, PlaceError
from kafkawire.reading.model.source import Piece

FILES_KEPT = 4096
"""Files whose results are cached: tasks of a process read the same files."""

logger = logging.getLogger(__name__)


def lost_ranges(place: Place, piece: Piece) -> list[tuple[int, int]]:
    """Return lost offsets [base, end) within a piece; none if that cannot be read."""
    try:
        known = _read(place, piece.key, piece.file_bytes).get(piece.number, [])
    except (FormatError, FileNotFoundError, PlaceError) as failure:
        where = place.where(piece.key)
        logger.warning("%s: what was lost of it cannot be read: %s", where, failure)
        return []
    found = [(max(each.first, piece.base), min(each.end, piece.end)) for each in known]
    return [(base, end) for base, end in found if base < end]


@lru_cache(FILES_KEPT)
def _read(place: Place, key: str, file_bytes: int) -> dict[int, list[LostRange]]:
    size = min(TAIL_BYTES, file_bytes)
    trailer = read_trailer(place.get_range(key, file_bytes - size, size), file_bytes)
    section = trailer.optional(LOST)
    if section is None:
        return {}
    return read_lost(
        section_body(section, place.get_range(key, section.start, section.stop - section.start))
    )
