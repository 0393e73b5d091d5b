"""The segments that a partition is read from, compared with all possibilities."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.manifest.columns import Entry
from kafkawire.restore.choose_segments import (
    Chosen,
    PieceKind,
    SegmentPiece,
    choose_most,
    cover_lost_files,
    find_rivals,
)
from kafkawire.restore.evidence import SegmentSeen, SegmentShare

KEPT, STORED, LOST = PieceKind.KEPT, PieceKind.STORED, PieceKind.LOST


def pieces(*rows: tuple[int, int, PieceKind]) -> list[SegmentPiece]:
    """Pieces with objects, except lost ones; the generation is the position."""
    return [
        SegmentPiece(base, end, at, kind, kind != LOST, at)
        for at, (base, end, kind) in enumerate(rows)
    ]


def keys(chosen: list[Chosen]) -> list[tuple[int, int]]:
    return [(each.piece.key, each.start) for each in chosen]


def test_mapping_without_file_is_removed_with_all_that_follow() -> None:
    rows = pieces((0, 10, KEPT), (10, 20, LOST), (20, 30, KEPT))
    assert keys(cover_lost_files(rows, 0, 10)) == [(0, 0)]
    assert cover_lost_files(rows[1:], 10, 10) == []
    assert cover_lost_files([], 0, 0) == []


def test_objects_replace_lost_mapping_and_rest_is_kept() -> None:
    rows = pieces((0, 10, KEPT), (10, 30, LOST), (30, 40, KEPT), (10, 20, STORED), (20, 30, STORED))
    assert keys(cover_lost_files(rows, 0, 40)) == [(0, 0), (3, 10), (4, 20), (2, 30)]


def test_existing_mapping_and_newer_object_are_preferred() -> None:
    rows = pieces((0, 10, KEPT), (10, 20, LOST), (0, 10, STORED), (10, 20, STORED), (0, 20, STORED))
    assert keys(cover_lost_files(rows, 0, 20)) == [(0, 0), (3, 10)]
    rows = pieces((0, 20, LOST), (0, 10, STORED), (10, 20, STORED), (0, 20, STORED))
    assert keys(cover_lost_files(rows, 0, 20)) == [(3, 0)]


def test_first_piece_may_begin_below_log_start() -> None:
    rows = pieces((0, 20, LOST), (0, 12, STORED), (12, 20, STORED))
    assert keys(cover_lost_files(rows, 11, 20)) == [(1, 0), (2, 12)]
    assert keys(cover_lost_files(rows, 15, 20)) == [(2, 12)]
    assert cover_lost_files(rows, 20, 20) == []


def test_part_is_copied_if_an_output_ends_within_an_input() -> None:
    rows = pieces((0, 120, KEPT), (120, 200, LOST), (100, 200, STORED))
    assert keys(cover_lost_files(rows, 0, 200)) == [(0, 0), (2, 120)]
    whole = [*rows, SegmentPiece(0, 100, 9, STORED, True, 3)]
    assert keys(cover_lost_files(whole, 0, 200)) == [(3, 0), (2, 100)], "nothing needs to be copied"


def test_lost_mapping_below_commit_offset_joins_what_follows() -> None:
    rows = pieces((0, 10, KEPT), (10, 20, LOST), (20, 30, KEPT), (30, 40, LOST))
    assert keys(cover_lost_files(rows, 0, 30)) == [(0, 0), (1, 10), (2, 20)]
    assert keys(cover_lost_files(rows, 0, 40)) == [(0, 0), (1, 10), (2, 20)]


def test_lost_mapping_is_not_kept_if_objects_reach_the_commit_offset() -> None:
    rows = pieces((0, 45, LOST), (45, 54, KEPT), (0, 27, STORED))
    assert keys(cover_lost_files(rows, 24, 27)) == [(2, 0)]
    assert keys(cover_lost_files(rows, 24, 28)) == [(0, 0), (1, 45)]


def _reach(rows: list[SegmentPiece], begin: int, commit: int) -> int:
    """How far a reader of pieces comes from `begin` on, if it may read parts of those with
    objects: all offsets that can be reached, by trying everything."""
    reached = {begin: True}  # offset -> whether a piece that is not lost ends there
    first = True
    while True:
        found = dict(reached)
        for piece in rows:
            for at in reached:
                inside = piece.base <= at < piece.end
                free = piece.has_object or piece.base == at or (at == begin and first)
                lost = piece.kind == LOST
                if inside and free and not (lost and piece.base >= commit):
                    found[piece.end] = found.get(piece.end, False) or not lost
        first = False
        if found == reached:
            return max(at for at, good in reached.items() if good)
        reached = found


KINDS = st.sampled_from([KEPT, STORED, LOST])


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), KINDS, st.booleans()), max_size=9),
    st.integers(0, 10),
    st.integers(0, 20),
)
def test_chosen_pieces_are_contiguous_and_reach_as_far_as_possible(
    drawn: list[tuple[int, int, PieceKind, bool]], begin: int, commit: int
) -> None:
    rows = [
        SegmentPiece(
            base, base + length, at % 3, kind, kind == STORED or (kind == KEPT and has), at
        )
        for at, (base, length, kind, has) in enumerate(drawn)
    ]
    chosen = cover_lost_files(rows, begin, commit)
    for one, other in itertools.pairwise(chosen):
        assert other.start == one.piece.end
        assert other.piece.base <= other.start < other.piece.end
    for each in chosen:
        assert not each.is_part or each.piece.has_object
        assert each.piece.kind != LOST or each.piece.base < commit
    if chosen:
        assert chosen[0].start == chosen[0].piece.base <= begin < chosen[0].piece.end
        assert chosen[-1].piece.kind != LOST
    sound = _reach([each for each in rows if each.kind != LOST], begin, commit)
    end = sound if sound >= commit else _reach(rows, begin, commit)
    assert (chosen[-1].piece.end if chosen else begin) == end


# Objects of a bucket


def share(base: int, end: int, generation: int = 0, created_ms: int = 0) -> SegmentShare:
    file = SegmentSeen(b"", created_ms, 0, generation=generation)
    return SegmentShare(file, Entry(1, base, end, 0, 0, 0, 0, 0, 0, 0, 0))


def test_highest_generation_is_used() -> None:
    old = [share(0, 50), share(50, 100)]
    new = share(0, 100, 1)
    assert choose_most([*old, new], 0) == [new]
    assert choose_most([*old, share(0, 50, 2), share(50, 100, 1)], 0) == [
        share(0, 50, 2), share(50, 100, 1),
    ]  # fmt: skip


def test_covered_offsets_take_precedence_over_generation() -> None:
    """Only a part of a rewrite's output was uploaded: its input has all offsets."""
    assert choose_most([share(0, 100), share(0, 60, 1)], 0) == [share(0, 100)]
    assert choose_most([share(0, 100), share(0, 60, 1)], 99) == [share(0, 100)]


