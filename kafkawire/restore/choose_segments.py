"""Choose the segments that a partition is read from, where several have the same offsets. Pure.

Rows in SQL are whole entries that must not overlap. `choose_objects`: of a bucket alone, as many
offsets as possible. `cover_lost_files`: after local files were lost, contiguous mappings again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class ObjectRange(NamedTuple):
    """The offsets [base, end) in an object; `key` identifies it for the caller."""

    base: int
    end: int
    generation: int
    created_ms: int
    uuid: bytes
    key: int


Weight = tuple[int, int, int, int]
"""Offsets covered, sum of generations, fewer pieces, newer pieces: compared in this order."""
NOTHING: Weight = (0, 0, 0, 0)


def choose_objects(pieces: Sequence[ObjectRange], log_start: int) -> list[ObjectRange]:
    """Return the pieces to read from `log_start` on, in offset order: of all choices without
    overlap, the one that covers the most offsets, and of these the one with the highest
    generations.

    A reader of ranges uses, for each offset, the object of the highest generation, which usually
    gives the same result. They differ if only some outputs of a rewrite were uploaded when the
    broker was lost; then its inputs, which are complete, still exist."""
    useful = [piece for piece in pieces if piece.end > max(log_start, piece.base)]
    useful.sort(key=lambda piece: (piece.end, piece.base, piece.created_ms, piece.uuid))
    ends = [piece.end for piece in useful]
    best: list[Weight] = [NOTHING]  # best choice of the first n pieces
    before: list[int] = []  # how many pieces may be combined with piece n
    for at, piece in enumerate(useful):
        joined = bisect_right(ends, piece.base, 0, at)
        before.append(joined)
        best.append(max(best[at], _add_weights(best[joined], _weigh(piece, log_start))))
    chosen: list[ObjectRange] = []
    at = len(useful)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(useful[at - 1])
            at = before[at - 1]
    return chosen[::-1]


def _weigh(piece: ObjectRange, log_start: int) -> Weight:
    covered = piece.end - max(piece.base, log_start)
    return covered, covered * piece.generation, -1, covered * piece.created_ms


def _add_weights(one: Weight, other: Weight) -> Weight:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def find_rivals(pieces: Sequence[ObjectRange]) -> list[tuple[ObjectRange, ObjectRange]]:
    """Return neighbours with the same offsets and generation: written by two brokers, or twice."""
    found = []
    newest: dict[int, ObjectRange] = {}
    for piece in sorted(pieces, key=lambda piece: (piece.base, piece.end)):
        if piece.base == piece.end:
            continue
        other = newest.get(piece.generation)
        if other is not None and piece.base < other.end:
            found.append((other, piece))
        if other is None or piece.end > other.end:
            newest[piece.generation] = piece
    return found


def find_gaps(chosen: Sequence[ObjectRange], start: int, end: int) -> list[tuple[int, int]]:
    """Return the offsets of [start, end) that no chosen piece covers."""
    found = []
    for piece in chosen:
        if piece.base > start:
            found.append((start, min(piece.base, end)))
        start = max(start, piece.end)
    if start < end:
        found.append((start, end))
    return found


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


def cover_lost_files(pieces: Sequence[SegmentPiece], begin: int, commit: int) -> list[Chosen]:
    """Return pieces that are contiguous from `begin` on, in order, and reach as far as possible;
    the first one may start below `begin`. Empty if none has that offset. `commit`: the commit
    offset of the partition.

    A mapping whose segment has a file or an object is kept; finished objects replace those whose
    files are lost. These objects were replaced locally by a merge or a compaction whose outputs
    were not uploaded, so they need not end where a kept mapping begins: then the rest of an object
    is copied from there on. If all of these do not reach the commit offset, records are lost: then
    a mapping without file and object that begins below the commit offset is kept, if something that
    can be read follows it."""
    sound = [piece for piece in pieces if piece.kind != PieceKind.LOST]
    chosen = _longest_chain(sound, begin)
    if (chosen[-1].piece.end if chosen else begin) >= commit:
        return chosen
    return _longest_chain([p for p in pieces if p.kind != PieceKind.LOST or p.base < commit], begin)


def _longest_chain(pieces: Sequence[SegmentPiece], begin: int) -> list[Chosen]:
    """Return the pieces of the chain that reaches furthest, at the least cost."""
    reached: dict[int, _Reached] = {}
    ends: list[int] = []  # keys of `reached`, ascending
    for piece in sorted(pieces, key=lambda piece: (piece.end, piece.base, piece.kind)):
        if piece.base >= piece.end:
            continue
        best = reached.get(piece.end)
        for found in _ways_to_end(piece, begin, reached, ends):
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


def _ways_to_end(
    piece: SegmentPiece, begin: int, reached: dict[int, _Reached], ends: list[int]
) -> list[_Reached]:
    """Return the ways that end with this piece."""
    found: list[_Reached] = []
    if piece.base <= begin < piece.end:
        found.append(_Reached(_cost_of(piece, piece.base), None, Chosen(piece, piece.base)))
    for at in range(bisect_left(ends, piece.base), len(ends)):
        start = ends[at]
        if start >= piece.end or (start > piece.base and not piece.has_object):
            break
        one, other = reached[start].cost, _cost_of(piece, start)
        cost = one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
        found.append(_Reached(cost, start, Chosen(piece, start)))
    return found


def _cost_of(piece: SegmentPiece, start: int) -> Cost:
    offsets, is_part = piece.end - start, start > piece.base
    new = offsets if piece.kind != PieceKind.KEPT or is_part else 0
    return int(piece.kind == PieceKind.LOST), int(is_part), new, -piece.generation * offsets
