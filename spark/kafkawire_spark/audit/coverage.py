"""Coverage of one partition: the state of every offset by the reports of all runs. Pure.

Offsets are split into adjacent *stretches*: `rows` (each offset has a row or a dead letter), `gap`
(none has, for one reason), `cut off` (the run report's list of gaps is truncated, with only the
number of offsets per reason) and `uncovered` (no run has read them).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kafkawire.reading.model.source import Account
from kafkawire_spark.audit.islands import Longs
from kafkawire_spark.pipeline.jobs.runs import Share

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
        """Position of the first offset."""
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
