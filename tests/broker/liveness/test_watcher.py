"""Who is silent: rows that do not change, rows that are gone, reads that failed or came late."""

from __future__ import annotations

import random

import pytest

from kafkawire.broker.liveness.watcher import HeartbeatWatcher

LEASE_S = 5.0
GAP_S = 3.0
INTERVAL_S = 1.0


class Watch:
    """A watcher of broker 1, read once a second; `rows` is the table."""

    def __init__(self, *others: int) -> None:
        self.watcher = HeartbeatWatcher(1, LEASE_S, GAP_S, INTERVAL_S)
        self.registered = [1, *others]
        self.rows = dict.fromkeys(self.registered, 7)
        self.now_s = 100.0

    def pass_s(self, seconds: int, *alive: int) -> None:
        """Let time pass, in which these brokers and this one raise their rows."""
        for _ in range(seconds):
            self.now_s += 1
            for node in (1, *alive):
                self.rows[node] = self.rows.get(node, 0) + 1
            self.read()

    def read(self) -> None:
        self.watcher.observe(self.now_s, self.rows, self.registered)

    @property
    def silent(self) -> set[int]:
        return set(self.watcher.silent)

    @property
    def starting(self) -> set[int]:
        return set(self.watcher.starting)

    @property
    def beating(self) -> set[int]:
        return set(self.watcher.beating)


def test_row_that_does_not_change_for_the_lease_is_silent() -> None:
    watch = Watch(2, 3)
    watch.pass_s(10, 2, 3)
    assert (watch.silent, watch.beating) == (set(), {2, 3})
    watch.pass_s(4, 2)
    assert (watch.silent, watch.beating) == (set(), {2, 3})
    watch.pass_s(1, 2)
    assert (watch.silent, watch.beating) == ({3}, {2})
    watch.pass_s(1, 2, 3)
    assert (watch.silent, watch.beating) == (set(), {2, 3})


def test_broker_that_is_being_started_is_silent_after_the_lease_but_not_gone() -> None:
    watch = Watch(2)
    watch.pass_s(10, 2)
    watch.rows[2] = 0
    for second in range(1, 12):
        watch.rows[2] -= 1
        watch.pass_s(1)
        assert watch.starting == {2}
        assert watch.silent == ({2} if second >= LEASE_S else set())
        assert watch.beating == (set() if second >= LEASE_S else {2})
    watch.rows[2] = 0
    watch.pass_s(1, 2)
    assert (watch.silent, watch.beating, watch.starting) == (set(), {2}, set())


def test_start_that_ends_is_gone_after_the_lease() -> None:
    watch = Watch(2)
    watch.pass_s(10)
    assert watch.silent == {2}
    watch.rows[2] = -1
    watch.pass_s(1)
    assert (watch.silent, watch.starting) == ({2}, {2})
    watch.pass_s(4)
    assert watch.starting == {2}
    watch.pass_s(1)
    assert (watch.silent, watch.starting) == ({2}, set())


@pytest.mark.parametrize("stored", [True, False])
def test_broker_that_was_never_seen_is_listed_for_the_lease_but_not_beating(stored: bool) -> None:
    watch = Watch(2)
    if not stored:
        del watch.rows[2]
    watch.pass_s(5)
    assert (watch.silent, watch.beating) == (set(), set())
    watch.pass_s(1)
    assert (watch.silent, watch.beating) == ({2}, set())
    watch.pass_s(1, 2)
    assert (watch.silent, watch.beating) == (set(), {2})


def test_row_that_is_deleted_is_silent_at_once() -> None:
    watch = Watch(2)
    watch.pass_s(3, 2)
    del watch.rows[2]
    watch.read()
    assert (watch.silent, watch.beating) == ({2}, set())
    watch.pass_s(20)
    assert watch.silent == {2}
    watch.pass_s(1, 2)
    assert (watch.silent, watch.beating) == (set(), {2})


