"""How far ahead of each reader of a partition remote data is loaded. Pure.

Modelled on TCP's congestion window, as in RocketMQ's tiered storage: a window grows by one block
with each block that was read ahead and used, and halves when one was evicted unread. Single and
random reads cause no read-ahead. A reader is identified by its next offset; several close readers
(groups of one topic, a restarted consumer) share a window and its blocks.
"""

from __future__ import annotations

from collections import deque

FIRST_BLOCKS = 2
"""The initial window, after the first sequential read."""
MAX_WINDOW_BLOCKS = 32
"""Maximum window: four requests of the largest size, four times what one connection to S3 provides.
"""
MAX_READERS = 1024
"""Maximum number of windows; the least recently used are dropped."""
WINDOWS_PER_PARTITION = 8
"""Maximum number of readers distinguished per partition."""
TRAIL = 16
"""A reader within this many reads of another shares its window."""
IDLE_S = 1.0
"""A window unused for this long takes no share of the cache; so slow a reader needs no read-ahead.
"""
CACHE_SHARE = 0.5
"""Share of the cache that all windows together may fill with unread blocks."""


class ReadaheadWindow:
    """One reader, or several close ones. `next_offset`: where the next sequential read begins."""

    __slots__ = ("_forgiven", "_trail", "blocks", "next_offset", "number", "used_at")

    def __init__(self, number: int, offset: int, now_s: float) -> None:
        self.number = number
        self.blocks = 0
        self.next_offset = offset
        self.used_at = now_s
        self._trail: deque[int] = deque([offset], TRAIL)
        self._forgiven = 0

    def covers(self, offset: int) -> bool:
        return self._trail[0] <= offset <= self.next_offset

    def went(self, offset: int, next_offset: int, now_s: float) -> None:
        """Record a read from `offset` on that ended before `next_offset`."""
        self.used_at = now_s
        # Another reader shortly after the one of this window, whose blocks it uses.
        if offset != self.next_offset or next_offset <= offset:
            return
        # A second sequential read: single and random reads cause no read-ahead.
        if not self.blocks and len(self._trail) > 1:
            self.blocks = FIRST_BLOCKS
        self._trail.append(offset)
        self.next_offset = next_offset

    def note_used(self) -> None:
        self.blocks = min(MAX_WINDOW_BLOCKS, self.blocks + 1)
        self._forgiven = 0

    def unread(self) -> None:
        # All blocks of one window are evicted for one reason: it halves once for them.
        if self._forgiven:
            self._forgiven -= 1
            return
        self._forgiven = self.blocks
        self.blocks = max(1, self.blocks // 2)


class ReadAhead:
    """The windows of all readers, for a cache of `blocks` blocks."""

    __slots__ = ("_by_partition", "_cache_blocks", "_windows")

    def __init__(self, cache_blocks: int) -> None:
        self._cache_blocks = cache_blocks
        self._by_partition: dict[int, list[ReadaheadWindow]] = {}
        self._windows: dict[ReadaheadWindow, None] = {}  # in the order of last use

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, number: int, offset: int) -> ReadaheadWindow | None:
        """Return the window of the reader at this offset of a partition; an exact match is
        preferred."""
        best: ReadaheadWindow | None = None
        for window in self._by_partition.get(number, ()):
            if window.next_offset == offset:
                return window
            if window.covers(offset):
                best = window
        return best

    def open_window(self, number: int, offset: int, now_s: float) -> ReadaheadWindow:
        window = ReadaheadWindow(number, offset, now_s)
        there = self._by_partition.setdefault(number, [])
        there.append(window)
        self._windows[window] = None
        if len(there) > WINDOWS_PER_PARTITION:
            self._forget(min(there, key=lambda one: one.used_at))
        elif len(self._windows) > MAX_READERS:
            self._forget(next(iter(self._windows)))
        return window

    def went(self, window: ReadaheadWindow, offset: int, next_offset: int, now_s: float) -> None:
        window.went(offset, next_offset, now_s)
        if window in self._windows:
            self._windows[window] = self._windows.pop(window)

    def room(self, window: ReadaheadWindow, now_s: float) -> int:
        """Return how many blocks may be read ahead for it."""
        active = 0
        for other in reversed(self._windows):
            if other.used_at < now_s - IDLE_S:
                break
            active += 1
        share = int(self._cache_blocks * CACHE_SHARE) // max(1, active)
        return min(window.blocks, share)

    def _forget(self, window: ReadaheadWindow) -> None:
        self._windows.pop(window, None)
        there = self._by_partition[window.number]
        there.remove(window)
        if not there:
            del self._by_partition[window.number]
