"""Due times, delays and repetitions, as texts of record headers. Pure.

Times are milliseconds since 1970, UTC. Texts are ASCII; ISO 8601 times without a zone are UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from cronsim import CronSim, CronSimError

LAST_MS = 253_402_300_799_999
"""The end of the year 9999, the last time that ISO 8601 and Python's datetime can express."""
LEAST_INTERVAL_MS = 1000
"""The shortest interval of a repetition: with less, one forgotten record would write more than all
other clients."""
MAX_TEXT_CHARS = 100
"""No text of a time, a duration or a schedule of cron is longer; longer ones are not parsed."""

_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)
_DURATION = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,12})(?:[.,]([0-9]{1,9}))?S)?)?",
    re.ASCII,
)
_UNITS_MS = (7 * 86_400_000, 86_400_000, 3_600_000, 60_000, 1000)


class ScheduleTextError(ValueError):
    """A text of a record is not what is expected there; the message says what is allowed."""


class Interval(NamedTuple):
    """A repetition at a fixed interval from the first due time on."""

    every_ms: int

    def after(self, first_ms: int, moment_ms: int) -> int | None:
        """Return the first due time after `moment_ms`; None: there is none before the year
        10000."""
        if moment_ms < first_ms:
            return first_ms
        found = first_ms + ((moment_ms - first_ms) // self.every_ms + 1) * self.every_ms
        return found if found <= LAST_MS else None


class Cron(NamedTuple):
    """A repetition at the times that match an expression of cron, in UTC."""

    expression: str

    def after(self, first_ms: int, moment_ms: int) -> int | None:
        """Return the first matching time after `moment_ms` and not before `first_ms`; None: the
        expression matches none of the next 50 years."""
        start_ms = min(max(moment_ms, first_ms - 1), LAST_MS)
        try:
            start = datetime.fromtimestamp(start_ms // 1000, UTC)
            found = next(CronSim(self.expression, start))
        except (StopIteration, OverflowError, ValueError):
            return None
        return int(found.timestamp()) * 1000


Repetition: TypeAlias = Interval | Cron


def parse_time(text: str) -> int:
    """Return the time of a text: milliseconds since 1970, or ISO 8601. Raises ScheduleTextError."""
    if _DIGITS.fullmatch(text):
        moment_ms = int(text)
    else:
        try:
            parsed = datetime.fromisoformat(text if len(text) <= MAX_TEXT_CHARS else "")
            zoned = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
            since = zoned - datetime(1970, 1, 1, tzinfo=UTC)
        except (ValueError, OverflowError):
            raise ScheduleTextError(
                f"{text[:MAX_TEXT_CHARS]!r} is not a time: it must be milliseconds since 1970, or "
                "ISO 8601 such as 2026-01-31T12:00:00Z"
            ) from None
        moment_ms = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if not 0 <= moment_ms <= LAST_MS:
        raise ScheduleTextError(f"{text!r} is not between the years 1970 and 9999")
    return moment_ms


def parse_duration(text: str) -> int:
    """Return the milliseconds of a text: a number of them, or an ISO 8601 duration of weeks, days,
    hours, minutes and seconds. Raises ScheduleTextError."""
    if _DIGITS.fullmatch(text):
        duration_ms = int(text)
    else:
        match = _DURATION.fullmatch(text)
        if match is None:
            raise ScheduleTextError(
                f"{text[:MAX_TEXT_CHARS]!r} is not a duration: it must be milliseconds, or "
                "ISO 8601 such as PT15M or P1DT12H, without years and months"
            )
        *whole, fraction = match.groups()
        duration_ms = sum(int(n or 0) * unit for n, unit in zip(whole, _UNITS_MS, strict=True))
        duration_ms += int((fraction or "0")[:3].ljust(3, "0"))
    if duration_ms > LAST_MS:
        raise ScheduleTextError(f"{text!r} is longer than 8,000 years")
    return duration_ms


def parse_repetition(text: str) -> Repetition:
    """Return the repetition of a text: a duration of at least a second, or five fields of cron.
    Raises ScheduleTextError."""
    if " " in text and len(text) <= MAX_TEXT_CHARS:
        try:
            next(CronSim(text, datetime(2026, 1, 1, tzinfo=UTC)))
        except StopIteration:
            raise ScheduleTextError(f"{text!r} matches no time of the next 50 years") from None
        except CronSimError as wrong:
            raise ScheduleTextError(f"{text!r} is not an expression of cron: {wrong}") from None
        return Cron(text)
    every_ms = parse_duration(text)
    if every_ms < LEAST_INTERVAL_MS:
        raise ScheduleTextError(f"{text!r} is shorter than a second")
    return Interval(every_ms)
