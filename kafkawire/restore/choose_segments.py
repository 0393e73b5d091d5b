"""Choose the segments that a partition is read from, where several have the same offsets. Pure.

Rows in SQL are whole entries that must not overlap. `choose_most`: as many offsets as possible,
also with gaps. `choose_chain`: without gaps up to the last offset, where the journals continue.
`cover_lost_files`: after local files were lost, contiguous mappings again, also of parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from kafkawire.restore.evidence import SegmentShare

Weight = tuple[int, int, int, int]
"""Offsets covered, sum of generations, fewer segments, newer segments: compared in this order."""
NOTHING: Weight = (0, 0, 0, 0)


def choose_most(shares: Iterable[SegmentShare], log_start: int) -> list[SegmentShare]:
    """Return the shares to read from `log_start` on, in offset order: of all choices without
    overlap, the one that covers the most offsets, and of these the one with the highest
    generations."""
    # Not the highest generation for each offset, as readers of the bucket choose. That differs if
    # only some outputs of a rewrite were uploaded when the broker was lost; then its inputs, which
    # are complete, still exist. Weighted interval scheduling: `best[n]` is of the first n shares.
    useful = [share for share in shares if share.offsets[1] > max(log_start, share.offsets[0])]
    useful.sort(key=lambda share: (*share.offsets[::-1], share.file.created_ms, share.file.object))
    ends = [share.offsets[1] for share in useful]
    best: list[Weight] = [NOTHING]
    before: list[int] = []  # how many shares may be combined with share n
    for at, share in enumerate(useful):
        joined = bisect_right(ends, share.offsets[0], 0, at)
        before.append(joined)
        best.append(max(best[at], _add_weights(best[joined], _weigh(share, log_start))))
    chosen: list[SegmentShare] = []
    at = len(useful)
    while at:
        if best[at] == best[at - 1]:
            at -= 1
        else:
            chosen.append(useful[at - 1])
            at = before[at - 1]
    return chosen[::-1]


def _weigh(share: SegmentShare, log_start: int) -> Weight:
    base, end = share.offsets
    covered = end - max(base, log_start)
    return covered, covered * share.file.generation, -1, covered * share.file.created_ms


def _add_weights(one: Weight, other: Weight) -> Weight:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def find_rivals(shares: Iterable[SegmentShare]) -> list[tuple[SegmentShare, SegmentShare]]:
    """Return neighbours with the same offsets and generation: written by two brokers, or twice."""
    found = []
    newest: dict[int, SegmentShare] = {}
    for share in sorted(shares, key=lambda share: share.offsets):
        base, end = share.offsets
        if base == end:
            continue
        other = newest.get(share.file.generation)
        if other is not None and base < other.offsets[1]:
            found.append((other, share))
        if other is None or end > other.offsets[1]:
            newest[share.file.generation] = share
    return found


def choose_chain(shares: Iterable[SegmentShare], log_start: int) -> list[SegmentShare]:
    """Return the shares to read: without a gap between them, as far to the end as there are any,
    and from there as far to the front as possible; the newest where several have the same offsets,
    as after an interrupted cut, or with the inputs of a merge."""
    best: dict[int, tuple[tuple[int, bool, int, bytes], SegmentShare]] = {}  # by end offset
    useful = [share for share in shares if share.offsets[1] > log_start]
    # By their ends: the chains that a share may continue are known before it.
    for share in sorted(useful, key=lambda share: share.offsets[::-1]):
        begin, end = share.offsets
        # Ranked by where its whole chain begins.
        if begin in best:
            begin = -best[begin][0][0]
        rank = -begin, bool(share.file.path), share.file.created_ms, share.file.uuid
        if end not in best or rank > best[end][0]:
            best[end] = rank, share
    chain: list[SegmentShare] = []
    at = max(best, default=-1)
    while at in best:
        chain.append(best[at][1])
        at = chain[-1].offsets[0]
    return chain[::-1]


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
    files are lost."""
    # These objects were replaced locally by a merge or a compaction whose outputs were not
    # uploaded, so they need not end where a kept mapping begins: then the rest of an object is
    # copied from there on.
    sound = [piece for piece in pieces if piece.kind != PieceKind.LOST]
    chosen = _longest_chain(sound, begin)
    if (chosen[-1].piece.end if chosen else begin) >= commit:
        return chosen
    # Records are lost: then a mapping without file and object is kept, too, if something that can
    # be read follows it.
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
    # Nothing that can be read follows it.
    while ends and reached[ends[-1]].last.piece.kind == PieceKind.LOST:
        ends.pop()
    chosen: list[Chosen] = []
    at = ends[-1] if ends else None
    while at is not None:
        chosen.append(reached[at].last)
        at = reached[at].before
    return chosen[::-1]


def _ways_to_end(
    piece: SegmentPiece, begin: int, reached: dict[int, _Reached], ends: list[int]
) -> list[_Reached]:
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
