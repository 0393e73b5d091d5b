"""Choose the objects of a partition if several hold the same offsets. Pure.

A reader of ranges uses, for each offset, the object of the highest generation. Rows in SQL are
whole entries that must not overlap. Of all choices without overlap, the one that covers the most
offsets is taken, and of these the one with the highest generations. Both methods usually give the
same result. They differ if only some outputs of a rewrite were uploaded when the broker was lost;
then its inputs, which are complete, still exist.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
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


def choose(pieces: Sequence[ObjectRange], log_start: int) -> list[ObjectRange]:
    """Return the pieces to read from `log_start` on, in offset order."""
    useful = [piece for piece in pieces if piece.end > max(log_start, piece.base)]
    useful.sort(key=lambda piece: (piece.end, piece.base, piece.created_ms, piece.uuid))
    ends = [piece.end for piece in useful]
    best: list[Weight] = [NOTHING]  # best choice of the first n pieces
    before: list[int] = []  # how many pieces may be combined with piece n
    for at, piece in enumerate(useful):
        joined = bisect_right(ends, piece.base, 0, at)
        before.append(joined)
        best.append(max(best[at], _sum(best[joined], _weight(piece, log_start))))
    chosen: list[ObjectRange] = []
    at = len(useful)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(useful[at - 1])
            at = before[at - 1]
    return chosen[::-1]


def _weight(piece: ObjectRange, log_start: int) -> Weight:
    covered = piece.end - max(piece.base, log_start)
    return covered, covered * piece.generation, -1, covered * piece.created_ms


def _sum(one: Weight, other: Weight) -> Weight:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def rivals(pieces: Sequence[ObjectRange]) -> list[tuple[ObjectRange, ObjectRange]]:
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


def gaps(chosen: Sequence[ObjectRange], start: int, end: int) -> list[tuple[int, int]]:
    """Return the offsets of [start, end) that no chosen piece covers."""
    found = []
    for piece in chosen:
        if piece.base > start:
            found.append((start, min(piece.base, end)))
        start = max(start, piece.end)
    if start < end:
        found.append((start, end))
    return found
