"""Skip records by key: blocks that cannot have a key when planning, other rows in the tasks.

Rows are filtered before they are passed to Spark, which costs more than decoding them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kafkawire.reading.files.key_index import KeyBlocks
from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import PartitionRange, Piece, TaskPart

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


def ranges_with_keys(
    places: Sequence[Place],
    parts: Sequence[TaskPart],
    keys: Collection[bytes],
    blocks: KeyBlocks,
) -> list[PartitionRange]:
    """Return the ranges of `parts` that may have one of the keys; no two are adjacent.

    Offsets that are in no piece are kept: the broker has them, or they are reported as lost.
    """
    every = [piece for part in parts for piece in part.pieces]
    narrowed = blocks.narrow(places, every, keys)
    logger.info("%d of %d segments may have the keys", _segments(narrowed), _segments(every))
    kept = _Kept(narrowed)
    found: list[PartitionRange] = []
    for part in parts:
        at = part.range.base
        for piece in part.pieces:
            _add(found, part.range, at, piece.base)
            for base, end in kept.kept_ranges(piece):
                _add(found, part.range, base, end)
            at = piece.end
        _add(found, part.range, at, part.range.end)
    return found


class _Kept:
    """The pieces that a KeyBlocks has returned, in order."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces, self._at = pieces, 0

    def kept_ranges(self, piece: Piece) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are left of a piece; called for all pieces in order."""
        while self._at < len(self._pieces):
            each = self._pieces[self._at]
            inside = piece.base <= each.base < each.end <= piece.end
            if each._replace(base=piece.base, end=piece.end) != piece or not inside:
                return
            yield each.base, each.end
            self._at += 1


def _segments(pieces: Sequence[Piece]) -> int:
    return len({(piece.place, piece.key) for piece in pieces})


def _add(found: list[PartitionRange], whole: PartitionRange, base: int, end: int) -> None:
    if base >= end:
        return
    last = found[-1] if found else None
    if last is not None and last == whole._replace(base=last.base, end=base):
        found[-1] = last._replace(end=end)
    else:
        found.append(whole._replace(base=base, end=end))


def rows_with_keys(
    batches: Iterable[pa.RecordBatch], column: str, keys: Collection[bytes]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose `column` is one of the keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(sorted(keys), pa.binary())
    for batch in batches:
        rows = batch.filter(pc.is_in(batch.column(column), value_set=wanted))
        if rows.num_rows:
            yield rows
