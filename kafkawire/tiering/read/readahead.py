"""How far ahead of each reader of a partition remote data is loaded. Pure.

After TCP's congestion window, as in RocketMQ's tiered storage: a window of blocks that grows by one
with each block that was read ahead and then used, and halves when one left the cache unread. Who
reads once, or jumps about, is not read ahead for. Readers are known by where they go on: several
that are close together (groups of one topic, a restarted consumer) share a window and the blocks.
"""

from __future__ import annotations

from collections import deque

FIRST_BLOCKS = 2
"""The window of a reader that went on where it had stopped for the first time."""
MAX_WINDOW_BLOCKS = 32
"""Four requests of the largest size under way: what one connection of S3 gives, four times."""
MAX_READERS = 1024
"""Windows in all; beyond them those used longest ago are forgotten."""
WINDOWS_PER_PARTITION = 8
"""Readers of one partition, in different places, that are distinguished."""
TRAIL = 16
"""A reader this many reads after another one is with it."""
IDLE_S = 1.0
"""A window not used for so long takes no share of the cache: who reads so slowly needs none."""
CACHE_SHARE = 0.5
"""Of the cache, how much all windows together may fill with what no one has read yet."""


class ReadaheadWindow:
    """One reader, or several that are close together. `next_offset`: where it goes on."""

    __slots__ = ("_forgiven", "_trail", "blocks", "next_offset", "number", "used_at")

    def __init__(self, number: int, offset: int, now_s: float) -> None:
        self.number = number
        self.blocks = 0
        self.next_offset = offset
        self.used_at = now_s
        self._trail: deque[int] = deque([offset], TRAIL)
        self._forgiven = 0

    def covers(self, offset: int) -> bool:
        """Whether a read at this offset belongs to this reader."""
        return self._trail[0] <= offset <= self.next_offset

    def went(self, offset: int, next_offset: int, now_s: float) -> None:
        """A read from `offset` on ended before `next_offset`."""
        self.used_at = now_s
        if offset != self.next_offset or next_offset <= offset:
            return  # one that follows
        if not self.blocks and len(self._trail) > 1:
            self.blocks = FIRST_BLOCKS
        self._trail.append(offset)
        self.next_offset = next_offset

    def used(self) -> None:
        """A block that was read ahead has been read."""
        self.blocks = min(MAX_WINDOW_BLOCKS, self.blocks + 1)
        self._forgiven = 0

    def unread(self) -> None:
        """One has left the cache unread. Those of the same window count once."""
        if self._forgiven:
            self._forgiven -= 1
            return
        self._forgiven = self.blocks
        self.blocks = max(1, self.blocks // 2)


class ReadAhead:
    """The windows of all readers, over a cache of so many blocks."""

    __slots__ = ("_by_partition", "_cache_blocks", "_windows")

    def __init__(self, cache_blocks: int) -> None:
        self._cache_blocks = cache_blocks
        self._by_partition: dict[int, list[ReadaheadWindow]] = {}
        self._windows: dict[ReadaheadWindow, None] = {}  # in the order of last use

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, number: int, offset: int) -> ReadaheadWindow | None:
        """The window of who reads a partition there; the one that goes on there before all."""
        best: ReadaheadWindow | None = None
        for window in self._by_partition.get(number, ()):
            if window.next_offset == offset:
                return window
            if window.covers(offset):
                best = window
        return best

    def begin(self, number: int, offset: int, now_s: float) -> ReadaheadWindow:
        """A reader that is not known yet."""
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
        """A read from `offset` on ended before `next_offset`."""
        window.went(offset, next_offset, now_s)
        if window in self._windows:
            self._windows[window] = self._windows.pop(window)

    def room(self, window: ReadaheadWindow, now_s: float) -> int:
        """How many blocks beyond what it reads now may be loaded for it."""
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
