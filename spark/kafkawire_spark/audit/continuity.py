"""Compare one partition's islands with its coverage: duplicate, missing and explained offsets.
Pure.

Islands arrive sorted by base, in portions of any size. Only sums and the first findings of each
kind are kept, so the millions of islands of a compacted topic take no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from kafkawire_spark.audit.coverage import ROWS, UNCOVERED, Coverage, CoveredRange, Longs, between

FINDINGS_KEPT = 100
"""Ranges listed per kind of finding and partition: enough to read them again, few enough to
print."""

UNEXPLAINED, DUPLICATE, UNEXPECTED, OUTSIDE = "unexplained", "duplicate", "unexpected", "outside"
"""Kinds of findings: no row and no reason; a row more than once; a row although a run report has
none; a row that no run has read, or that does not belong into its file."""


class Range(NamedTuple):
    """Offsets [base, end)."""

    base: int
    end: int


@dataclass(slots=True)
class Found:
    """Ranges of one kind: number of offsets, number of ranges, and the first of these."""

    offsets: int = 0
    ranges: int = 0
    first: list[Range] = field(default_factory=list)

    def add(self, base: Longs, end: Longs) -> None:
        """Add ranges in offset order."""
        self.offsets += int((end - base).sum())
        self.ranges += len(base)
        for at in range(min(len(base), FINDINGS_KEPT - len(self.first))):
            self.first.append(Range(int(base[at]), int(end[at])))

    def add_within(self, offsets: int, base: int, end: int) -> None:
        """Add a number of offsets, at unknown positions in a range."""
        self.offsets += offsets
        self.ranges += 1
        if len(self.first) < FINDINGS_KEPT:
            self.first.append(Range(base, end))


@dataclass(slots=True)
class Outcome:
    """Result of the audit of one partition. `gaps`: explained offsets without a row, by reason;
    `found`: problems by kind; `rows` with duplicates; `first`, `last`: -1 without any row.
    `counts`: number of offsets with a row between adjacent borders."""

    rows: int = 0
    first: int = -1
    last: int = -1
    gaps: dict[str, int] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)

    def finding(self, kind: str) -> Found:
        return self.found.setdefault(kind, Found())


class Continuity:
    """Pass all islands of one partition to `add_islands`, then call `finish`. `coverage`: None if
    there are no run reports, so that every gap between the first row and the last is unexplained.
    `boundaries`: ascending offsets between which offsets with a row are counted, each once."""

    def __init__(self, coverage: Coverage | None, boundaries: Longs | None = None) -> None:
        self._coverage = coverage
        self._outcome = Outcome()
        self._count_borders = np.empty(0, np.int64) if boundaries is None else boundaries
        self._counts = np.zeros(max(0, len(self._count_borders) - 1), np.int64)
        self._reach: int | None = None  # after the last offset seen
        if coverage is not None and coverage.stretches:
            self._reach = coverage.base
            self._boundaries = coverage.boundaries()
            self._without = np.zeros(len(coverage.stretches), np.int64)  # offsets without a row
            self._full = np.array([s.kind in (ROWS, UNCOVERED) for s in coverage.stretches])

    def add_islands(self, base: Longs, end: Longs) -> None:
        """Add islands [base[i], end[i]), sorted by base across calls."""
        if not len(base):
            return
        outcome = self._outcome
        if outcome.first < 0:
            outcome.first = int(base[0])
        outcome.rows += int((end - base).sum())
        outcome.last = max(outcome.last, int(end.max()) - 1)
        base, end = self._take_outside(base, end)
        if not len(base):
            return
        start = int(base[0]) if self._reach is None else self._reach
        reach = np.maximum.accumulate(np.concatenate(([start], end)))
        self._reach = int(reach[-1])
        before = reach[:-1]
        again = base < before
        outcome.finding(DUPLICATE).add(base[again], np.minimum(end, before)[again])
        gap = base > before
        self._miss(before[gap], base[gap])
        if len(self._counts):
            fresh = np.maximum(base, before)
            some = fresh < end
            self._counts += between(fresh[some], end[some], self._count_borders)

    def finish(self) -> Outcome:
        """Return the findings, including the end of the coverage."""
        if self._coverage is not None and self._reach is not None:
            if self._reach < self._coverage.end:
                self._miss(np.array([self._reach]), np.array([self._coverage.end]))
            for stretch, missed in zip(self._coverage.stretches, self._without, strict=True):
                self._settle(stretch, int(missed))
        outcome = self._outcome
        outcome.found = {kind: found for kind, found in outcome.found.items() if found.offsets}
        outcome.counts = self._counts.tolist()
        return outcome

    def _take_outside(self, base: Longs, end: Longs) -> tuple[Longs, Longs]:
        """Report islands before or after the coverage as findings; return the rest."""
        if self._coverage is None:
            return base, end
        found = self._outcome.finding(OUTSIDE)
        if not self._coverage.stretches:
            found.add(base, end)
            return base[:0], end[:0]
        first, last = self._coverage.base, self._coverage.end
        below, above = base < first, end > last
        found.add(base[below], np.minimum(end, first)[below])
        found.add(np.maximum(base, last)[above], end[above])
        base, end = np.maximum(base, first), np.minimum(end, last)
        inside = base < end
        return base[inside], end[inside]

    def _miss(self, base: Longs, end: Longs) -> None:
        """Classify offsets [base[i], end[i]) without a row by the coverage."""
        if not len(base):
            return
        if self._coverage is None:
            self._outcome.finding(UNEXPLAINED).add(base, end)
            return
        boundaries = self._boundaries
        low = np.searchsorted(boundaries, base, "right") - 1
        pieces = np.searchsorted(boundaries, end - 1, "right") - low
        nth = np.arange(int(pieces.sum())) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        at = np.repeat(low, pieces) + nth
        base = np.maximum(np.repeat(base, pieces), boundaries[at])
        end = np.minimum(np.repeat(end, pieces), boundaries[at + 1])
        np.add.at(self._without, at, end - base)
        full = self._full[at]
        self._outcome.finding(UNEXPLAINED).add(base[full], end[full])

    def _settle(self, stretch: CoveredRange, missed: int) -> None:
        """Check that the number of missing offsets in the stretch equals that of the run report."""
        base, end = stretch.base, stretch.end
        finding = self._outcome.finding
        if stretch.kind == UNCOVERED and missed < end - base:
            finding(OUTSIDE).add_within(end - base - missed, base, end)
        if stretch.kind in (ROWS, UNCOVERED):
            return
        said = sum(stretch.counts.values())
        for reason, count in _assign_reasons(stretch.counts, missed):
            self._outcome.gaps[reason] = self._outcome.gaps.get(reason, 0) + count
        if missed > said:
            finding(UNEXPLAINED).add_within(missed - said, base, end)
        elif missed < said:
            finding(UNEXPECTED).add_within(said - missed, base, end)


def _assign_reasons(counts: dict[str, int], missed: int) -> Iterator[tuple[str, int]]:
    """Return the reasons of `missed` offsets, each at most with its count."""
    for reason in sorted(counts):
        count = min(counts[reason], missed)
        if count:
            yield reason, count
        missed -= count
