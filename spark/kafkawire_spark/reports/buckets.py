"""Count records by bucket of time, when the range of times is not known beforehand. Pure; runs in
Spark tasks, one batch at a time.

Buckets begin narrow, and only non-empty ones are kept. When there are too many, all become as wide
as the next of WIDTHS_MS.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kafkawire_spark.measures import WIDTHS_MS, width_for

ROOM = 2048
"""Maximum number of buckets, except at the largest width, at which ten thousand years have 10,000:
many more than the steps of a plot, and some 50 KB per task."""
_DENSE = 1 << 18
"""Maximum number of buckets counted in an array, empty ones included: 4 MB."""
_NEUTRAL = {np.add: 0, np.minimum: np.iinfo(np.int64).max}


class Buckets:
    """For each bucket [start, start + width) its `records` and `values`, combined by `fold`
    (np.add, np.minimum), in the order of `starts` (ms, multiples of the width)."""

    def __init__(self, fold: Any = np.add, room: int = ROOM) -> None:
        self.level = 0
        self.starts = np.empty(0, np.int64)
        self.records = np.empty(0, np.int64)
        self.values = np.empty(0, np.int64)
        self._fold, self._room = fold, room

    @property
    def width(self) -> int:
        """Width of a bucket, in ms."""
        return WIDTHS_MS[self.level]

    def add(self, stamps: Any, values: Any) -> None:
        """Add records: times in ms, none negative, and a value for each."""
        if len(stamps):
            self._take(stamps, np.ones(len(stamps), np.int64), values)

    def merge(self, level: int, starts: Any, records: Any, values: Any) -> None:
        """Add another's buckets."""
        # Each width is a multiple of the previous one, so this is exact.
        self.widen(level)
        if len(starts):
            self._take(*(np.asarray(column, np.int64) for column in (starts, records, values)))

    def widen(self, level: int) -> None:
        """Widen to the width of this level at least."""
        if level > self.level:
            self.level = level
            self.starts, self.records, self.values = self._group(
                self.starts, self.records, self.values
            )

    def _take(self, stamps: Any, records: Any, values: Any) -> None:
        found = self._group(stamps, records, values)
        old = self.starts, self.records, self.values
        both = [np.concatenate(pair) for pair in zip(old, found, strict=True)]
        self.starts, self.records, self.values = self._group(*both)
        while len(self.starts) > self._room and self.level + 1 < len(WIDTHS_MS):
            self.widen(self.level + 1)

    def _group(self, stamps: Any, records: Any, values: Any) -> tuple[Any, Any, Any]:
        if not len(stamps):
            return stamps, records, values
        numbers = stamps // self.width
        first, span = int(numbers.min()), int(np.ptp(numbers)) + 1
        if span <= _DENSE:
            starts, places = np.arange(first, first + span), numbers - first
        else:  # a few records of another century take a few buckets
            starts, places = np.unique(numbers, return_inverse=True)
        sums = np.zeros(len(starts), np.int64)
        folded = np.full(len(starts), _NEUTRAL[self._fold], np.int64)
        np.add.at(sums, places, records)
        self._fold.at(folded, places, values)
        there = sums > 0
        return starts[there] * self.width, sums[there], folded[there]


STRAY, STRETCH = 0.001, 4
"""Outliers: buckets at the ends that have at most this share of the records, if they make the range
this many times longer."""


def window(buckets: Buckets) -> tuple[int, int, int]:
    """Return the time range of a plot: the level of a suitable width, and [first, end) in ms,
    without outliers. (0, 0, 0) if there are no records."""
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
