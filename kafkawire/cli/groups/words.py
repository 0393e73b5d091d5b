"""Numbers, durations and names in sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAMED = 5
"""Names in one sentence; the others are counted."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(ms: int) -> str:
    """Return a duration by its two largest units: 2 d 3 h, 4 min 5 s, 120 ms."""
    for i, (unit, size) in enumerate(_UNITS):
        if ms >= size:
            text = f"{ms // size} {unit}"
            if i + 1 < len(_UNITS):
                smaller, its_size = _UNITS[i + 1]
                rest = ms % size // its_size
                text += f" {rest} {smaller}" if rest else ""
            return text
    return f"{max(0, ms)} ms"


def ago(then_ms: int, now_ms: int) -> str:
    """Return how long ago something was."""
    return f"{duration(now_ms - then_ms)} ago"


def named(names: Sequence[str]) -> str:
    """Return the names, at most MAX_NAMED of them, and how many more there are."""
    more = [f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else []
    return ", ".join([*names[:MAX_NAMED], *more])
