"""Comparison of an audited table with the source of its records: bounds, and reasons of gaps.

A gap that no run report explains is read again from the source: an offset without a record there is
explained, one with a record is a missing row. Offsets below the source's log start, or in damaged
ranges, cannot be verified. Records are then counted (kafkawire_spark.audit.counting).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING

from kafkawire.plural import count
from kafkawire.progress import Progress
from kafkawire.reading.model.source import DAMAGED, Account, PartitionRange
from kafkawire_spark.audit.continuity import DUPLICATE, UNEXPLAINED, Found, Range
from kafkawire_spark.audit.counting import Counting, accounts_of, with_records
from kafkawire_spark.audit.judging import Where
from kafkawire_spark.audit.verdict import (
    MISSING,
    AuditProblem,
    PartitionReport,
    SourceState,
    TableReport,
)

if TYPE_CHECKING:
    from kafkawire.reading.catalog import SourceCatalog

BEYOND = "beyond the source"
"""Rows beyond the source's end."""

Reread = Callable[[PartitionRange], Account]


def compare(
    report: TableReport,
    catalog: SourceCatalog,
    others: Container[str],
    counting: Counting,
    rows: Mapping[Where, Sequence[int]],
    progress: Progress,
) -> None:
    """Compare every partition with the source: bounds and gaps, then counts. `rows`: their number
    between the borders of `counting`. Raises SourceError if the source cannot be read."""
    for done, each in enumerate(report.partitions, 1):
        if each.topic in others:
            each.notes.append("the topic was deleted and created again in the source since the run")
        else:
            _compare_one(each, catalog)
        progress("partitions compared with the source", done, len(report.partitions))
    counting.compare(report.partitions, rows, progress)


def _compare_one(each: PartitionReport, catalog: SourceCatalog) -> None:
    if not each.topic:
        each.notes.append("its rows name no topic, so the source was not asked")
        return
    if each.partition >= catalog.topics.get(each.topic, 0):
        each.notes.append("the source has no such partition any more")
        return
    bounds = catalog.bounds(each.topic, each.partition)
    state = SourceState(bounds.start, bounds.end)
    whole = bool(catalog.source.bootstrap)
    hold_against(each, state, lambda wanted: _reread(catalog, wanted), whole=whole)


def hold_against(
    each: PartitionReport, state: SourceState, read: Reread, *, whole: bool = True
) -> None:
    """Compare the bounds of the source with the table, and unexplained offsets with the source's
    records. `whole`: its end is that of the log, not just of the segments."""
    each.source = state
    if each.last >= state.end:
        text = f"there are rows up to offset {each.last}, and the source ends at {state.end}"
        if whole:
            each.problems.append(AuditProblem(BEYOND, text))
        else:
            each.notes.append(f"{text}, as its segments do: --server asks a broker for the rest")
    if 0 <= each.next < state.end:
        each.notes.append(f"the source has {count(state.end - each.next, 'newer offset')}")
    if 0 <= each.first < state.start:
        each.notes.append(f"the source has deleted offsets below {state.start}, the table has not")
    found = each.found.pop(UNEXPLAINED, None)
    if found is not None:
        left = _explain(each, found, state, read)
        if left.offsets:
            each.found[UNEXPLAINED] = left


def _explain(
    each: PartitionReport, found: Found, state: SourceState, read: Reread
) -> Found:  # fmt: skip
    """Look up unexplained offsets in the source; add reasons and missing rows to the report."""
    sizes = sum(one.end - one.base for one in found.first)
    if sizes != found.offsets:  # the list is truncated or inexact: check the whole partition
        return _explain_all(each, found, state, read)
    left = Found()
    missing: list[Range] = []
    rows = 0
    for base, end in found.first:
        low, high = max(base, state.start), min(end, state.end)
        if low >= high:
            left.add_within(end - base, base, end)
            continue
        for start, stop in ((base, low), (high, end)):
            if start < stop:
                left.add_within(stop - start, start, stop)
        account = read(PartitionRange(each.topic, each.partition, low, high))
        unknown = account.counts.pop(DAMAGED, 0)
        if unknown:
            left.add_within(unknown, low, high)
        _enter(each, account.counts)
        if account.rows:
            rows += account.rows
            missing += with_records(account)
    if rows:
        _tell_missing(each, rows, missing)
    return left


def _explain_all(
    each: PartitionReport, found: Found, state: SourceState, read: Reread
) -> Found:  # fmt: skip
    """Compare counts: the number of rows with that of the source's records from the first row to
    the last."""
    if each.first < state.start or each.last >= state.end or each.first < 0:
        return found
    account = read(PartitionRange(each.topic, each.partition, each.first, each.last + 1))
    again = each.found.get(DUPLICATE)
    distinct = each.rows + each.dead - (again.offsets if again else 0)
    if account.rows > distinct:
        _tell_missing(each, account.rows - distinct, [Range(each.first, each.last + 1)])
    unexplained = max(0, found.offsets - max(0, account.rows - distinct))
    said = {
        reason: count - each.gaps.get(reason, 0) for reason, count in account.counts.items()
    }  # fmt: skip
    said = {reason: count for reason, count in said.items() if count > 0 and reason != DAMAGED}
    _enter(each, said)
    left = Found()
    unexplained -= sum(said.values())
    if unexplained > 0:
        left.add_within(unexplained, each.first, each.last + 1)
    return left


def _enter(each: PartitionReport, counts: dict[str, int]) -> None:
    for reason, offsets in counts.items():
        each.gaps[reason] = each.gaps.get(reason, 0) + offsets


def _tell_missing(each: PartitionReport, rows: int, ranges: list[Range]) -> None:
    shown = ", ".join(f"[{one.base}, {one.end})" for one in ranges[:3])
    text = f"the source has {rows} records that the table has not, among offsets {shown}"
    each.problems.append(AuditProblem(MISSING, text, rows, tuple(ranges)))


def _reread(catalog: SourceCatalog, wanted: PartitionRange) -> Account:
    [account] = accounts_of(catalog, [catalog.part(wanted)])
    return account
