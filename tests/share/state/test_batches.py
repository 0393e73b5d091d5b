"""Batches of share partitions are merged as Kafka merges them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.share.persister import StateBatch
from kafkawire.share.state.batches import merge_batches

BATCHES = st.lists(
    st.builds(
        lambda first, more, state, count: StateBatch(first, first + more, state, count),
        st.integers(0, 30),
        st.integers(0, 12),
        st.sampled_from([0, 2, 3, 4]),
        st.integers(1, 3),
    ),
    max_size=8,
)


def by_offset(batches: list[StateBatch], start: int) -> dict[int, tuple[int, int]]:
    """The delivery count and state of each offset: the highest wins."""
    found: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for offset in range(max(batch.first, start), batch.last + 1):
            entry = batch.delivery_count, batch.state
            found[offset] = max(found.get(offset, entry), entry)
    return found


@given(st.lists(st.tuples(BATCHES, st.integers(-1, 35)), max_size=5))
def test_merging_step_by_step_is_merging_all(steps: list[tuple[list[StateBatch], int]]) -> None:
    merged: tuple[StateBatch, ...] = ()
    seen: list[StateBatch] = []
    start = -1
    for batches, offset in steps:
        start = max(start, offset)
        before = merged
        merged = merge_batches(merged, batches, start)
        seen += batches
        expected = by_offset(seen, start)
        assert by_offset(list(merged), start) == expected
        for one, other in pairwise(merged):
            assert one.last < other.first
            assert one.last + 1 < other.first or one[2:] != other[2:]
        # A load may apply a change twice.
        assert merge_batches(merged, batches, start) == merged
        assert not before or before[0].first <= before[-1].last


def test_few_new_batches_leave_the_others_as_they_are() -> None:
    many = tuple(StateBatch(3 * n, 3 * n + 1, 2, 1) for n in range(1000))
    merged = merge_batches(many, [StateBatch(1500, 1502, 2, 2)], -1)
    assert merged == (*many[:500], StateBatch(1500, 1502, 2, 2), *many[501:])
