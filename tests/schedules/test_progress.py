"""The staircase of what was delivered, against a set of what was.

Covers: kafkawire.schedules.progress.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.schedules.progress import LAST_OFFSET, Progress

OFFSETS, DUES = 8, 6
steps = st.lists(
    st.tuples(st.integers(0, OFFSETS), st.integers(0, DUES), st.integers(0, OFFSETS)), max_size=12
)


@given(steps)
def test_staircase_is_the_union_of_its_corners(taken: list[tuple[int, int, int]]) -> None:
    progress = Progress()
    delivered: set[tuple[int, int]] = set()
    for end, due_ms, offset in taken:
        progress = progress.add_corner(end, (due_ms, offset))
        for at in range(end):
            delivered |= {(at, d) for d in range(DUES) if (d, at) <= (due_ms, offset)}
        for at in range(OFFSETS + 1):
            until = progress.delivered_until(at)
            for d in range(DUES):
                was = until is not None and (d, at) <= until
                assert was == ((at, d) in delivered), (progress, at, d)
    ends = [each.end for each in progress.corners]
    dues = [each.due for each in progress.corners]
    assert ends == sorted(set(ends))
    assert dues == sorted(set(dues), reverse=True)


def test_one_corner_is_enough_while_time_passes() -> None:
    progress = Progress()
    for at in range(100):
        progress = progress.add_corner(at, (at * 10, LAST_OFFSET))
    assert len(progress.corners) == 1


def test_late_record_needs_a_second_corner_for_a_while() -> None:
    progress = Progress().add_corner(10, (1000, LAST_OFFSET))
    late = progress.add_corner(11, (500, 10))
    assert len(late.corners) == 2
    assert late.delivered_until(10) == (500, 10)
    assert late.delivered_until(9) == (1000, LAST_OFFSET)
    assert len(late.add_corner(11, (1001, LAST_OFFSET)).corners) == 1
