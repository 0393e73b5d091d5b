"""Rates and delays, compared with examples of Kafka's documents and code."""

from __future__ import annotations

import pytest

from kafkawire.security.quotas.arithmetic import MAX_DELAY_MS, Rate, SampleWindow, TokenBucket

WINDOW = SampleWindow(11, 1000)
MB = 1_000_000


def test_the_delay_of_a_first_burst_is_its_excess_over_ten_windows() -> None:
    rate = Rate(WINDOW)
    rate.record(20 * MB, 5)
    assert rate.measure(5) == (2 * MB, 10_000)
    assert rate.delay_ms(MB, 5) == 10_000


def test_the_rate_is_at_the_limit_when_the_delay_is_over() -> None:
    rate = Rate(WINDOW)
    rate.record(20 * MB, 0)
    assert rate.measure(10_000) == (2 * MB, 10_000)
    assert rate.delay_ms(MB, 10_999) == pytest.approx(9_001, abs=20)
    assert rate.delay_ms(MB, 11_000) == 0, "the sample has expired"


@pytest.mark.parametrize(("at_ms", "window_ms"), [(0, 10_000), (999, 10_999), (10_500, 10_500)])
def test_the_window_is_raised_to_ten_full_samples(at_ms: int, window_ms: int) -> None:
    rate = Rate(WINDOW)
    rate.record(1, 0)
    assert rate.measure(at_ms)[1] == window_ms


def test_a_steady_client_at_the_limit_never_waits() -> None:
    rate = Rate(WINDOW)
    for now_ms in range(0, 60_000, 100):
        rate.record(100, now_ms)
        assert rate.delay_ms(1_101, now_ms) == 0
    value, window_ms = rate.measure(60_000)
    assert value == pytest.approx(1000, rel=0.01)
    assert 10_000 <= window_ms <= 12_000


def test_what_is_taken_back_does_not_count() -> None:
    rate = Rate(WINDOW)
    rate.record(20 * MB, 0)
    rate.record(-20 * MB, 0)
    assert rate.delay_ms(MB, 0) == 0


def test_a_rate_without_values_is_zero() -> None:
    assert Rate(WINDOW).measure(77) == (0.0, 10_000)


def test_samples_are_reused() -> None:
    rate = Rate(SampleWindow(2, 10))
    for now_ms in range(0, 1000, 10):
        rate.record(1, now_ms)
    value, window_ms = rate.measure(1000)
    assert value * window_ms / 1000 == 1


def test_a_delay_fits_the_field_of_a_response() -> None:
    rate = Rate(WINDOW)
    rate.record(1e18, 0)
    assert rate.delay_ms(1, 0) == MAX_DELAY_MS
    bucket = TokenBucket(WINDOW)
    bucket.take_tokens(1e18, 1, 0)
    assert bucket.delay_ms(1, 0) == MAX_DELAY_MS


def test_a_bucket_starts_full_and_may_be_overdrawn() -> None:
    bucket = TokenBucket(WINDOW)
    assert bucket.tokens(2, 500) == 22
    bucket.take_tokens(30, 2, 500)
    assert bucket.tokens(2, 500) == -8
    assert bucket.delay_ms(2, 500) == 4_000
    assert bucket.delay_ms(2, 4_499) == 1
    assert bucket.delay_ms(2, 4_500) == 0
    assert bucket.tokens(2, 100_000) == 22, "no more than the burst"


def test_a_lower_limit_lowers_the_burst() -> None:
    bucket = TokenBucket(WINDOW)
    assert bucket.tokens(2, 0) == 22
    assert bucket.tokens(1, 0) == 11
