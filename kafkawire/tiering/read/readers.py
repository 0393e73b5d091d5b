"""Positions of the readers of remote data, and when each will need a block. Pure.

A position is the next offset of a sequential reader: a member of a group or a consumer without one.
Only cold reads move positions. Readers of recent data need no block of the cache, and cost nothing
here. A reader is identified by its next offset: two at the same one are the same until one moves.
"""

from __future__ import annotations

from math import inf

MAX_PARTITIONS = 1024
"""Maximum number of partitions with positions; the least recently read are dropped."""
READERS_PER_PARTITION = 8
"""Maximum number of positions per partition: as many readers as read-ahead distinguishes."""
SILENT_S = 60.0
"""A reader that read nothing for this long is ignored: it has ended, reached recent data, or is so
slow that loading its blocks again costs it little."""
WEIGHT = 0.8
"""Weight of earlier reads in a pace, per read: about the last five decide."""


class ReaderPosition:
    """One reader. `next_offset`: where its next read begins; `read_at`: its last read, in seconds;
    `offsets` and `seconds`: decaying sums, whose quotient is its pace."""

    __slots__ = ("next_offset", "offsets", "read_at", "seconds")

    def __init__(self, next_offset: int, now_s: float) -> None:
        self.next_offset = next_offset
        self.read_at = now_s
        self.offsets = 0.0
        self.seconds = 0.0

    def note_read(self, next_offset: int, now_s: float) -> None:
        self.offsets = self.offsets * WEIGHT + next_offset - self.next_offset
        self.seconds = self.seconds * WEIGHT + now_s - self.read_at
        self.next_offset, self.read_at = next_offset, now_s

    def seconds_until(self, offset: int) -> float:
        """Return the seconds from its last read until it reads an offset ahead of it."""
        # With one read its pace is unknown: its blocks are needed later than all others.
        return (offset - self.next_offset) * self.seconds / self.offsets if self.offsets else inf


class Readers:
    """The positions of the readers of each partition."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[int, list[ReaderPosition]] = {}  # in the order of last use

    def __len__(self) -> int:
        return sum(map(len, self._by_partition.values()))

    def note_read(self, number: int, offset: int, next_offset: int, now_s: float) -> None:
        """Record a read of [offset, next_offset) of a partition."""
        positions = self._by_partition.pop(number, [])
        self._by_partition[number] = positions
        for position in positions:
            if position.next_offset == offset:
                position.note_read(next_offset, now_s)
                return
        positions.append(ReaderPosition(next_offset, now_s))
        if len(positions) > READERS_PER_PARTITION:
            positions.remove(min(positions, key=lambda each: each.read_at))
        elif len(self._by_partition) > MAX_PARTITIONS:
            del self._by_partition[next(iter(self._by_partition))]

    def seconds_until_read(self, number: int, first: int, end: int, now_s: float) -> float | None:
        """Return in how many seconds the next reader needs offsets [first, end) of a partition;
        None: all have read past them."""
        soonest: float | None = None
        for position in self._by_partition.get(number, ()):
            if position.next_offset >= end or now_s - position.read_at > SILENT_S:
                continue
            if position.next_offset >= first:
                return 0.0
            seconds = max(0.0, position.seconds_until(first) - (now_s - position.read_at))
            soonest = seconds if soonest is None else min(soonest, seconds)
        return soonest
