"""Aborted transactions of a partition, from the state of its segments.

A segment's state has those that overlap its offsets, also if their marker is in a later segment
(docs/segment-format.md). So only the segments of a range are read, and these only if there is a
transactional batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from kafkawire.codec.control import Aborted
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.segment.format import (
    STATE,
    TAIL_BYTES,
    read_state,
    read_trailer,
    section_body,
)
from kafkawire.reading.catalog import SourceCatalog
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import PartitionRange, Piece, SourceError

FILES_AT_ONCE = 8
"""Files read concurrently, with two sequential small requests each: half a second with a remote
bucket."""
FILES_KEPT = 4096
"""Files whose results are cached: tasks of a process read the same files."""


def aborted_transactions(catalog: SourceCatalog, wanted: PartitionRange) -> list[Aborted]:
    """Return the aborted transactions that may overlap a range. Raises SourceError if a segment's
    state cannot be read."""
    part = catalog.part(wanted)
    with ThreadPoolExecutor(FILES_AT_ONCE, "kafkawire-states") as pool:
        places = [catalog.places[piece.place] for piece in part.pieces]
        found = {
            each
            for some in pool.map(_read_aborted, places, part.pieces)
            for each in some
            if each.first < wanted.end and each.marker >= wanted.base
        }
    return sorted(found)


def _read_aborted(place: Place, piece: Piece) -> tuple[Aborted, ...]:
    try:
        return _read(place, piece.key, piece.file_bytes, piece.number)
    except (FormatError, FileNotFoundError) as failure:
        raise SourceError(
            f"{place.where(piece.key)}: which transactions were aborted cannot be read: {failure}"
        ) from None


@lru_cache(FILES_KEPT)
def _read(place: Place, key: str, file_bytes: int, number: int) -> tuple[Aborted, ...]:
    size = min(TAIL_BYTES, file_bytes)
    trailer = read_trailer(place.get_range(key, file_bytes - size, size), file_bytes)
    section = trailer.optional(STATE)
    if section is None:
        return ()
    stored = place.get_range(key, section.start, section.stop - section.start)
    state = read_state(section_body(section, stored)).get(number)
    return () if state is None else tuple(state.aborted)
