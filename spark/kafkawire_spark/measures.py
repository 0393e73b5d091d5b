"""Measures of the reports: inequality, classes of lateness, widths of time, continuity of a range.

Pure. The first are computed on aggregates, continuity in Spark tasks, one batch of offsets at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kafkawire.reading.model.source import PartitionRange

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

SKEW_MS = HOUR_MS
"""Maximum clock skew; records beyond it are in the future."""

WIDTHS_MS = (
    100, SECOND_MS, 5 * SECOND_MS, 10 * SECOND_MS, 30 * SECOND_MS,
    MINUTE_MS, 5 * MINUTE_MS, 10 * MINUTE_MS, 30 * MINUTE_MS,
    HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS, 28 * DAY_MS, 364 * DAY_MS,
)  # fmt: skip
"""Widths that are easy to read off an axis, each a multiple of the previous one."""

BUCKETS = 240
"""Maximum number of buckets of a range: four pixels each in a plot."""

LATE_EDGES_MS = (
    0, 10, 100, SECOND_MS, 10 * SECOND_MS, MINUTE_MS, 10 * MINUTE_MS,
    HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS,
)  # fmt: skip
"""Upper edges of the classes of lateness; the first is "in order", and one more follows the
last."""


def width_for(span_ms: int, buckets: int = BUCKETS) -> int:
    """Return the smallest width with at most `buckets` buckets in a range of `span_ms`."""
    return next((width for width in WIDTHS_MS if span_ms <= width * buckets), WIDTHS_MS[-1])


def lateness_labels() -> list[str]:
    """Return a label for each class of lateness, in order: one more than there are edges."""
    edges = [duration(edge) for edge in LATE_EDGES_MS]
    return ["in order", *(f"to {edge}" for edge in edges[1:]), f"over {edges[-1]}"]


def quantile_class(counts: Sequence[int], share: float) -> int:
    """Return the first class that reaches at least `share` of all counted items; 0 for none."""
    wanted, seen = share * sum(counts), 0
    for index, count in enumerate(counts):
        seen += count
        if seen >= wanted and seen:
            return index
    return 0


def gini(values: Iterable[tuple[float, int]]) -> float:
    """Return the Gini coefficient of values given as (value, number of items): 0 if all are equal,
    near 1 if one has all. 0 without items. Half the relative mean difference (Gini 1912)."""
    below_count = 0
    below_sum = 0.0
    area = 0.0
    for value, times in sorted(values):
        # The Lorenz curve is linear for equal values: its area consists of trapezoids.
        area += times * (2 * below_sum + value * times)
        below_count += times
        below_sum += value * times
    if below_count == 0 or below_sum == 0:
        return 0.0
    return 1 - area / (below_count * below_sum)


def lorenz(values: Iterable[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Return points of the concentration curve, largest first: share of the items, share of the
    sum."""
    falling = sorted(values, reverse=True)
    things = sum(times for _, times in falling) or 1
    total = sum(value * times for value, times in falling) or 1
    xs, ys, count, amount = [0.0], [0.0], 0, 0.0
    for value, times in falling:
        count += times
        amount += value * times
        xs.append(count / things)
        ys.append(amount / total)
    return xs, ys


def largest_share(values: Sequence[float]) -> float:
    """Return the share of the largest in the sum; 0 without items."""
    total = sum(values)
    return max(values) / total if total else 0.0


def duration(ms: float) -> str:
    """Format milliseconds: 250 ms, 10 s, 5 min, 6 h, 7 d."""
    for width, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s")):
        if ms >= width:
            return f"{ms / width:.3g} {unit}"
    return f"{ms:.3g} ms"


def size(count: float) -> str:
    """Format bytes: 512 B, 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


def number(count: float) -> str:
    """Format a count: 950, 12.3k, 4.56M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= limit:
            divisor = 1e3 if unit == "k" else limit
            return f"{count / divisor:.3g}{unit}"
    return f"{count:g}"


def several(records: int) -> str:
    """Format a number of records."""
    return "1 record" if records == 1 else f"{number(records)} records"


def text_of(key: bytes, length: int) -> str:
    """Format a key or its beginning: as text if it is printable UTF-8, else in hexadecimal; an
    empty one in words."""
    if not length:
        return "(empty)"
    text = key.decode("utf-8", "surrogateescape")  # invalid UTF-8 is not printable then
    if text[:KEY_SHOWN].isprintable():
        return text[:KEY_SHOWN] + ("…" if len(text) > KEY_SHOWN or length > len(key) else "")
    return f"0x{key[:KEY_SHOWN].hex()}" + ("…" if length > KEY_SHOWN else "")


KEY_SHOWN = 48
"""Maximum bytes or characters of a key in a table."""


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

    def add(self, offsets: Any) -> None:
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
