"""The in-sync set: what acknowledgements wait for, and what is stored next."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from kafkawire.log.followers.in_sync import InSyncSet, Limits

LIMITS = Limits(wanted=2, needed=1, lag_s=3.0)
START = 100


def begun(limits: Limits = LIMITS, members: str = "", version: int = 0) -> InSyncSet:
    return InSyncSet(limits, START, 0.0, version, frozenset(members))


def acknowledge(found: InSyncSet, follower: str, end: int, written: int, now_s: float) -> None:
    """Have a follower acknowledge what it has, when the journals end at `written`."""
    found.note_write(written, now_s)
    found.note_acknowledged(follower, end, now_s)


def established(limits: Limits = LIMITS, followers: str = "ab") -> InSyncSet:
    """Return a set of these followers, which have everything."""
    found = begun(limits)
    for each in followers:
        found.note_connected(each, START, 0.0)
    found.start_update(frozenset(followers))
    found.note_stored()
    return found


def test_nothing_is_committed_before_the_first_set_is_stored() -> None:
    found = begun()
    found.note_connected("a", START, 0.0)
    found.note_connected("b", START, 0.0)
    assert found.committed_position(START) == -1
    due = found.due(START, 0.0)
    assert due == frozenset("ab")
    found.start_update(due)
    assert found.committed_position(START) == -1
    assert found.due(START, 0.0) is None
    found.note_stored()
    assert found.committed_position(START) == START
    assert found.version == 1


def test_the_first_set_has_only_followers_with_the_whole_log() -> None:
    found = begun()
    found.note_connected("a", START - 1, 0.0)
    found.note_connected("b", START, 0.0)
    assert found.due(START, 2.9) is None
    assert found.due(START, 3.0) == frozenset("b")
    acknowledge(found, "a", START, START, 3.0)
    assert found.due(START, 3.0) == frozenset("ab")


def test_the_first_set_needs_as_many_as_min_insync_replicas() -> None:
    found = begun()
    assert found.due(START, 100.0) is None
    alone = begun(Limits(wanted=2, needed=0, lag_s=3.0))
    assert alone.due(START, 2.9) is None
    assert alone.due(START, 3.0) == frozenset()


def test_the_first_set_does_not_wait_for_more_than_those_of_the_process_before() -> None:
    found = begun(members="a", version=7)
    found.note_connected("a", START, 0.0)
    assert found.due(START, 0.0) == frozenset("a")
    found.start_update({"a"})
    found.note_stored()
    assert found.version == 8


def test_what_all_members_have_is_committed() -> None:
    found = established()
    acknowledge(found, "a", 300, 300, 1.0)
    assert found.committed_position(300) == START
    acknowledge(found, "b", 200, 300, 1.0)
    assert found.committed_position(300) == 200
    assert found.committed_position(150) == 150  # the own disk counts


def test_an_entering_follower_counts_before_its_set_is_stored() -> None:
    found = established(followers="a")
    acknowledge(found, "a", 200, 200, 1.0)
    found.note_connected("b", 150, 1.0)
    assert found.due(200, 1.0) is None  # it lacks what is committed
    acknowledge(found, "b", 200, 200, 1.0)
    due = found.due(200, 1.0)
    assert due == frozenset("ab")
    found.start_update(due)
    acknowledge(found, "a", 300, 300, 1.0)
    assert found.committed_position(300) == 200
    found.note_stored()
    acknowledge(found, "b", 300, 300, 1.0)
    assert found.committed_position(300) == 300


def test_a_leaving_follower_counts_until_its_set_is_stored() -> None:
    found = established()
    acknowledge(found, "a", 200, 200, 1.0)
    found.note_disconnected("b", 1.0)
    assert found.due(200, 4.0) is None
    due = found.due(200, 4.1)
    assert due == frozenset("a")
    found.start_update(due)
    assert found.committed_position(200) == START
    found.note_stored()
    assert found.committed_position(200) == 200


def test_the_set_is_never_smaller_than_min_insync_replicas() -> None:
    found = established(followers="a")
    found.note_disconnected("a", 1.0)
    assert found.due(200, 100.0) is None
    assert len(found.live(100.0)) == 0
    assert found.committed_position(200) == START


def test_a_slow_follower_leaves_and_a_steady_one_does_not() -> None:
    found = established()
    written = START
    for step in range(1, 100):
        now_s = step / 10
        written += 100
        acknowledge(found, "a", written - 100, written, now_s)  # always a little behind
        acknowledge(found, "b", min(written - 100, START + 500), written, now_s)  # stuck
        due = found.due(written, now_s)
        if due is not None:
            break
    assert due == frozenset("a")
    assert 3.0 <= now_s < 4.5


def test_a_follower_that_is_back_is_not_in_sync_because_it_once_was() -> None:
    found = established(followers="a")
    acknowledge(found, "a", 200, 200, 1.0)
    found.note_connected("b", START, 5.0)
    assert found.due(200, 5.0) is None


def test_an_idle_follower_stays_in_sync() -> None:
    found = established()
    assert found.due(START, 1000.0) is None
    assert len(found.live(1000.0)) == 2
    found.note_write(200, 1000.0)
    assert found.due(200, 1003.0) is None
    assert found.due(200, 1003.1) == frozenset("b")


def test_a_restarted_follower_takes_nothing_back() -> None:
    """It wants bytes again that it has, since their sync is not proven to it."""
    found = established(followers="a")
    acknowledge(found, "a", 200, 200, 1.0)
    found.note_disconnected("a", 1.0)
    found.note_connected("a", 160, 2.0)
    assert found.committed_position(200) == 200
    found.note_connected("b", 170, 2.0)
    assert found.due(200, 2.0) is None


@pytest.mark.parametrize("followers", ["", "a"])
def test_a_follower_cannot_enter_early_because_more_are_needed(followers: str) -> None:
    """min.insync.replicas was raised: nothing can be committed, but much was acknowledged."""
    found = established(Limits(wanted=2, needed=len(followers), lag_s=3.0), followers)
    found.note_write(200, 1.0)
    for each in followers:
        found.note_acknowledged(each, 200, 1.0)
    assert found.committed_position(200) == 200
    found.note_connected("x", 150, 1.0)
    found.limits = Limits(wanted=2, needed=len(followers) + 1, lag_s=3.0)
    assert found.committed_position(200) == -1
    assert found.due(200, 1.0) is None
    acknowledge(found, "x", 200, 200, 1.0)
    assert found.due(200, 1.0) == frozenset(followers) | {"x"}


def walk(seed: int, kind: type[InSyncSet] = InSyncSet, changes: bool = False) -> bool:
    """Make random steps; return whether the set in SQL was, at any time, one whose members all had
    what was committed. `changes`: of the limits, too."""
    choices = random.Random(seed)
    limits = Limits(wanted=2, needed=choices.randrange(2), lag_s=3.0)
    found, stored = kind(limits, START, 0.0, 0), None
    ends: dict[str, int] = {}
    written, own, now_s, committed = START, START, 0.0, 0
    for _ in range(300):
        now_s += choices.random()
        if changes and choices.random() < 0.05:
            found.limits = replace(limits, needed=choices.randrange(3))
        step = choices.randrange(8)
        each = choices.choice("abc")
        if step == 0:
            written += choices.randrange(1, 50)
            found.note_write(written, now_s)
        elif step == 1:
            own = choices.randint(own, written)
        elif step == 2:
            ends.setdefault(each, choices.randint(0, written))
            found.note_connected(each, ends[each], now_s)
        elif step == 3 and each in ends:
            ends[each] = choices.randint(ends[each], written)
            acknowledge(found, each, ends[each], written, now_s)
        elif step == 4:
            found.note_disconnected(each, now_s)
        elif step == 5 and (due := found.due(own, now_s)) is not None:
            found.start_update(due)
        elif step == 6 and found.changing is not None:
            stored = found.changing  # SQL has it, and the answer may be on its way
        elif step == 7 and stored is not None and stored == found.changing:
            found.note_stored()
        committed = max(committed, found.committed_position(own))
        if stored is not None and found.established:
            enough = changes or len(stored) >= limits.needed
            if not enough or any(ends[each] < committed for each in stored):
                return False
    return True


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("seed", range(200))
def test_committed_never_exceeds_what_a_stored_set_has(seed: int, changes: bool) -> None:
    assert walk(seed, changes=changes)


class CountedLate(InSyncSet):
    """Mutation: a follower that enters counts only when its set is known to be stored."""

    @property
    def counted(self) -> frozenset[str]:
        return self.members


class EntersEarly(InSyncSet):
    """Mutation: a follower may enter whatever it has."""

    def due(self, own: int, now_s: float) -> frozenset[str] | None:
        if self.established and self.changing is None and len(self.members) < 2:
            return self.members | set(list(self.followers)[:1])
        return super().due(own, now_s)


@pytest.mark.parametrize("kind", [CountedLate, EntersEarly])
def test_the_walks_find_a_mutation(kind: type[InSyncSet]) -> None:
    assert not all(walk(seed, kind) for seed in range(200))


def test_a_follower_that_does_not_run_leaves_at_once() -> None:
    found = established()
    acknowledge(found, "a", 200, 200, 1.0)
    found.note_disconnected("b", 1.0)
    found.note_refused("b")
    found.note_refused("c")  # it was never connected
    assert len(found.live(1.0)) == 1
    assert found.due(200, 1.0) == frozenset("a")
    found.note_connected("b", 200, 1.0)
    assert found.due(200, 1.0) is None


def test_the_first_set_after_one_of_the_own_follower_needs_one_that_has_the_log() -> None:
    found = begun(version=7)
    assert found.due(START, 0.0) is None
    found.note_connected("a", START, 0.0)
    assert found.due(START, 0.0) == frozenset("a")
