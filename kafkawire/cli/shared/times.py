"""Times and positions of the command line: one notation for all commands. Pure.

A time is ISO 8601 (UTC without a zone), `-1h` (before now), `now`, or `@1700000000000`
(milliseconds since 1970). A position is a time, `earliest` (the log start offset) or `latest` (the
log end offset). The end of a range is a time, or `+5m` after its beginning.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kafkawire.client.notation import OptionError, parse_duration

TIMES = "a time: ISO 8601 such as 2026-01-31T12:00, -1h, now or @1700000000000"
MAX_TIME_MS = 253_402_300_799_999
"""The end of year 9999, which is the end of Python's calendar."""
MAX_DIGITS = 15
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(option: str, text: str, now_ms: int) -> int:
    """Parse a time (see TIMES) into milliseconds since 1970. OptionError."""
    found = _time_ms(text.strip(), now_ms)
    if found is None or not 0 <= found <= MAX_TIME_MS:
        raise OptionError(option, text, TIMES)
    return found


def parse_end(
    option: str, text: str, since_ms: int | None, now_ms: int, since_option: str = "--from"
) -> int:
    """Parse the end of a time range: a time, or `+5m` after its beginning. OptionError."""
    ends = f"{TIMES}, or +5m after {since_option}"
    if not text.strip().startswith("+"):
        try:
            return parse_time(option, text, now_ms)
        except OptionError:
            raise OptionError(option, text, ends) from None
    if since_ms is None:
        raise OptionError(option, text, f"a time, or used together with {since_option}")
    try:
        found = since_ms + parse_duration("", text.strip()[1:])
    except OptionError:
        raise OptionError(option, text, ends) from None
    if found > MAX_TIME_MS:
        raise OptionError(option, text, ends)
    return found


def _time_ms(text: str, now_ms: int) -> int | None:
    if text == "now":
        return now_ms
    if text.startswith("@"):
        digits = text[1:]
        sound = digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS
        return int(digits) if sound else None
    if text.startswith("-"):
        try:
            return now_ms - parse_duration("", text[1:])
        except OptionError:
            return None
    try:
        when = datetime.fromisoformat(text)
        return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH) // timedelta(
            milliseconds=1
        )
    except (ValueError, OverflowError):
        return None
