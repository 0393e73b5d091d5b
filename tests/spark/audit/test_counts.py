"""The source's counts compared with a table's rows: the arithmetic, against a model that checks
every offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.catalog import Bounds, Counted
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    CONTROL,
    DAMAGED,
    LOST,
    Account,
    PartitionRange,
)
from kafkawire_spark.audit.continuity import Continuity
from kafkawire_spark.audit.counts import ComparedCounts, Stretches, compare, stretches, without_row
from kafkawire_spark.audit.coverage import Coverage, between, coverage, islands
from tests.spark.audit.test_audit import ROW, account

RECORD = (ROW, CONTROL, ABORTED)
"""Fates of offsets that have a record in a segment."""


@dataclass
class Partition:
    """Offsets 0.. with these fates, in segments that end at `cuts`; those in `rewritten` were
    cleaned, and have lost the offsets in `cleaned`. The source begins at `start`."""

    fates: list[str]
    cuts: list[int]
    rewritten: set[int] = field(default_factory=set)
    cleaned: set[int] = field(default_factory=set)
    start: int = 0

    @property
    def end(self) -> int:
        """The end of what is in segments."""
        return self.cuts[-1] if self.cuts else 0

    def records(self, base: int, end: int) -> int:
        return sum(self.fates[at] in RECORD and at not in self.cleaned for at in range(base, end))

    def counted(self) -> Counted:
        """Counts like SourceCatalog.count_segments: a segment that contains the log start is only
        partially valid."""
        rows = []
        for number, (base, end) in enumerate(pairwise([0, *self.cuts])):
            if base < end and end > self.start:
                whole = base >= self.start
                records = self.records(base, end) if whole else -1
                rows.append((max(base, self.start), end, records, int(number in self.rewritten)))
        return Counted(*np.array(rows, np.int64).reshape(-1, 4).T)

    def cut(self, base: int, end: int, tail: int) -> Stretches:
        """The segments of a table that has read [base, end); what is open is read."""
        bounds = Bounds(self.start, self.end, max(self.end, tail))
        made = stretches(base, end, bounds, self.counted())
        for at in made.open():
            low, high = made.range(at)
            found = Account(PartitionRange("t", 0, low, high))
            for offset in range(low, high):
                fate = COMPACTED if offset in self.cleaned else self.fates[offset]
                if fate == ROW:
                    found.rows += 1
                else:
                    found.add_gap(offset, offset + 1, fate)
            made.store_count(at, found)
        return made


def held(made: Stretches, rows: list[int], known: Coverage) -> ComparedCounts:
    """Rows counted like the audit counts them."""
    found = islands(np.zeros(len(rows), np.int64), np.array(sorted(rows), np.int64))
    walk = Continuity(known, made.boundaries)
    walk.add_islands(found.base, found.end)
    return compare(made, np.array(walk.finish().counts, np.int64), known)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    fates = draw(
        st.lists(st.sampled_from([ROW, ROW, ROW, CONTROL, ABORTED, COMPACTED]), min_size=1,
                 max_size=30)
    )  # fmt: skip
    places = st.lists(st.integers(0, len(fates)), max_size=5)
    cuts = sorted(draw(places))
    rewritten = draw(st.sets(st.integers(0, 4)))
    inside = [
        at
        for number, (base, end) in enumerate(pairwise([0, *cuts]))
        for at in range(base, end)
        if number in rewritten
    ]
    cleaned = draw(st.sets(st.sampled_from(inside))) if inside else set()
    return Partition(fates, cuts, rewritten, cleaned, draw(st.integers(0, len(fates))))


@given(partitions(), st.data(), st.integers(0, 4))
def test_complete_table_matches_despite_later_losses_of_source(
    source: Partition, data: st.DataObject, listed: int
) -> None:
    size = len(source.fates)
    base, end = sorted(data.draw(st.lists(st.integers(0, size), min_size=2, max_size=2)))
    if base == end:
        return
    middle = data.draw(st.integers(base, end))
    ranges = (base, middle), (middle, end)
    accounts = [account(low, source.fates[low:high], listed) for low, high in ranges]
    rows = [at for at in range(base, end) if source.fates[at] == ROW]
    made = source.cut(base, end, size)
    assert (made.boundaries[0], made.boundaries[-1]) == (base, end)
    assert (np.diff(made.boundaries) > 0).all()
    for at, records in enumerate(made.records.tolist()):
        low, high = made.range(at)
        assert (records < 0) == (at in made.whys) == (high <= source.start)
        assert records < 0 or records == source.records(low, high)
    found = held(made, rows, coverage(accounts))
    assert found.differences == []
    gone = {at for at in source.cleaned if source.fates[at] in RECORD}
    lost = len(gone & set(range(max(base, source.start), end)))
    assert found.cleaned <= lost
    if listed >= 30:
        assert found.cleaned == lost


@given(partitions(), st.data())
def test_row_removed_with_its_account_changes_count(source: Partition, data: st.DataObject) -> None:
    source.cleaned, source.rewritten = set(), set()
    size = len(source.fates)
    victims = [at for at in range(source.start, size) if source.fates[at] == ROW]
    if not victims:
        return
    victim = data.draw(st.sampled_from(victims))
    altered = list(source.fates)
    altered[victim] = data.draw(st.sampled_from([COMPACTED, LOST]))
    rows = [at for at, fate in enumerate(altered) if fate == ROW]
    found = held(source.cut(0, size, size), rows, coverage([account(0, altered)]))
    (difference,) = found.differences
    assert difference.range.base <= victim < difference.range.end
    assert difference.short
    assert difference.records - difference.most == 1


@given(partitions(), st.data())
def test_forged_row_changes_count(source: Partition, data: st.DataObject) -> None:
    source.cleaned, source.rewritten = set(), set()
    size = source.end
    forged = [at for at in range(source.start, size) if source.fates[at] == COMPACTED]
    if not forged:
        return
    altered = list(source.fates[:size])
    victim = data.draw(st.sampled_from(forged))
    altered[victim] = ROW
    made = source.cut(0, size, size)
    rows = [at for at, fate in enumerate(altered) if fate == ROW]
    found = held(made, rows, coverage([account(0, altered)]))
    whole = [at for at in range(len(made.records)) if made.cleanable[at] == 0]
    inside = any(made.range(at).base <= victim < made.range(at).end for at in whole)
    assert [each.short for each in found.differences] == [False] * inside
    assert found.cleaned == (not inside)


def test_several_segments_are_compared_together() -> None:
    """The account lists one gap of many: each of two segments may have all other markers."""
    fates = [ROW, CONTROL] * 20
    source = Partition(fates, [20, 40])
    made = source.cut(0, 40, 40)
    altered = [*fates[:36], COMPACTED, CONTROL, ROW, CONTROL]
    rows = [at for at, fate in enumerate(altered) if fate == ROW]
    found = held(made, rows, coverage([account(0, altered, listed=1)]))
    (difference,) = found.differences
    assert difference.at == -1
    assert difference.range == (0, 40)
    assert (difference.records, difference.most) == (40, 39)
    whole = [at for at, fate in enumerate(fates) if fate == ROW]
    found = held(made, whole, coverage([account(0, fates, listed=1)]))
    assert found == ComparedCounts([], 0, 20)


def test_damaged_offsets_may_or_may_not_be_records() -> None:
    fates = [ROW, DAMAGED, DAMAGED, COMPACTED, CONTROL, ROW]
    boundaries = np.array([0, 2, 6])
    least, most = without_row(coverage([account(0, fates)]), boundaries)
    assert (least.tolist(), most.tolist()) == ([0, 1], [1, 2])
    least, most = without_row(coverage([account(0, fates, listed=0)]), boundaries)
    assert (least.tolist(), most.tolist()) == ([0, 0], [2, 3])


def test_table_may_begin_or_end_within_segment() -> None:
    source = Partition([ROW] * 40, [20, 40])
    made = stretches(5, 30, Bounds(0, 40, 40), source.counted())
    assert made.boundaries.tolist() == [5, 20, 30]
    assert made.records.tolist() == [-1, -1]
    assert made.open() == [0, 1]


def test_cleaned_segment_does_not_hide_row_missing_elsewhere() -> None:
    """The first segment has lost ten records, of the second one is missing in the table."""
    fates = [ROW] * 20 + [ROW, CONTROL] * 10
    source = Partition(fates, [20, 30, 40], {0}, set(range(10)))
    altered = [*fates[:36], COMPACTED, *fates[37:]]
    rows = [at for at, fate in enumerate(altered) if fate == ROW]
    found = held(source.cut(0, 40, 40), rows, coverage([account(0, altered, listed=0)]))
    (difference,) = found.differences
    assert (difference.at, difference.range, found.cleaned) == (-1, (0, 40), 10)
    assert difference.records - difference.most == 1


def test_undecidable_counts_have_a_reason() -> None:
    source = Partition([ROW] * 40, [10, 20, 30], start=5)
    made = stretches(0, 40, Bounds(5, 30, 35), source.counted())
    assert made.boundaries.tolist() == [0, 5, 10, 20, 30, 35, 40]
    assert made.records.tolist() == [-1, -1, 10, 10, -1, -1]
    assert made.whys == {
        0: "the source has deleted what is below 5", 5: "the source ends at 35",
    }  # fmt: skip
    assert made.open() == [1, 4]
    damaged, lost = Account(PartitionRange("t", 0, 5, 10)), Account(PartitionRange("t", 0, 30, 35))
    damaged.add_gap(5, 8, DAMAGED)
    lost.add_gap(30, 35, LOST)
    made.store_count(1, damaged)
    made.store_count(4, lost)
    assert "damaged there (3 offsets)" in made.whys[1]
    assert "nothing of the source" in made.whys[4]
    assert made.merge_all().records.tolist() == [-1]
    assert made.merge_all().whys == {0: made.whys[0]}


def test_damage_of_source_does_not_hide_forged_row() -> None:
    """A difference is confirmed by reading, whose damaged part counts for the table."""
    source = Partition([ROW] * 10, [10])
    altered = [ROW] * 9 + [COMPACTED]
    found = held(source.cut(0, 10, 10), list(range(9)), coverage([account(0, altered)]))
    (short,) = found.differences
    read = Account(PartitionRange("t", 0, 0, 10), rows=10)
    assert short.holds(read)
    read = Account(PartitionRange("t", 0, 0, 10), rows=9)
    read.add_gap(3, 4, DAMAGED)
    assert not short.holds(read)
    over = short._replace(records=8, least=9, most=9)
    assert not over.holds(read)
    read = Account(PartitionRange("t", 0, 0, 10), rows=7)
    read.add_gap(3, 4, DAMAGED)
    assert over.holds(read)


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20), min_size=1))
def test_between_counts_offsets(rows: set[int], edges: set[int]) -> None:
    boundaries = np.array(sorted(edges), np.int64)
    found = islands(np.zeros(len(rows), np.int64), np.array(sorted(rows), np.int64))
    expected = [sum(low <= at < high for at in rows) for low, high in pairwise(sorted(edges))]
    assert between(found.base, found.end, boundaries).tolist() == expected


@pytest.mark.parametrize("portion", [1, 2, 100])
def test_duplicate_rows_count_once(portion: int) -> None:
    base, end = np.array([0, 0, 3, 8]), np.array([5, 5, 6, 9])
    walk = Continuity(None, np.array([0, 4, 10]))
    for at in range(0, 4, portion):
        walk.add_islands(base[at : at + portion], end[at : at + portion])
    assert walk.finish().counts == [4, 3]
