"""The window of the next records, against a sorted list.

Covers: kafkawire.schedules.window.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.schedules.progress import Due
from kafkawire.schedules.window import DueWindow

LIMIT = 5
actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "discard", "next"]),
        st.integers(0, 30),
        st.integers(0, 40),
        st.integers(1, 4),
    ),
    max_size=60,
)


@given(actions)
def test_window_is_complete_up_to_its_horizon(taken: list[tuple[str, int, int, int]]) -> None:
    window = DueWindow(LIMIT)
    model: dict[int, int] = {}
    for action, offset, due_ms, count in taken:
        if action == "add":
            model[offset] = due_ms
            window.add(due_ms, offset)
        elif action == "discard":
            model.pop(offset, None)
            window.discard(offset)
        else:
            refill(window, model)
            expected = sorted((d, o) for o, d in model.items() if d <= due_ms)
            found = window.next_due(count, due_ms)
            horizon = window.horizon
            within = [each for each in expected if horizon is None or each <= horizon]
            assert found == within[:count]
            if expected:
                assert found, "a window that is not empty has the next record"
        assert len(window) <= 2 * LIMIT + 1


def refill(window: DueWindow, model: dict[int, int]) -> None:
    """Fill an empty window from all waiting records, as a Backlog does from the index."""
    while window.first_due() is None and window.horizon is not None:
        after = window.horizon
        rest: list[Due] = sorted((d, o) for o, d in model.items() if (d, o) > after)
        window.refill(rest[:LIMIT], complete=len(rest) < LIMIT)


def test_entry_that_is_removed_and_added_again_is_there_once() -> None:
    window = DueWindow()
    window.add(5, 1)
    window.discard(1)
    window.add(5, 1)
    assert window.next_due(10, 100) == [(5, 1)]
    assert window.next_due(10, 100) == [(5, 1)], "entries stay until they are discarded"


def test_removed_entries_are_made_up_for_by_later_ones() -> None:
    """An answer of fewer entries than asked for means that no others are due."""
    window = DueWindow()
    for offset in range(9):
        window.add(offset, offset)
    assert len(window.next_due(6)) == 6
    for offset in (0, 1, 2, 4):
        window.discard(offset)
    assert window.next_due(3, 100) == [(3, 3), (5, 5), (6, 6)]
