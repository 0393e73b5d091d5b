"""Choose what a partition is read from after local files were lost. Pure.

Its mappings must be contiguous again. A mapping whose segment has a file or an object is kept;
finished objects replace those whose files are lost. These objects were replaced locally by a merge
or a compaction whose outputs were not uploaded, so they need not end where a kept mapping begins:
then the rest of an object is copied from there on. If all of these do not reach the commit offset,
records are lost: then a mapping without file and object that begins below the commit offset is
kept, if something that can be read follows it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class PieceKind(IntEnum):
    """KEPT: a mapping that can be read; STORED: a finished object without a mapping; LOST: a
    mapping that cannot be read."""

    KEPT = 0
    STORED = 1
    LOST = 2


class SegmentPiece(NamedTuple):
    """The offsets [base, end) in one segment. `has_object`: a part of it may be copied; `key`
    identifies it for the caller."""

    base: int
    end: int
    generation: int
    kind: PieceKind
    has_object: bool
    key: int


class Chosen(NamedTuple):
    """A piece that is read from `start` on; above its base: after a copy of that part."""

    piece: SegmentPiece
    start: int

    @property
    def is_part(self) -> bool:
        """Return whether it must be copied."""
        return self.start > self.piece.base


Cost = tuple[int, int, int, int]
"""Lost pieces, copied parts, offsets that were not read from there before, sum of negative
generations: compared in this order."""


class _Reached(NamedTuple):
    """The best way to cover everything up to an offset. `before`: the offset that its last piece
    continues; None: it is the first one."""

    cost: Cost
    before: int | None
    last: Chosen


def cover(pieces: Sequence[SegmentPiece], begin: int, commit: int) -> list[Chosen]:
    """Return pieces that are contiguous from `begin` on, in order, and reach as far as possible;
    the first one may start below `begin`. Empty if none has that offset. `commit`: the commit
    offset of the partition."""
    sound = [piece for piece in pieces if piece.kind != PieceKind.LOST]
    chosen = _longest(sound, begin)
    if (chosen[-1].piece.end if chosen else begin) >= commit:
        return chosen
    return _longest([p for p in pieces if p.kind != PieceKind.LOST or p.base < commit], begin)


def _longest(pieces: Sequence[SegmentPiece], begin: int) -> list[Chosen]:
    """Return the pieces of the chain that reaches furthest, at the least cost."""
    reached: dict[int, _Reached] = {}
    ends: list[int] = []  # keys of `reached`, ascending
    for piece in sorted(pieces, key=lambda piece: (piece.end, piece.base, piece.kind)):
        if piece.base >= piece.end:
            continue
        best = reached.get(piece.end)
        for found in _ways(piece, begin, reached, ends):
            if best is None or found.cost < best.cost:
                best = found
        if best is None:
            continue
        if piece.end not in reached:
            ends.append(piece.end)
        reached[piece.end] = best
    while ends and reached[ends[-1]].last.piece.kind == PieceKind.LOST:
        ends.pop()  # nothing follows it
    chosen: list[Chosen] = []
    at = ends[-1] if ends else None
    while at is not None:
        chosen.append(reached[at].last)
        at = reached[at].before
    return chosen[::-1]


def _ways(
    piece: SegmentPiece, begin: int, reached: dict[int, _Reached], ends: list[int]
) -> list[_Reached]:
    """Return the ways that end with this piece."""
    found: list[_Reached] = []
    if piece.base <= begin < piece.end:
        found.append(_Reached(_cost(piece, piece.base), None, Chosen(piece, piece.base)))
    for at in range(bisect_left(ends, piece.base), len(ends)):
        start = ends[at]
        if start >= piece.end or (start > piece.base and not piece.has_object):
            break
        one, other = reached[start].cost, _cost(piece, start)
        cost = one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
        found.append(_Reached(cost, start, Chosen(piece, start)))
    return found


def _cost(piece: SegmentPiece, start: int) -> Cost:
    offsets, is_part = piece.end - start, start > piece.base
    new = offsets if piece.kind != PieceKind.KEPT or is_part else 0
    return int(piece.kind == PieceKind.LOST), int(is_part), new, -piece.generation * offsets
