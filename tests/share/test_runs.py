"""Runs of offsets against a dictionary of offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.share.runs import OffsetRun, Runs

STEPS = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)))),
    max_size=20,
)


@given(STEPS)
def test_runs_have_the_values_that_were_set(steps: list[tuple[int, list[tuple[int, int]]]]) -> None:
    runs: Runs[int] = Runs(10)
    model: dict[int, int] = {}
    start = end = 10
    for at, pieces in steps:
        if not pieces:
            runs.trim(at)
            start, end = max(start, at), max(end, at)
            model = {offset: value for offset, value in model.items() if offset >= start}
        else:
            first = min(max(at, start), end)
            put = []
            for length, value in pieces:
                put.append(OffsetRun(first, first + length - 1, value))
                model |= dict.fromkeys(range(first, first + length), value)
                first += length
            end = max(end, first)
            runs.replace(put)
        found = list(runs)
        assert (runs.start, runs.end) == (start, end)
        assert {at: run.value for run in found for at in range(run.first, run.last + 1)} == model
        # As few as possible.
        pairs = pairwise(found)
        assert all(one.value != other.value and one.last + 1 == other.first for one, other in pairs)
        cut = runs.within(at, at + 3)
        assert [at for run in cut for at in range(run.first, run.last + 1)] == [
            offset for offset in sorted(model) if at <= offset <= at + 3
        ]
