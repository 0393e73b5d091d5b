"""Native offsets: whatever is assigned, applied and rolled back, no offset is assigned twice or
skipped."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkawire.offsets.manager import PartitionOffsetManager


class Offsets(RuleBasedStateMachine):
    """A model that records every applied record by its offset."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = PartitionOffsetManager()
        self.queued: list[tuple[int, int]] = []
        self.stored: list[int] = []

    @rule(count=st.integers(1, 5))
    def assign(self, count: int) -> None:
        self.queued.append((self.manager.assign(count), count))

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def written(self, data: st.DataObject) -> None:
        batches = data.draw(st.integers(1, len(self.queued)))
        done, self.queued = self.queued[:batches], self.queued[batches:]
        for base, count in done:
            self.stored += range(base, base + count)
        self.manager.apply(done[-1][0] + done[-1][1])

    @rule()
    def failed(self) -> None:
        assert self.manager.rollback() == sum(count for _, count in self.queued)
        self.queued.clear()

    @rule()
    def crash(self) -> None:
        self.queued.clear()
        self.manager = PartitionOffsetManager(len(self.stored))

    @invariant()
    def stored_offsets_have_no_gap_or_duplicate(self) -> None:
        assert self.stored == list(range(len(self.stored)))
        assert self.manager.next_offset == len(self.stored)

    @invariant()
    def pending_equals_queued_batches(self) -> None:
        waiting = sum(count for _, count in self.queued)
        assert self.manager.pending - self.manager.next_offset == waiting


TestOffsets = Offsets.TestCase


def test_batch_gets_offsets_after_previous_batches() -> None:
    manager = PartitionOffsetManager(10)
    assert (manager.assign(3), manager.assign(1)) == (10, 13)
    assert (manager.next_offset, manager.pending) == (10, 14)
    manager.apply(13)
    assert (manager.next_offset, manager.pending) == (13, 14)


def test_apply_requires_assignment_and_happens_once() -> None:
    manager = PartitionOffsetManager(5)
    manager.assign(2)
    manager.apply(7)
    for end in (6, 8):
        with pytest.raises(AssertionError):
            manager.apply(end)
    with pytest.raises(AssertionError):
        manager.assign(0)


def test_rolled_back_offsets_are_assigned_again() -> None:
    manager = PartitionOffsetManager()
    assert [manager.assign(2), manager.assign(3)] == [0, 2]
    manager.apply(2)
    assert manager.rollback() == 3
    assert manager.rollback() == 0
    assert manager.assign(1) == 2


def test_several_batches_are_assigned_in_one_call() -> None:
    manager = PartitionOffsetManager(5)
    assert manager.assign_each([2, 1, 3]) == [5, 7, 8]
    assert manager.assign_each([]) == []
    assert (manager.next_offset, manager.pending) == (5, 11)
    with pytest.raises(AssertionError):
        manager.assign_each([1, 0])
    assert manager.pending == 11
