"""The source of an audited partition: its bounds, and gaps that are read again."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.reading.model.source import COMPACTED, CONTROL, DAMAGED, Account, PartitionRange
from kafkawire_spark.audit.against import BEYOND, hold_against
from kafkawire_spark.audit.continuity import UNEXPLAINED, Found
from kafkawire_spark.audit.verdict import MISSING, PartitionReport, SourceState
from tests.spark.audit.test_audit import ROW, examine


def source(fates: list[str]):  # type: ignore[no-untyped-def]
    """Read ranges of a partition whose offset n has fates[n]."""

    def read(wanted: PartitionRange) -> Account:
        account = Account(wanted)
        for offset in range(wanted.base, wanted.end):
            if fates[offset] == ROW:
                account.rows += 1
            else:
                account.add_gap(offset, offset + 1, fates[offset])
        return account

    return read


def report_of(rows: list[int]) -> PartitionReport:
    outcome = examine(rows, None)
    return PartitionReport(
        "t", 0, outcome.first, outcome.last, -1, outcome.rows, 0, outcome.gaps, outcome.found
    )


@given(
    st.lists(st.sampled_from([ROW, ROW, COMPACTED, CONTROL]), min_size=1, max_size=20),
    st.data(),
    st.booleans(),
)
def test_gaps_are_explained_and_missing_rows_are_counted(
    fates: list[str], data: st.DataObject, listed: bool
) -> None:
    there = [offset for offset, fate in enumerate(fates) if fate == ROW]
    rows = data.draw(
        st.lists(st.sampled_from(there), unique=True, min_size=1) if there else st.just([])
    )
    if not rows:
        return
    each = report_of(rows)
    if not listed and UNEXPLAINED in each.found:
        del each.found[UNEXPLAINED].first[1:]
    hold_against(each, SourceState(0, len(fates)), source(fates))
    span = range(min(rows), max(rows) + 1)
    expected = Counter(fates[offset] for offset in span if fates[offset] != ROW)
    lost = sum(fates[offset] == ROW for offset in span) - len(rows)
    assert each.found == {}
    assert each.gaps == dict(expected)
    assert [(p.kind, p.offsets) for p in each.problems] == ([(MISSING, lost)] if lost else [])
    assert each.clean == (lost == 0)


def test_gap_deleted_at_source_remains_unexplained() -> None:
    each = report_of([0, 3, 4, 8])
    hold_against(each, SourceState(5, 9), source([COMPACTED] * 9))
    assert each.gaps == {COMPACTED: 3}
    assert each.found[UNEXPLAINED] == Found(2, 1, [(1, 3)])  # type: ignore[list-item]
    assert any("below 5" in note for note in each.notes)


def test_damage_at_source_does_not_explain_gap() -> None:
    each = report_of([0, 3])
    hold_against(each, SourceState(0, 4), source([ROW, COMPACTED, DAMAGED, ROW]))
    assert each.gaps == {COMPACTED: 1}
    assert each.found[UNEXPLAINED].offsets == 1
    assert not each.clean


def test_rows_impossible_for_source_are_a_problem() -> None:
    each = report_of([0, 1, 2])
    each.next = 3
    hold_against(each, SourceState(0, 2), source([ROW] * 3))
    assert [problem.kind for problem in each.problems] == [BEYOND]
    each = report_of([0, 1, 2])
    hold_against(each, SourceState(0, 2), source([ROW] * 3), whole=False)  # segments lag behind
    assert each.clean
    assert "--server asks a broker" in each.notes[0]
    each = report_of([0, 1, 2])
    each.next = 3
    hold_against(each, SourceState(0, 7), source([ROW] * 7))
    assert each.clean
    assert each.notes == ["the source has 4 newer offsets"]
