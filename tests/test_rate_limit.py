"""Limits of bytes per second."""

from __future__ import annotations

import pytest

from kafkawire.rate_limit import NAP_S, RateLimit, SharedRateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.checks = 0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= NAP_S
        self.now += seconds

    def check(self) -> None:
        self.checks += 1


def test_a_limit_keeps_its_rate() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock, clock.sleep)
    for _ in range(10):
        limit.wait_for_rate(500, clock.check)
    assert clock.now == pytest.approx(5.0)
    limit.wait_for_rate(10_000, clock.check)
    assert clock.now == pytest.approx(15.0)
    assert clock.checks >= 15 / NAP_S  # a caller that should end does so within a sleep


def test_there_is_no_burst_after_a_pause() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock, clock.sleep)
    limit.wait_for_rate(1000, clock.check)
    clock.now += 60
    limit.wait_for_rate(1000, clock.check)
    limit.wait_for_rate(1000, clock.check)
    assert clock.now >= 61 + 2 - NAP_S


def test_without_a_limit_only_the_check_is_made() -> None:
    clock = Clock()
    RateLimit(-1, clock, clock.sleep).wait_for_rate(1 << 40, clock.check)
    assert (clock.now, clock.checks) == (0, 1)


def test_a_check_ends_the_wait() -> None:
    clock = Clock()
    limit = RateLimit(1, clock, clock.sleep)

    def ended() -> None:
        if clock.now >= 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        limit.wait_for_rate(1000, ended)
    assert clock.now <= 1 + NAP_S


def test_calls_with_the_same_rate_share_a_limit() -> None:
    clock = Clock()
    shared = SharedRateLimit(clock, clock.sleep)
    first = shared.at(1000)
    assert shared.at(1000) is first
    assert shared.at(-1) is not first
    assert shared.at(1000) is not first  # the rate was changed and changed back
