"""Texts of log lines: what clients do, at a bounded rate and of bounded length; addresses; reasons.

The first are used for events of groups (kafkawire.groups.event_log) and changes of topics
(kafkawire.broker.change_log). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_ERRNO = re.compile(r"\[Errno -?[0-9]+\] ")
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


def address_of(host: str, port: int | str) -> str:
    """Return HOST:PORT, with brackets around an IPv6 address, and `*` for all addresses."""
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def reason_of(failure: BaseException) -> str:
    """Return the text of an exception, without error numbers of the system; its name if it has no
    text, as TimeoutError."""
    return _ERRNO.sub("", str(failure)) or type(failure).__name__


def shorten_for_log(text: str) -> str:
    """Return a client's text for a log line: of bounded length and in one line."""
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
    return cut if cut.isprintable() and cut else repr(cut)
