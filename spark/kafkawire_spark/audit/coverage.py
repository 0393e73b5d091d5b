"""Coverage of one partition: the state of every offset by the reports of all runs. Pure.

Offsets are split into adjacent *stretches*: `rows` (each offset has a row or a dead letter), `gap`
(none has, for one reason), `cut off` (the run report's list of gaps is truncated, with only the
number of offsets per reason) and `uncovered` (no run has read them).

*Islands* are runs of consecutive offsets of one partition. A file that was written in order has one
island per partition and gap, whatever the number of rows, so the results of tasks are small. Arrays
are numpy arrays; all arrays of an `Islands` have the same length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafkawire.reading.model.source import Account
from kafkawire_spark.pipeline.jobs.state import Share

Longs = NDArray[np.int64]


class Islands(NamedTuple):
    """Offsets [base[i], end[i]) of partition[i], in the order they were read."""

    partition: Longs
    base: Longs
    end: Longs


NONE = Islands(*(np.empty(0, np.int64) for _ in range(3)))


def islands(partition: Longs, offset: Longs) -> Islands:
    """Return the islands of rows (partition[i], offset[i]). Rows that are not ascending are sorted
    first, which gives fewer islands. Every duplicate of an offset begins an island, so that none is
    lost."""
    if not len(offset):
        return NONE
    falls = (partition[1:] == partition[:-1]) & (offset[1:] < offset[:-1])
    if falls.any() or (partition[1:] < partition[:-1]).any():
        order = np.lexsort((offset, partition))
        partition, offset = partition[order], offset[order]
    goes_on = (partition[1:] == partition[:-1]) & (offset[1:] == offset[:-1] + 1)
    first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    last = np.append(first[1:], len(offset)) - 1
    return Islands(partition[first], offset[first], offset[last] + 1)


def outside(found: Islands, base: int, end: int) -> Islands:
    """Return the parts of islands below `base` and from `end` on."""
    below = Islands(found.partition, found.base, np.minimum(found.end, base))
    above = Islands(found.partition, np.maximum(found.base, end), found.end)
    return join([keep(below, below.base < below.end), keep(above, above.base < above.end)])


def keep(found: Islands, wanted: NDArray[np.bool_]) -> Islands:
    return Islands(*(column[wanted] for column in found))


def join(many: list[Islands]) -> Islands:
    return Islands(*(np.concatenate(columns) for columns in zip(*many, strict=True)))


def between(base: Longs, end: Longs, boundaries: Longs) -> Longs:
    """Count how many offsets of the ascending, disjoint islands [base[i], end[i]) are in each
    [borders[i], borders[i + 1])."""
    sums = np.concatenate(([0], np.cumsum(end - base)))
    begun = np.searchsorted(base, boundaries, "left")  # islands that begin below a border
    below = sums[begun]
    some = begun > 0
    below[some] -= np.maximum(0, end[begun[some] - 1] - boundaries[some])
    return np.diff(below).astype(np.int64)


ROWS, GAP, CUT_OFF, UNCOVERED = "rows", "gap", "cut off", "uncovered"


@dataclass(frozen=True, slots=True)
class CoveredRange:
    """Offsets [base, end). `counts`: offsets without a row by reason, for `gap` and `cut off`."""

    base: int
    end: int
    kind: str
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Stretches from the first offset that a run has read to the last, and faults of the run
    reports. Empty if no run has read the partition, or there are no run reports."""

    stretches: tuple[CoveredRange, ...] = ()
    twice: tuple[tuple[int, int], ...] = ()  # offsets that two runs have read
    unbalanced: tuple[tuple[int, int], ...] = ()  # ranges with inconsistent reports

    @property
    def base(self) -> int:
        return self.stretches[0].base

    @property
    def end(self) -> int:
        """Position after the last offset."""
        return self.stretches[-1].end

    def boundaries(self) -> Longs:
        """Where each stretch begins, and where the last one ends."""
        return np.array([stretch.base for stretch in self.stretches] + [self.end], np.int64)


def coverage(accounts: Iterable[Account | Share]) -> Coverage:
    """Build the coverage from one partition's run reports, in any order."""
    stretches: list[CoveredRange] = []
    twice: list[tuple[int, int]] = []
    unbalanced: list[tuple[int, int]] = []
    at: int | None = None
    for account in sorted(accounts, key=lambda account: account.range[2:]):
        _, _, base, end = account.range
        if account.missing:
            unbalanced.append((base, end))
        if at is not None and base < at:
            twice.append((base, min(end, at)))
            continue
        if end <= base:
            continue
        if at is not None and base > at:
            stretches.append(CoveredRange(at, base, UNCOVERED))
        stretches.extend(_stretches(account))
        at = end
    return Coverage(tuple(stretches), tuple(twice), tuple(unbalanced))


def _stretches(account: Account | Share) -> Iterable[CoveredRange]:
    """Return listed gaps with the rows between them, then the range of the truncated rest."""
    _, _, at, end = account.range
    left = dict(account.counts)
    for gap in account.gaps:
        if at < gap.base:
            yield CoveredRange(at, gap.base, ROWS)
        yield CoveredRange(gap.base, gap.end, GAP, {gap.reason: gap.end - gap.base})
        left[gap.reason] = left.get(gap.reason, 0) - (gap.end - gap.base)
        at = gap.end
    if at < end:
        unlisted = {reason: count for reason, count in left.items() if count > 0}
        yield CoveredRange(at, end, CUT_OFF if unlisted else ROWS, unlisted)