def test_lease_lasts_longer_on_a_machine_that_is_late_itself() -> None:
    """Others on it are as late with their heartbeats: of 2.5 s between two reads 1.25 count."""
    watch = Watch(2)
    watch.pass_s(10, 2)
    waited_s = 0.0
    while not watch.silent:
        watch.now_s += 2.5
        waited_s += 2.5
        watch.read()
    assert waited_s == 2 * LEASE_S
    watch.rows[2] += 1
    watch.now_s += 2.5
    watch.read()
    assert (watch.silent, watch.beating) == (set(), {2})


def test_lower_number_is_a_sign_of_life() -> None:
    watch = Watch(2)
    watch.pass_s(4)
    watch.rows[2] = 3  # the database lost its last transactions
    watch.pass_s(4)
    assert (watch.silent, watch.beating) == (set(), {2})


def test_lease_begins_again_after_a_failed_read() -> None:
    watch = Watch(2)
    watch.pass_s(4, 2)
    watch.pass_s(4)
    watch.watcher.note_read_failure()
    watch.pass_s(5)
    assert watch.silent == set()
    watch.pass_s(1)
    assert watch.silent == {2}


def test_lease_begins_again_after_a_pause_of_this_process() -> None:
    watch = Watch(2, 3)
    watch.pass_s(4, 2, 3)
    watch.now_s += 60
    watch.pass_s(1)
    assert watch.silent == set()
    watch.pass_s(4)
    assert watch.silent == set()
    watch.pass_s(1)
    assert watch.silent == {2, 3}


def test_failed_reads_change_nothing_for_silent_brokers() -> None:
    watch = Watch(2)
    watch.pass_s(6)
    assert watch.silent == {2}
    watch.watcher.note_read_failure()
    watch.pass_s(1)
    assert watch.silent == {2}


def test_unregistered_brokers_are_forgotten() -> None:
    watch = Watch(2)
    watch.pass_s(6)
    watch.registered.remove(2)
    watch.pass_s(1)
    assert watch.silent == set()
    watch.registered.append(2)
    watch.pass_s(2)
    assert watch.silent == set(), "it is new again"


def test_this_broker_is_never_silent() -> None:
    watch = Watch(2)
    for _ in range(20):
        watch.now_s += 1
        watch.read()
    assert watch.silent == {2}


@pytest.mark.parametrize("seed", range(20))
def test_broker_that_beats_is_never_silent_and_a_dead_one_is_in_time(seed: int) -> None:
    """Random outages and pauses: 2 raises its row whenever the database is there, 3 stopped."""
    chance = random.Random(seed)
    watch = Watch(2, 3)
    watch.pass_s(1, 2, 3)
    steady = 0.0
    for _ in range(400):
        step = chance.choice([0.5, 1.0, 1.5])
        paused = chance.random() < 0.05
        watch.now_s += step + (chance.uniform(GAP_S, 100) if paused else 0)
        if chance.random() < 0.05:  # nobody reaches the database
            watch.watcher.note_read_failure()
            steady = 0.0
            continue
        watch.rows[2] += 1
        steady = 0.0 if paused else steady + step
        watch.read()
        assert 2 not in watch.silent
        if steady >= LEASE_S + 2:
            assert 3 in watch.silent


def test_broker_that_is_known_to_run_is_beating_for_another_lease() -> None:
    watch = Watch(2, 3)
    watch.read()
    assert watch.beating == set()
    watch.watcher.running({1, 2})
    assert watch.beating == {2}
    watch.pass_s(4)
    assert (watch.silent, watch.beating) == (set(), {2})
    watch.pass_s(5)
    assert (watch.silent, watch.beating) == ({2, 3}, set())
    watch.watcher.running({1, 2})
    assert (watch.silent, watch.beating) == ({3}, {2})
    watch.pass_s(4)
    assert (watch.silent, watch.beating) == ({3}, {2})
    watch.pass_s(1)
    assert (watch.silent, watch.beating) == ({2, 3}, set())


def test_broker_that_is_known_to_run_after_its_end_was_seen() -> None:
    watch = Watch(2)
    watch.pass_s(2, 2)
    del watch.rows[2]
    watch.pass_s(2)
    assert watch.silent == {2}
    watch.watcher.running({2})
    watch.pass_s(2, 2)
    assert (watch.silent, watch.beating) == (set(), {2})
