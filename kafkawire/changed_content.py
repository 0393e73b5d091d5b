"""When changed files are used: once they were the same in two reads, since files are often written
in parts. Pure."""

from __future__ import annotations

POLL_S = 3.0
"""Interval of reading the files: a few small reads in a thread."""


class SettledContent:
    """Detects new content, or a digest of it; `used`: the content in use."""

    def __init__(self, used: bytes = b"") -> None:
        self._seen = self._used = used

    def is_new(self, content: bytes) -> bool:
        """Return whether content was read twice and not used before; it counts as used then."""
        if content == self._seen and content != self._used:
            self._used = content
            return True
        self._seen = content
        return False
