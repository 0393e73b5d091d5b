"""The pure half of `pipeline audit`: rows to islands, islands compared with accounts and with a
model that checks every offset.

Covers: kafkawire_spark.audit.listing, kafkawire_spark.audit.judging.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.model.source import ABORTED, COMPACTED, CONTROL, Account, PartitionRange
from kafkawire_spark.audit.continuity import (
    DUPLICATE,
    OUTSIDE,
    UNEXPECTED,
    UNEXPLAINED,
    Continuity,
    Outcome,
    Range,
)
from kafkawire_spark.audit.coverage import CUT_OFF, UNCOVERED, Coverage, coverage, islands, outside

ROW = "row"


def account(base: int, fates: list[str], listed: int = 1000) -> Account:
    """An account of offsets from `base` on: a row or the reason for none; only `listed` gaps are
    named."""
    made = Account(PartitionRange("t", 0, base, base + len(fates)))
    for at, fate in enumerate(fates, base):
        if fate == ROW:
            made.rows += 1
        else:
            made.add_gap(at, at + 1, fate)
    del made.gaps[listed:]
    return made


def examine(rows: list[int], known: Coverage | None, portion: int = 1000) -> Outcome:
    """Examine like the audit: islands in the order of their bases, in portions."""
    found = islands(np.zeros(len(rows), np.int64), np.array(rows, np.int64))
    order = np.argsort(found.base, kind="stable")
    walk = Continuity(known)
    for at in range(0, len(order), portion):
        part = order[at : at + portion]
        walk.add_islands(found.base[part], found.end[part])
    return walk.finish()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12))))
def test_islands_cover_exactly_the_rows(rows: list[tuple[int, int]]) -> None:
    columns = np.array(rows, np.int64).reshape(-1, 2)
    found = islands(columns[:, 0], columns[:, 1])
    spread = [
        (int(p), offset) for p, base, end in zip(*found, strict=True) for offset in range(base, end)
    ]
    assert sorted(spread) == sorted(rows)
    whole = list(zip(found.partition, found.end, strict=True))
    begins = list(zip(found.partition, found.base, strict=True))
    once = not any(count > 1 for count in Counter(rows).values())
    assert not once or not set(whole) & set(begins)  # maximal


def test_ordered_rows_give_one_island_for_each_partition() -> None:
    found = islands(np.repeat([0, 1], 1000), np.tile(np.arange(5, 1005), 2))
    assert [list(column) for column in found] == [[0, 1], [5, 5], [1005, 1005]]


@given(st.sets(st.integers(0, 20)), st.integers(0, 20), st.integers(0, 20))
def test_rows_outside_files_range_are_reported(rows: set[int], a: int, b: int) -> None:
    base, end = min(a, b), max(a, b)
    found = outside(islands(np.zeros(len(rows), np.int64), np.array(sorted(rows))), base, end)
    spread = {at for _, low, high in zip(*found, strict=True) for at in range(low, high)}
    assert spread == {at for at in rows if not base <= at < end}


FATES = st.lists(st.sampled_from([ROW, ROW, ROW, COMPACTED, ABORTED, CONTROL]), max_size=12)


@given(st.lists(FATES, min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 5))
def test_table_matching_its_accounts_is_clean(
    runs: list[list[str]], listed: int, portion: int
) -> None:
    at, accounts, rows, gaps = 7, [], [], Counter[str]()
    for fates in runs:
        accounts.append(account(at, fates, listed))
        rows += [at + i for i, fate in enumerate(fates) if fate == ROW]
        gaps.update(fate for fate in fates if fate != ROW)
        at += len(fates)
    outcome = examine(rows, coverage(accounts), portion)
    assert outcome.found == {}
    assert outcome.gaps == dict(gaps)
    assert outcome.rows == len(rows)
    assert (outcome.first, outcome.last) == ((rows[0], rows[-1]) if rows else (-1, -1))


@given(
    FATES.filter(lambda fates: ROW in fates),
    st.data(),
    st.integers(0, 3),
    st.integers(1, 4),
)
def test_every_change_of_table_is_found(
    fates: list[str], data: st.DataObject, listed: int, portion: int
) -> None:
    rows = [5 + i for i, fate in enumerate(fates) if fate == ROW]
    known = coverage([account(5, fates, listed)])
    kind = data.draw(st.sampled_from([UNEXPLAINED, DUPLICATE, OUTSIDE, UNEXPECTED]))
    victim = data.draw(st.sampled_from(rows))
    if kind == UNEXPLAINED:
        rows.remove(victim)
    elif kind == DUPLICATE:
        rows.append(victim)
    elif kind == OUTSIDE:
        rows.append(data.draw(st.sampled_from([1, 5 + len(fates)])))
    else:
        gaps = [5 + i for i, fate in enumerate(fates) if fate != ROW]
        rows.append(data.draw(st.sampled_from(gaps or [5 + len(fates)])))
        kind = kind if gaps else OUTSIDE
    outcome = examine(rows, known, portion)
    assert set(outcome.found) == {kind}
    assert outcome.found[kind].offsets == 1


@given(st.lists(st.integers(0, 15), min_size=1), st.integers(1, 4))
def test_without_accounts_gaps_are_unexplained_and_counted(rows: list[int], portion: int) -> None:
    outcome = examine(rows, None, portion)
    whole = set(range(min(rows), max(rows) + 1))
    kinds = {kind: found.offsets for kind, found in outcome.found.items()}
    missing = len(whole - set(rows))
    again = len(rows) - len(set(rows))
    expected = {UNEXPLAINED: missing, DUPLICATE: again}
    assert kinds == {kind: count for kind, count in expected.items() if count}


def test_offsets_read_twice_or_never_are_reported() -> None:
    known = coverage([account(10, [ROW] * 5), account(20, [ROW] * 5), account(12, [ROW] * 2)])
    assert known.twice == ((12, 14),)
    assert [s.kind for s in known.stretches] == ["rows", UNCOVERED, "rows"]
    outcome = examine([*range(10, 15), 17, *range(20, 25)], known)
    assert outcome.found[OUTSIDE].offsets == 1
    assert outcome.found[UNEXPLAINED].first == [Range(15, 17), Range(18, 20)]


def test_inconsistent_account_is_reported() -> None:
    made = account(0, [ROW] * 5)
    made.rows = 4
    assert coverage([made]).unbalanced == ((0, 5),)


def test_truncated_gap_list_is_checked_by_counts() -> None:
    fates = [ROW, COMPACTED] * 10 + [CONTROL]
    known = coverage([account(0, fates, listed=3)])
    assert known.stretches[-1].kind == CUT_OFF
    rows = [i for i, fate in enumerate(fates) if fate == ROW]
    assert examine(rows, known).gaps == {COMPACTED: 10, CONTROL: 1}
    assert examine([r for r in rows if r != 12], known).found[UNEXPLAINED].offsets == 1
    assert examine([*rows, 13], known).found[UNEXPECTED].offsets == 1


def test_rows_of_partition_without_run_are_outside() -> None:
    assert examine([3, 4], Coverage()).found[OUTSIDE].offsets == 2
