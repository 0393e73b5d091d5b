"""Records by bucket of time, where it is not known beforehand which time they span. Pure but for
numpy; runs inside Spark's tasks, a batch at a time.

Buckets begin narrow and are kept only where they have something. When there are more than there is
room for, all become as wide as the next of WIDTHS_MS, which is a multiple of the one before: so
what tasks found apart merges exactly. A few records of another century cost a few buckets, not a
scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kafkawire.spark.reports.measures import WIDTHS_MS, width_for

ROOM = 2048
"""Buckets at most, but for the widest, of which ten thousand years have 10,000: many more than a
plot has steps, and some 50 KB for each task."""
_DENSE = 1 << 18
"""Buckets that are counted in an array, filled or not: 4 MB."""
_NEUTRAL = {np.add: 0, np.minimum: np.iinfo(np.int64).max}


class Buckets:
    """For each bucket [start, start + width) its `records` and `values`, folded by `fold`
    (np.add, np.minimum), in the order of `starts` (ms, multiples of the width)."""

    def __init__(self, fold: Any = np.add, room: int = ROOM) -> None:
        self.level = 0
        self.starts = np.empty(0, np.int64)
        self.records = np.empty(0, np.int64)
        self.values = np.empty(0, np.int64)
        self._fold, self._room = fold, room

    @property
    def width(self) -> int:
        """Of each, in ms."""
        return WIDTHS_MS[self.level]

    def feed(self, stamps: Any, values: Any) -> None:
        """The next records: times in ms, none below 0, and a value of each."""
        if len(stamps):
            self._take(stamps, np.ones(len(stamps), np.int64), values)

    def merge(self, level: int, starts: Any, records: Any, values: Any) -> None:
        """Another's buckets."""
        self.widen(level)
        if len(starts):
            self._take(*(np.asarray(column, np.int64) for column in (starts, records, values)))

    def widen(self, level: int) -> None:
        """To the width of this level at least."""
        if level > self.level:
            self.level = level
            self.starts, self.records, self.values = self._grouped(
                self.starts, self.records, self.values
            )

    def _take(self, stamps: Any, records: Any, values: Any) -> None:
        found = self._grouped(stamps, records, values)
        old = self.starts, self.records, self.values
        both = [np.concatenate(pair) for pair in zip(old, found, strict=True)]
        self.starts, self.records, self.values = self._grouped(*both)
        while len(self.starts) > self._room and self.level + 1 < len(WIDTHS_MS):
            self.widen(self.level + 1)

    def _grouped(self, stamps: Any, records: Any, values: Any) -> tuple[Any, Any, Any]:
        if not len(stamps):
            return stamps, records, values
        numbers = stamps // self.width
        first, span = int(numbers.min()), int(np.ptp(numbers)) + 1
        if span <= _DENSE:
            starts, places = np.arange(first, first + span), numbers - first
        else:
            starts, places = np.unique(numbers, return_inverse=True)
        sums = np.zeros(len(starts), np.int64)
        folded = np.full(len(starts), _NEUTRAL[self._fold], np.int64)
        np.add.at(sums, places, records)
        self._fold.at(folded, places, values)
        there = sums > 0
        return starts[there] * self.width, sums[there], folded[there]


STRAY, STRETCH = 0.001, 4
"""Buckets at the ends that have no more than this share of the records are strays if with them the
span is more than so many times as long."""


def window(buckets: Buckets) -> tuple[int, int, int]:
    """Time range of a picture: the level of the width that suits it, and [first, end) in ms: all
    there is, but for strays. (0, 0, 0) for nothing."""
    if not len(buckets.starts):
        return 0, 0, 0
    starts, width = buckets.starts, buckets.width
    before = np.cumsum(buckets.records)
    stray = STRAY * before[-1]
    first = int(np.searchsorted(before, stray, side="right"))
    last = int(np.searchsorted(before, before[-1] - stray, side="left"))
    ends = int(starts[0]), int(starts[-1]) + width
    core = int(starts[first]), int(starts[last]) + width
    begin, end = core if ends[1] - ends[0] > STRETCH * (core[1] - core[0]) else ends
    return max(buckets.level, WIDTHS_MS.index(width_for(end - begin))), begin, end
