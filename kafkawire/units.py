"""Numbers as people read them: sizes, durations, times before now. Pure.

JSON has the exact numbers; these are for tables and sentences.
"""

from __future__ import annotations

KIB = 1024
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DURATION_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def size(size_bytes: float) -> str:
    """Return a number of bytes as in "512 B" or "1.4 GiB"."""
    amount, unit = float(size_bytes), 0
    while abs(amount) >= KIB - 0.05 and unit < len(SIZE_UNITS) - 1:  # 1023.96 would be "1024.0"
        amount, unit = amount / KIB, unit + 1
    return f"{amount:.1f} {SIZE_UNITS[unit]}" if unit else f"{amount:.0f} B"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, as in "2 d 3 h", "5 min 20 s", "1.5 s" or
    "120 ms"."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95 and seconds != int(seconds):
        return f"{seconds:.1f} s"
    left = round(seconds)
    for at, (unit, length) in enumerate(DURATION_UNITS):
        if left >= length:
            number, rest = divmod(left, length)
            if at + 1 == len(DURATION_UNITS):
                return f"{number} {unit}"
            small, small_length = DURATION_UNITS[at + 1]
            second = rest // small_length
            return f"{number} {unit} {second} {small}" if second else f"{number} {unit}"
    return "0 s"


def duration_ms(milliseconds: float) -> str:
    """Return a duration in milliseconds as `duration` does; a negative one, of clocks that differ,
    as none."""
    return duration(max(0, milliseconds) / 1000)


def ago(at_ms: int | None, now_ms: int) -> str:
    """Return how long before now a time was, or "never"."""
    return "never" if not at_ms else f"{duration_ms(now_ms - at_ms)} ago"


def money(amount: float) -> str:
    """Return an amount with two decimals, or six if it is below one."""
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.6f}"
