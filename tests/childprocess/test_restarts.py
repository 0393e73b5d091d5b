"""Delays of restarts, and beats that are missing."""

from __future__ import annotations

from kafkawire.childprocess.restarts import DELAYS_S, SILENT_TICKS, STEADY_S, Beats, Restarts


def test_delays_grow_to_half_a_minute() -> None:
    restarts = Restarts()
    delays = [restarts.next_delay_s(1.0) for _ in range(10)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert restarts.total == 10


def test_worker_that_has_run_for_long_is_started_at_once() -> None:
    restarts = Restarts()
    assert [restarts.next_delay_s(0.1) for _ in range(3)] == list(DELAYS_S[:3])
    assert restarts.next_delay_s(STEADY_S) == 0.0
    assert restarts.next_delay_s(0.1) == DELAYS_S[1]


def test_worker_without_beats_hangs() -> None:
    beats = Beats()
    assert not any(beats.tick() for _ in range(SILENT_TICKS))
    assert beats.tick()


def test_beat_begins_the_count_again() -> None:
    beats = Beats()
    for _ in range(5 * SILENT_TICKS):
        assert not beats.tick()
        beats.beat()
