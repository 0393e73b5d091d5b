"""Choose the segments that a partition is read from, where several have the same offsets. Pure.

Rows in SQL are whole entries that must not overlap. `choose_most`: as many offsets as possible,
also with gaps. `choose_chain`: without gaps up to the last offset, where the journals continue.
`cover_lost_files`: after local files were lost, contiguous mappings again, also of parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import add
from typing import NamedTuple

from kafkawire.restore.evidence import SegmentShare


class Weight(NamedTuple):
    """How good a choice is, compared in the order of the fields."""

    covered: int = 0  # offsets
    generations: int = 0  # of the segment of each offset, in sum
    fewer_segments: int = 0
    created: int = 0  # newer segments

    def plus(self, other: Weight) -> Weight:
        return Weight(*map(add, self, other))


def choose_most(shares: Iterable[SegmentShare], log_start: int) -> list[SegmentShare]:
    """Return the shares to read from `log_start` on, in offset order: of all choices without
    overlap, the one that covers the most offsets, and of these the one with the highest
    generations."""
    # Not the highest generation for each offset, as readers of the bucket choose. That differs if
    # only some outputs of a rewrite were uploaded when the broker was lost; then its inputs, which
    # are complete, still exist. Weighted interval scheduling: `best[n]` is of the first n shares.
    useful = [share for share in shares if share.end > max(log_start, share.base)]
    useful.sort(key=lambda share: (*share.offsets[::-1], share.file.created_ms, share.file.object))
    ends = [share.end for share in useful]
    best = [Weight()]
    before: list[int] = []  # how many shares may be combined with share n
    for at, share in enumerate(useful):
        joined = bisect_right(ends, share.base, 0, at)
        before.append(joined)
        best.append(max(best[at], best[joined].plus(_weigh(share, log_start))))
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
    return Weight(covered, covered * share.file.generation, -1, covered * share.file.created_ms)


def find_rivals(shares: Iterable[SegmentShare]) -> list[tuple[SegmentShare, SegmentShare]]:
    """Return neighbours with the same offsets and generation: written by two brokers, or twice."""
    found = []
    newest: dict[int, SegmentShare] = {}
    for share in sorted(shares, key=lambda share: share.offsets):
        base, end = share.offsets
        if base == end:
            continue
        other = newest.get(share.file.generation)
        if other is not None and base < other.end:
            found.append((other, share))
        if other is None or end > other.end:
            newest[share.file.generation] = share
    return found


class _ChainEnd(NamedTuple):
    """The last share of a chain. `begin`: where the chain begins; the highest `rank` is chosen."""

    begin: int
    rank: tuple[int, bool, int, bytes]
    share: SegmentShare


def choose_chain(shares: Iterable[SegmentShare], log_start: int) -> list[SegmentShare]:
    """Return the shares to read: without a gap between them, as far to the end as there are any,
    and from there as far to the front as possible; the newest where several have the same offsets,
    as after an interrupted cut, or with the inputs of a merge."""
    best: dict[int, _ChainEnd] = {}  # by end offset
    useful = [share for share in shares if share.end > log_start]
    # By their ends: the chains that a share may continue are known before it.
    for share in sorted(useful, key=lambda share: share.offsets[::-1]):
        begin, end = share.offsets
        # Ranked by where its whole chain begins.
        if begin in best:
            begin = best[begin].begin
        rank = -begin, bool(share.file.path), share.file.created_ms, share.file.uuid
        if end not in best or rank > best[end].rank:
            best[end] = _ChainEnd(begin, rank, share)
    chain: list[SegmentShare] = []
    at = max(best, default=-1)
    while at in best:
        chain.append(best[at].share)
        at = chain[-1].base
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


class Cost(NamedTuple):
    """How bad a choice is, compared in the order of the fields."""

    lost: int  # pieces
    copied: int  # parts
    moved: int  # offsets that were not read from there before
    generations: int  # of the segment of each offset, in sum, negative

    def plus(self, other: Cost) -> Cost:
        return Cost(*map(add, self, other))


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
        cost = reached[start].cost.plus(_cost_of(piece, start))
        found.append(_Reached(cost, start, Chosen(piece, start)))
    return found


def _cost_of(piece: SegmentPiece, start: int) -> Cost:
    offsets, is_part = piece.end - start, start > piece.base
    moved = offsets if piece.kind != PieceKind.KEPT or is_part else 0
    lost = int(piece.kind == PieceKind.LOST)
    return Cost(lost, int(is_part), moved, -piece.generation * offsets)
