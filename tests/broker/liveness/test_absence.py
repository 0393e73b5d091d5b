"""Which broker's machine starts a broker that is gone, and when.

Covers: kafkawire.broker.liveness.takeover.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.broker.liveness.takeover import AbsenceWatcher

LEASE_S = 5.0
EPOCHS = {1: 4, 2: 7, 3: 2}


def first_due(node_id: int, silent: set[int], ended: set[int] = frozenset()) -> float | None:  # type: ignore[assignment]
    """The first second at which broker `node_id` is to start broker 2."""
    watcher = AbsenceWatcher(node_id, LEASE_S)
    for second in range(40):
        if 2 in watcher.observe(second, EPOCHS, silent, ended):
            return second
    return None


def test_next_broker_of_the_ring_is_first() -> None:
    assert (first_due(3, {2}), first_due(1, {2})) == (0, 5)
    assert (first_due(1, {2, 3}), first_due(3, {1, 2})) == (0, 0)
    assert first_due(1, set()) is None


def test_stopped_broker_has_a_lease_more() -> None:
    assert (first_due(3, {2}, {2}), first_due(1, {2}, {2})) == (5, 10)


def test_another_start_begins_again() -> None:
    watcher = AbsenceWatcher(1, LEASE_S)
    assert watcher.observe(0, EPOCHS, {2}, set()) == []
    started = {**EPOCHS, 2: 8}
    assert watcher.observe(4, started, {2}, set()) == []
    assert watcher.observe(8, started, {2}, set()) == []
    assert watcher.observe(9, started, {2}, set()) == [2]


def test_return_begins_again() -> None:
    watcher = AbsenceWatcher(1, LEASE_S)
    watcher.observe(0, EPOCHS, {2}, set())
    assert watcher.observe(5, EPOCHS, {2}, set()) == [2]
    assert watcher.observe(6, EPOCHS, set(), set()) == []
    assert watcher.observe(7, EPOCHS, {2}, set()) == []
    assert watcher.observe(12, EPOCHS, {2}, set()) == [2]


@given(st.sets(st.integers(0, 9), min_size=2), st.data())
def test_every_silent_broker_has_one_first(nodes: set[int], data: st.DataObject) -> None:
    silent = data.draw(st.sets(st.sampled_from(sorted(nodes)), max_size=len(nodes) - 1))
    epochs = dict.fromkeys(nodes, 1)
    found = [
        node
        for alive in nodes - silent
        for node in AbsenceWatcher(alive, LEASE_S).observe(0, epochs, silent, set())
    ]
    assert sorted(found) == sorted(silent)
