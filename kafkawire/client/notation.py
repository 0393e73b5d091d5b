"""Sizes, durations and rates as people write them, parsed, and times as text. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from kafkawire.units import size

INPUT_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
TIME_SETTINGS = {".ms": 1, ".seconds": 1_000, ".minutes": 60_000, ".hours": 3_600_000}
"""Endings of names of settings, by the milliseconds of their unit."""
RATE_SETTING = ".bytes.per.second"
SIZE_SETTINGS = (".bytes", ".buffer.size", ".receive.size", RATE_SETTING)
_NUMBER = re.compile(r"[+-]?[0-9.]*(?:[eE][+-]?[0-9]+)?")  # or empty: the broker checks it
MAX_DURATION_MS = 400 * 365 * 86_400_000
"""400 years: any time before now that Python's calendar and an int64 of milliseconds have."""
DURATION_ALLOWED = "a duration such as 30s, 15m, 1h30m, 2d or P1DT2H"
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kKMGT]?)(i?)B?(?:/s)?")
MAX_RATE = 1 << 50
"""1 PiB/s: more than any broker."""
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)(?: ?(?:([kKMGT])(i?))?B)?")
"""MB is 1,000,000 bytes, MiB 1,048,576."""
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_PART = re.compile(r"([0-9]{1,15})(ms|min|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_ISO = re.compile(
    r"P(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})(?:\.([0-9]{1,3})[0-9]*)?S)?)?"
)


class OptionError(ValueError):
    """An invalid value of an option; the text is one sentence."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"{option}={value}: it must be {allowed}")


def parse_duration(option: str, text: str) -> int:
    """Parse `30s`, `1h30m`, `500ms`, `2d` or ISO 8601 `P1DT2H` into milliseconds. OptionError."""
    value = text.strip()
    found = _duration_ms(value)
    if found is None or found > MAX_DURATION_MS:
        raise OptionError(option, text, DURATION_ALLOWED)
    return found


def _duration_ms(text: str) -> int | None:
    if _DURATION.fullmatch(text):
        return sum(int(part[1]) * INPUT_UNITS_MS[part[2]] for part in _PART.finditer(text))
    found = _ISO.fullmatch(text)
    if found is None or not any(found.groups()):
        return None
    numbers = [int(each or 0) for each in found.groups()[:5]]
    lengths = (INPUT_UNITS_MS[unit] for unit in ("w", "d", "h", "m", "s"))
    whole = sum(number * length for number, length in zip(numbers, lengths, strict=True))
    return whole + int((found[6] or "0").ljust(3, "0"))


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE` into (name, value)."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise OptionError(option, text, "NAME=VALUE")
    return name.strip(), value.strip()


def split_setting(option: str, text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE` into (name, value as brokers take it). OptionError."""
    name, value = split_pair(option, text)
    return name, plain_value(name, value)


def plain_value(name: str, text: str) -> str:
    """Return the milliseconds of `retention.ms=7d`, the bytes of `segment.bytes=64MiB` and so on;
    brokers take numbers only. Numbers, and values of other settings, are unchanged. OptionError."""
    if _NUMBER.fullmatch(text):
        return text
    for ending, unit_ms in TIME_SETTINGS.items():
        if name.endswith(ending):
            found_ms = _duration_ms(text)
            if found_ms is None or found_ms % unit_ms:
                raise OptionError(name, text, f"a number of {ending[1:]}, or {DURATION_ALLOWED}")
            return str(found_ms // unit_ms)
    if name.endswith(SIZE_SETTINGS):
        return str(
            parse_size(name, text.removesuffix("/s") if name.endswith(RATE_SETTING) else text)
        )
    return text


def parse_size(option: str, text: str) -> int:
    """Parse `64MiB`, `10MB` or `1000` into bytes. OptionError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise OptionError(option, text, "a number of bytes, or a size such as 64MiB or 10MB")
    base = 1024 if found[3] else 1000
    return int(float(found[1]) * base ** _POWERS[(found[2] or "").lower()])


def parse_rate(option: str, text: str) -> float:
    """Parse `5MB/s`, `512KiB/s` or `1000` into bytes per second. OptionError."""
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise OptionError(
            option, text, "a number of bytes per second such as 5MB/s, 512KiB/s or 1000"
        )
    base = 1024 if found[3] else 1000
    rate = float(found[1]) * float(base ** _POWERS[found[2].lower()])
    if rate > MAX_RATE:
        raise OptionError(option, text, f"at most {size(MAX_RATE)}/s")
    return rate


def time_text(ms: int) -> str | None:
    """Return milliseconds since 1970 as ISO 8601 in UTC; None for a time outside the calendar."""
    try:
        when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
