"""One range of a partition in the continuity check: its records, their order, and their cells.

Pure; runs in Spark tasks, one batch of offsets at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kafkawire.reading.model.source import PartitionRange

CELLS = 160
"""Cells of a partition's strip on the map: each is some pixels wide."""


class Strip:
    """Counts the offsets that a reader returns for `range`, each compared with those before it.

    `start`, `end`: of the whole partition: offset o is in cell (o - start) * CELLS // (end -
    start). `duplicates`: offsets that were not above all before them, so repeated or out of order;
    `outside`: not in the range.
    """

    def __init__(self, range_: PartitionRange, start: int, end: int) -> None:
        self.range = range_
        self._start, self._span = start, end - start
        self.first, self.last = -1, -1
        self.records = self.duplicates = self.outside = 0
        self.cells = np.zeros(CELLS, np.int64)

    def feed(self, offsets: Any) -> None:
        """Add offsets, int64."""
        if not len(offsets):
            return
        within = (offsets >= self.range.base) & (offsets < self.range.end)
        if not within.all():
            self.outside += int((~within).sum())
            offsets = offsets[within]
            if not len(offsets):
                return
        highest = np.maximum.accumulate(np.concatenate(([self.last], offsets)))
        fresh = offsets > highest[:-1]
        if not fresh.all():
            self.duplicates += int((~fresh).sum())
            offsets = offsets[fresh]
            if not len(offsets):
                return
        self.records += len(offsets)
        if self.first < 0:
            self.first = int(offsets[0])
        self.last = int(offsets[-1])
        places = (offsets - self._start) * CELLS // self._span
        self.cells += np.bincount(places, minlength=CELLS)
