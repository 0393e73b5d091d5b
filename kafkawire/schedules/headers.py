"""The headers of records of schedule topics, and what a record asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from cronsim import CronSim, CronSimError

from kafkawire.codec.batches import Record

# Due times, delays and repetitions, as texts of record headers. Pure.
#
# Times are milliseconds since 1970, UTC. Texts are ASCII; ISO 8601 times without a zone are UTC.


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

    def first_time_after(self, first_ms: int, moment_ms: int) -> int | None:
        """Return the first due time after `moment_ms`; None: none before the year 10000."""
        if moment_ms < first_ms:
            return first_ms
        found = first_ms + ((moment_ms - first_ms) // self.every_ms + 1) * self.every_ms
        return found if found <= LAST_MS else None


class Cron(NamedTuple):
    """A repetition at the times that match an expression of cron, in UTC."""

    expression: str

    def first_time_after(self, first_ms: int, moment_ms: int) -> int | None:
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


PREFIX: Final = "kafkawire-"
DELIVER_AT: Final = "kafkawire-deliver-at"
DELIVER_AFTER: Final = "kafkawire-deliver-after"
DELIVER_EVERY: Final = "kafkawire-deliver-every"
CANCELS: Final = "kafkawire-cancels"
SCHEDULED_FROM: Final = "kafkawire-scheduled-from"


class Delivery(NamedTuple):
    """A record is to be delivered, first at `due_ms`; `target`: the topic that its header names."""

    due_ms: int
    repetition: Repetition | None
    target: str | None

    def next_after(self, moment_ms: int) -> int | None:
        if self.repetition is not None:
            return self.repetition.first_time_after(self.due_ms, moment_ms)
        return self.due_ms if self.due_ms > moment_ms else None


class CancelKey(NamedTuple):
    """A tombstone of a compacted schedule topic: it cancels the record before it with its key."""


class CancelOffset(NamedTuple):
    """A record that cancels the one at `offset` of its partition."""

    offset: int


class Invalid(NamedTuple):
    """A record that cannot be delivered, and the reason."""

    reason: str


Instruction: TypeAlias = Delivery | CancelKey | CancelOffset | Invalid


def instruction_of(record: Record, *, compacted: bool, target_header: str) -> Instruction:
    """Return what a record of a schedule topic asks for. `target_header`: the header that names the
    topic, "": the topic has a fixed target."""
    named: dict[str, bytes | None] = {}
    for name, value in record.headers:
        # The last header of a name counts, as in Kafka's `Headers.lastHeader`.
        if name.startswith(PREFIX) or name == target_header:
            named[name] = value
    try:
        # First: a record that cancels another one needs no due time and no value.
        if CANCELS in named:
            return CancelOffset(_offset(_text(named, CANCELS)))
        if record.value is None and compacted:
            return CancelKey()
        due_ms, repetition = _due(record, named), None
        if DELIVER_EVERY in named:
            repetition = parse_repetition(_text(named, DELIVER_EVERY))
            due_ms = _first(repetition, due_ms)
        return Delivery(due_ms, repetition, _target(named, target_header))
    except ScheduleTextError as wrong:
        return Invalid(str(wrong))


def _target(named: Mapping[str, bytes | None], target_header: str) -> str | None:
    """Return the topic that a record names, None if the target is fixed."""
    if not target_header:
        return None
    if target_header not in named:
        raise ScheduleTextError(f"it has no header {target_header}, which names the target topic")
    return _text(named, target_header)


def _first(repetition: Repetition, due_ms: int) -> int:
    """Return the first time of a repetition at or after the due time."""
    first_ms = repetition.first_time_after(due_ms, due_ms - 1)
    if first_ms is None:
        raise ScheduleTextError(f"{DELIVER_EVERY}: it matches no time after the due time")
    return first_ms


def _due(record: Record, named: Mapping[str, bytes | None]) -> int:
    """Return the first due time: of the headers, else the record's timestamp."""
    if DELIVER_AT in named:
        if DELIVER_AFTER in named:
            raise ScheduleTextError(f"it has both {DELIVER_AT} and {DELIVER_AFTER}")
        return parse_time(_text(named, DELIVER_AT))
    if DELIVER_AFTER in named:
        due_ms = max(record.timestamp, 0) + parse_duration(_text(named, DELIVER_AFTER))
    # -1: the producer gave none.
    else:
        due_ms = max(record.timestamp, 0)
    if due_ms > LAST_MS:
        raise ScheduleTextError(f"its due time, {due_ms} ms since 1970, is after the year 9999")
    return due_ms


def _text(named: Mapping[str, bytes | None], name: str) -> str:
    value = named.get(name)
    try:
        if value is not None:
            return value.decode("ascii").strip()
    except UnicodeDecodeError:
        pass
    raise ScheduleTextError(f"the header {name} has no text")


def _offset(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ScheduleTextError(f"{CANCELS} must be the offset of a record, not {text[:40]!r}")
    return int(text)
