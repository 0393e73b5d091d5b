"""The headers of records of schedule topics, and what a record asks for. Pure.

The last header of a name counts, as in Kafka's `Headers.lastHeader`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from kafkawire.codec.batches import Record
from kafkawire.schedules.times import (
    LAST_MS,
    Repetition,
    ScheduleTextError,
    parse_duration,
    parse_repetition,
    parse_time,
)

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
        """Return the first due time after `moment_ms`; None: there is none."""
        if self.repetition is not None:
            return self.repetition.after(self.due_ms, moment_ms)
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
        if name.startswith(PREFIX) or name == target_header:
            named[name] = value
    try:
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
    first_ms = repetition.after(due_ms, due_ms - 1)
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
    else:
        due_ms = max(record.timestamp, 0)  # -1: the producer gave none
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