def test_newer_of_equal_objects_and_nothing_below_log_start() -> None:
    assert choose_most([share(0, 9, 0, 5), share(0, 9, 0, 7), share(0, 9, 0, 6)], 0) == [
        share(0, 9, 0, 7)
    ]
    assert choose_most([share(0, 9), share(9, 12)], 9) == [share(9, 12)]
    assert choose_most([], 0) == []
    assert choose_most([share(4, 4)], 0) == []


shares_drawn = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 3), st.integers(0, 2)).map(
        lambda t: share(t[0], t[0] + t[1], t[2], t[3])
    ),
    max_size=7,
)


@given(shares_drawn, st.integers(0, 10))
def test_chosen_objects_cover_most_offsets(pieces: list[SegmentShare], log_start: int) -> None:
    def covered(some: Sequence[SegmentShare]) -> tuple[int, int]:
        sizes = [(p.offsets[1] - max(p.offsets[0], log_start), p.file.generation) for p in some]
        return sum(size for size, _ in sizes), sum(size * g for size, g in sizes)

    def disjoint(some: Sequence[SegmentShare]) -> bool:
        return all(one.offsets[1] <= other.offsets[0] for one, other in pairwise(some))

    chosen = choose_most(pieces, log_start)
    assert disjoint(chosen)
    useful = [p for p in pieces if p.offsets[1] > max(p.offsets[0], log_start)]
    useful.sort(key=lambda each: each.offsets)
    best = (0, 0)
    for count in range(1, len(useful) + 1):
        for some in combinations(useful, count):
            if disjoint(some):
                best = max(best, covered(some))
    assert covered(chosen) == best


def test_conflicting_objects() -> None:
    one, two, three = share(0, 10, 1), share(5, 12, 1), share(5, 12, 2)
    assert find_rivals([one, two, three]) == [(one, two)]
    assert find_rivals([share(0, 10, 1), share(10, 12, 1), share(3, 3, 1)]) == []
