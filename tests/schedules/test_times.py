"""Due times, durations and repetitions, as texts.

Covers: kafkawire.schedules.headers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.schedules.headers import (
    LAST_MS,
    Cron,
    Interval,
    ScheduleTextError,
    parse_duration,
    parse_repetition,
    parse_time,
)

JANUARY_MS = 1_769_860_800_000
"""2026-01-31T12:00:00Z."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1769860800000", JANUARY_MS),
        ("0", 0),
        ("2026-01-31T12:00:00Z", JANUARY_MS),
        ("2026-01-31T12:00", JANUARY_MS),
        ("2026-01-31T13:00:00.250+01:00", JANUARY_MS + 250),
        ("2026-01-31", JANUARY_MS - 43_200_000),
        ("9999-12-31T23:59:59.999Z", LAST_MS),
        (str(LAST_MS), LAST_MS),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("soon", "is not a time"),
        ("", "is not a time"),
        ("-5", "is not a time"),
        ("1.5", "is not a time"),
        ("2026-02-30", "is not a time"),
        ("x" * 5000, "is not a time"),
        ("2026-01-31T12:00Z" + " " * 100, "is not a time"),
        ("1969-12-31T23:59:59Z", "between the years 1970 and 9999"),
        (str(LAST_MS + 1), "between the years 1970 and 9999"),
        ("9999-12-31T23:59:59-01:00", "between the years 1970 and 9999"),
        ("0001-01-01T00:00:00+10:00", "between the years 1970 and 9999"),
        ("9" * 19, "is not a time"),
    ],
)
def test_texts_that_are_no_times(text: str, words: str) -> None:
    with pytest.raises(ScheduleTextError, match=words) as caught:
        parse_time(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1500", 1500),
        ("PT15M", 900_000),
        ("P1DT12H", 129_600_000),
        ("P2W", 1_209_600_000),
        ("PT0.25S", 250),
        ("PT0,5S", 500),
        ("PT1.0009S", 1000),
        ("PT1H2M3S", 3_723_000),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "P1Y", "P1M", "15M", "PT-5S", "-PT5S", "PT1.S", "P1W2", "\u0661"],
)
def test_texts_that_are_no_durations(text: str) -> None:
    with pytest.raises(ScheduleTextError, match="is not a duration"):
        parse_duration(text)


def test_durations_have_a_limit() -> None:
    with pytest.raises(ScheduleTextError, match="longer than"):
        parse_duration("P999999999W")


@pytest.mark.parametrize("text", ["999", "PT0.5S", "PT0S", "0"])
def test_short_intervals_are_refused(text: str) -> None:
    with pytest.raises(ScheduleTextError, match="shorter than a second"):
        parse_repetition(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * * *", "not an expression of cron"),
        ("61 * * * *", "not an expression of cron"),
        ("0 0 30 2 *", "not an expression of cron|matches no time"),
        ("a b c d e", "not an expression of cron"),
        ("often", "is not a duration"),
        ("* " * 300, "is not a duration"),
    ],
)
def test_texts_that_are_no_repetitions(text: str, words: str) -> None:
    with pytest.raises(ScheduleTextError, match=words):
        parse_repetition(text)


@given(
    first=st.integers(0, LAST_MS // 2),
    every=st.integers(1000, 10**10),
    moment=st.integers(-5, LAST_MS // 2),
)
def test_interval_gives_the_next_multiple(first: int, every: int, moment: int) -> None:
    found = Interval(every).first_time_after(first, moment)
    assert found is not None
    assert found > moment
    assert found >= first
    assert (found - first) % every == 0
    assert found == first or found - every <= moment


def test_interval_ends_with_the_year_9999() -> None:
    assert Interval(1000).first_time_after(LAST_MS - 10, LAST_MS - 5) is None


def test_cron_gives_times_in_utc() -> None:
    cron = parse_repetition("30 9 * * 1-5")
    assert isinstance(cron, Cron)
    moment = datetime(2026, 1, 30, 12, tzinfo=UTC)  # a Friday
    found = cron.first_time_after(0, int(moment.timestamp() * 1000))
    assert found == int(datetime(2026, 2, 2, 9, 30, tzinfo=UTC).timestamp() * 1000)
    again = cron.first_time_after(0, found)
    assert again == found + int(timedelta(days=1).total_seconds() * 1000)


def test_cron_begins_at_the_first_due_time() -> None:
    cron = Cron("0 * * * *")
    assert cron.first_time_after(JANUARY_MS, 0) == JANUARY_MS, "a time that matches is the first"
    assert cron.first_time_after(JANUARY_MS + 1, 0) == JANUARY_MS + 3_600_000
    assert cron.first_time_after(LAST_MS, 0) is None
