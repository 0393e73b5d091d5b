"""Comparison of record counts of the source with the rows of a table. Pure.

The offsets that a table has read are split into adjacent *stretches*: those of whole segments,
whose number of records is in the manifest, and the ranges before, between and after them. A
segment's count includes all its batches: a table has a row or a dead letter for each record, except
for control batches and aborted transactions, which the run reports count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkawire.reading.model.source import ABORTED, COMPACTED, CONTROL, DAMAGED, LOST, Account
from kafkawire_spark.audit.continuity import UNEXPLAINED, Range
from kafkawire_spark.audit.coverage import CUT_OFF, GAP, Coverage, CoveredRange, Longs, between

if TYPE_CHECKING:
    from kafkawire.reading.catalog import Bounds, Counted

WITHOUT_ROW = (CONTROL, ABORTED)
"""Reasons of offsets with a record in the source and no row in a table."""
PERHAPS = (DAMAGED, UNEXPLAINED)
"""Reasons of offsets that may have a record in the source."""


@dataclass(slots=True)
class Stretches:
    """Ranges [borders[i], borders[i + 1]). `records`: number in the source, -1 if unknown;
    `cleanable`: 1 if records may have been compacted away, 0 for a segment that was never
    rewritten; `whys`: why counts are unknown; `read`: counted by reading."""

    boundaries: Longs
    records: Longs
    cleanable: Longs
    whys: dict[int, str] = field(default_factory=dict)
    read: list[int] = field(default_factory=list)

    def range(self, at: int) -> Range:
        return Range(int(self.boundaries[at]), int(self.boundaries[at + 1]))

    def open(self) -> list[int]:
        """Return the stretches with an unknown count and no reason."""
        unknown: list[int] = np.flatnonzero(self.records < 0).tolist()
        return [at for at in unknown if at not in self.whys]

    def store_count(self, at: int, account: Account) -> None:
        """Record the result of reading stretch `at`."""
        if account.counts.keys() <= {*WITHOUT_ROW, COMPACTED}:
            self.records[at] = records_of(account)
            self.read.append(at)
        elif DAMAGED in account.counts:
            self.whys[at] = f"the source is damaged there ({account.counts[DAMAGED]} offsets)"
        else:
            self.whys[at] = "nothing of the source that can be read has all of them"

    def merge_all(self) -> Stretches:
        """Merge all stretches; the count is known if all are."""
        ends = self.boundaries[[0, -1]]
        unknown = np.flatnonzero(self.records < 0)
        records = -1 if len(unknown) else int(self.records.sum())
        whys = {0: self.whys[int(unknown[0])]} if len(unknown) else {}
        kind = np.array([int(self.cleanable.max(initial=0))])
        return Stretches(ends, np.array([records]), kind, whys)


def stretches(base: int, end: int, bounds: Bounds, counted: Counted) -> Stretches:
    """Split the offsets [base, end) of a partition, of which the source has those of `bounds`, into
    stretches."""
    low, high = max(base, bounds.start), min(end, bounds.end)
    bases, ends = np.maximum(counted.bases, low), np.minimum(counted.ends, high)
    there = bases < ends
    whole = there & (bases == counted.bases) & (ends == counted.ends)
    edges = [low, high] if low < high else []
    boundaries = np.unique(np.concatenate(([base, end], edges, bases[there], ends[there])))
    boundaries = boundaries.astype(np.int64)
    count = len(boundaries) - 1
    made = Stretches(boundaries, np.full(count, -1, np.int64), np.ones(count, np.int64))
    made.records[np.searchsorted(boundaries, bases[whole])] = counted.records[whole]
    made.cleanable[np.searchsorted(boundaries, bases[there])] = counted.generations[there] > 0
    for at in made.open():
        if boundaries[at + 1] <= bounds.start:
            made.whys[at] = f"the source has deleted what is below {bounds.start}"
        elif boundaries[at] >= bounds.end:
            made.whys[at] = f"the source ends at {bounds.end}"
    return made


def records_of(account: Account) -> int:
    """Return a manifest's count for a range that the table has read."""
    return account.rows + sum(account.counts.get(reason, 0) for reason in WITHOUT_ROW)


