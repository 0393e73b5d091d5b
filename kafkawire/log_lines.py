"""Log lines about what clients do: at a bounded rate, with texts of bounded length.

Used for events of groups (kafkawire.groups.event_log) and changes of topics
(kafkawire.broker.change_log). Pure.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_SHOWN = 120
"""Characters of a client's text in a log line; clients may send 32,767."""


class LineLimit:
    """At most `burst` log lines at once, and `per_second` on average. Pure."""

    __slots__ = ("_burst", "_filled", "_now", "_omitted", "_per_second", "_room")

    def __init__(self, now: Callable[[], float], burst: int, per_second: float) -> None:
        self._now = now
        self._burst = burst
        self._per_second = per_second
        self._room = float(burst)
        self._filled = now()
        self._omitted = 0

    def admit(self) -> int | None:
        """Return how many lines were omitted before this one; None if this one is omitted, too."""
        now = self._now()
        self._room = min(self._burst, self._room + (now - self._filled) * self._per_second)
        self._filled = now
        if self._room < 1:
            self._omitted += 1
            return None
        self._room -= 1
        omitted, self._omitted = self._omitted, 0
        return omitted


def shown(text: str) -> str:
    """Return a client's text for a log line: of bounded length and in one line."""
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return cut if cut.isprintable() and cut else repr(cut)