def without_row(coverage: Coverage, boundaries: Longs) -> tuple[Longs, Longs]:
    """Return minimum and maximum number of records without a row between adjacent borders; a run
    report with a truncated list of gaps has only their total."""
    least = between(*_gaps(coverage, WITHOUT_ROW), boundaries)
    most = least + between(*_gaps(coverage, PERHAPS), boundaries)
    for stretch in coverage.stretches:
        if stretch.kind == CUT_OFF and not stretch.counts.keys() <= {COMPACTED, LOST}:
            low, high = _somewhere(stretch, boundaries)
            least, most = least + low, most + high
    return least, most


def _gaps(coverage: Coverage, reasons: tuple[str, ...]) -> tuple[Longs, Longs]:
    found = [
        (each.base, each.end)
        for each in coverage.stretches
        if each.kind == GAP and not each.counts.keys().isdisjoint(reasons)
    ]
    columns = np.array(found, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _somewhere(stretch: CoveredRange, boundaries: Longs) -> tuple[Longs, Longs]:
    """Return the minimum (what does not fit elsewhere) and the maximum (what fits)."""
    inside = np.minimum(boundaries[1:], stretch.end) - np.maximum(boundaries[:-1], stretch.base)
    inside = np.maximum(inside, 0)
    surely = sum(stretch.counts.get(reason, 0) for reason in WITHOUT_ROW)
    perhaps = sum(stretch.counts.get(reason, 0) for reason in PERHAPS)
    elsewhere = stretch.end - stretch.base - inside
    return np.maximum(0, surely - elsewhere), np.minimum(inside, surely + perhaps)


class Difference(NamedTuple):
    """A range with `records` records in the source and `rows` rows and dead letters in the table,
    which accounts for `least` to `most` records. `at`: the stretch, -1 if there are several."""

    at: int
    range: Range
    records: int
    rows: int
    least: int
    most: int

    @property
    def short(self) -> bool:
        """Whether the table has fewer records."""
        return self.records > self.most

    def holds(self, account: Account) -> bool:
        """Whether the difference remains after reading the source; unreadable ranges count in the
        table's favour."""
        read = records_of(account)
        if self.short:
            return read > self.most
        return read + sum(account.counts.get(reason, 0) for reason in (DAMAGED, LOST)) < self.least


@dataclass(slots=True)
class ComparedCounts:
    """Result of the comparison. `cleaned`: records of the table that the source has lost by
    compaction since; `trusted`: records of the source without a row according to the run
    reports."""

    differences: list[Difference] = field(default_factory=list)
    cleaned: int = 0
    trusted: int = 0


def compare(made: Stretches, rows: Longs, coverage: Coverage) -> ComparedCounts:
    """Compare counts. `rows`: number of offsets of each stretch with a row or a dead letter."""
    least, most = (rows + more for more in without_row(coverage, made.boundaries))
    known = made.records >= 0
    over = np.where(known, np.maximum(0, least - made.records), 0)
    cleaned = np.where(made.cleanable > 0, over, 0)
    wrong = known & (made.records > most) | (over > cleaned)
    trusted = np.where(known, np.maximum(0, np.minimum(made.records, most) - rows), 0)
    found = ComparedCounts([], int(cleaned.sum()), int(trusted.sum()))
    for at in np.flatnonzero(wrong).tolist():
        numbers = (int(each[at]) for each in (made.records, rows, least, most))
        found.differences.append(Difference(at, made.range(at), *numbers))
    for first, last in _known_runs(known):
        if wrong[first:last].any():
            continue
        inside = slice(first, last)
        ends = made.boundaries[[first, last]]
        have, records = int(rows[inside].sum()), int((made.records + cleaned)[inside].sum())
        low, high = (have + int(each[0]) for each in without_row(coverage, ends))
        if records > high:
            span = Range(int(ends[0]), int(ends[1]))
            found.differences.append(Difference(-1, span, records, have, low, high))
    return found


def _known_runs(known: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Return adjacent stretches [first, last) with known counts; together they are more precise if
    it is unknown which of them has a control record."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], known, [0]))))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
