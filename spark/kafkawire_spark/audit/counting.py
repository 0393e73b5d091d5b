"""Record counts of an audited table's source: from its manifests, or by reading it.

Before rows are scanned, `Counting.boundaries` returns the offsets between which they are counted;
`Counting.compare` compares the result with the source. Ranges that are not a whole segment are
counted by reading their offsets, if they are small. Ranges that differ are also read before they
are reported, and what run reports have as control or aborted records, by the source's own markers
and lists of aborted transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kafkawire.progress import Progress
from kafkawire.reading.model.source import (
    COMPACTED,
    Account,
    DamagedData,
    PartitionRange,
    SourceError,
    Task,
    TaskPart,
)
from kafkawire_spark.audit.continuity import DUPLICATE, FINDINGS_KEPT, UNEXPLAINED, Range
from kafkawire_spark.audit.counts import (
    WITHOUT_ROW,
    ComparedCounts,
    Difference,
    Stretches,
    compare,
    records_of,
    stretches,
)
from kafkawire_spark.audit.coverage import CUT_OFF, GAP, Coverage, CoveredRange, Longs
from kafkawire_spark.audit.judging import Where
from kafkawire_spark.audit.verdict import (
    MISSING,
    SHOWN,
    AuditCounts,
    AuditProblem,
    PartitionReport,
    Uncompared,
    span_of,
)

if TYPE_CHECKING:
    from kafkawire.reading.catalog import SourceCatalog


PARTS_AT_ONCE = 10_000
"""Ranges read as one task, which share connections and, if adjacent, requests: as many as in a
Spark task."""


def accounts_of(
    catalog: SourceCatalog,
    parts: Sequence[TaskPart],
    progress: Callable[[int], None] = lambda done: None,
) -> list[Account]:
    """Return one report for each part, in order; unreadable offsets are DAMAGED, deleted ones LOST.
    `progress` is called with the number done. Raises SourceError."""
    found: list[Account] = []
    for at in range(0, len(parts), PARTS_AT_ONCE):
        some = tuple(parts[at : at + PARTS_AT_ONCE])
        found += _read(catalog, Task(some), lambda done, at=at: progress(at + done))  # type: ignore[misc]
    return found


def _read(catalog: SourceCatalog, task: Task, progress: Callable[[int], None]) -> list[Account]:
    from kafkawire.reading.model.columns import Selection
    from kafkawire.reading.read_task import read_task

    def on_damage(error: DamagedData, data: bytes) -> None:
        """It is counted."""

    source = replace(catalog.source, fail_on_data_loss=False)
    selection, accounts = Selection(("_offset",)), list[Account]()
    batches = read_task(
        source, catalog.places, task, selection, on_damage=on_damage, accounts=accounts
    )
    for _ in batches:
        progress(len(accounts) - 1)  # the last one is still being read
    for account in accounts:
        if account.missing:
            topic, partition = account.range[:2]
            raise SourceError(f"{topic}-{partition} could not be read to its end")
    progress(len(accounts))
    return accounts


def with_records(account: Account) -> list[Range]:
    """Return the ranges between the gaps; after the last listed gap there may be some, too."""
    _, _, at, end = account.range
    found = []
    for gap in account.gaps:
        if at < gap.base:
            found.append(Range(at, gap.base))
        at = gap.end
    if at < end:
        found.append(Range(at, end))
    return found


FEWER, MORE = "fewer rows", "more rows"
"""Problem: more rows than the source has records, with dead letters and explained offsets."""
MAX_READ = 64 << 20
"""Maximum stored bytes of one range that is read to count it: a second's work, from a disk or
S3."""
READ_IN_ALL = 1 << 30
"""Maximum bytes of all ranges that are read: half a minute, compared with an audit of a whole
table."""


NEAR_OFFSETS = 100
"""Offsets between two control or aborted records up to which they are read together: about a block
of a segment."""
CLAIMS = 400
"""Maximum number of ranges read together: a reader lists 1000 gaps."""


@dataclass(slots=True)
class _One:
    """One partition. `rows`: of each stretch, including dead letters."""

    report: PartitionReport
    stretches: Stretches
    rows: Longs
    coverage: Coverage

    def part(self, catalog: SourceCatalog, wanted: Range) -> TaskPart:
        """Return the part of the source with a range."""
        return catalog.part(PartitionRange(self.report.topic, self.report.partition, *wanted))


class Counting:
    """Record counts for one audit. `coverages`: None for a table without run reports; `others`:
    topics of the source that are not the table's."""

    def __init__(
        self,
        catalog: SourceCatalog,
        coverages: Mapping[Where, Coverage] | None,
        others: Container[str] = (),
    ) -> None:
        self._catalog, self._others = catalog, others
        self._coverages = coverages
        self._stretches = {
            where: self._cut(where, known.base, known.end)
            for where, known in (coverages or {}).items()
            if known.stretches and self._is_there(where)
        }

    @property
    def boundaries(self) -> dict[Where, Longs]:
        """Return the offsets between which rows are to be counted, by partition."""
        return {where: made.boundaries for where, made in self._stretches.items()}

    def compare(
        self,
        reports: Iterable[PartitionReport],
        rows: Mapping[Where, Sequence[int]],
        progress: Progress,
    ) -> None:
        """Compare counts with the source and add the result to the reports, whose gaps are
        explained. `rows`: number of offsets with a row or a dead letter between the borders. Raises
        SourceError."""
        made = [one for each in reports if (one := self._one(each, rows)) is not None]
        self._read_open(made, progress)
        for one in made:
            one.report.counts = _counts(one.stretches)
        if self._coverages is None:
            for one in made:
                one.stretches = one.stretches.merge_all()
        found = [(one, compare(one.stretches, one.rows, one.coverage)) for one in made]
        self._read_differing(found, progress)
        if self._coverages is not None:
            self._confirm([one for one, compared in found if not compared.differences], progress)

    def _is_there(self, where: Where) -> bool:
        topic, partition = where
        return topic not in self._others and partition < self._catalog.topics.get(topic, 0)

    def _cut(self, where: Where, base: int, end: int) -> Stretches:
        bounds, counted = self._catalog.bounds(*where), self._catalog.count_segments(*where)
        return stretches(base, end, bounds, counted)

    def _one(self, each: PartitionReport, rows: Mapping[Where, Sequence[int]]) -> _One | None:
        where = each.topic, each.partition
        if self._coverages is not None:
            if where not in self._stretches:
                return None
            own = self._stretches[where]
            counts = rows.get(where) or [0] * len(own.records)
            return _One(each, own, np.array(counts, np.int64), self._coverages[where])
        if each.first < 0 or not self._is_there(where):
            return None
        again = each.found.get(DUPLICATE)
        count = each.rows + each.dead - (again.offsets if again else 0)
        own = self._cut(where, each.first, each.last + 1)
        return _One(each, own, np.array([count]), _as_explained(each))

    def _read_open(self, made: Sequence[_One], progress: Progress) -> None:
        """Read ranges that no manifest counts; too large ones are left out, with that reason."""
        wanted: list[tuple[_One, int]] = []
        parts: list[TaskPart] = []
        left = READ_IN_ALL
        for one in made:
            for at in one.stretches.open():
                part = one.part(self._catalog, one.stretches.range(at))
                if part.size_bytes > min(MAX_READ, left):
                    one.stretches.whys[at] = _too_much(part, left)
                    continue
                left -= part.size_bytes
                wanted.append((one, at))
                parts.append(part)
        for (one, at), account in zip(wanted, self._read(parts, "counted", progress), strict=True):
            one.stretches.store_count(at, account)

    def _read_differing(
        self, found: Sequence[tuple[_One, ComparedCounts]], progress: Progress
    ) -> None:
        """Read differing ranges again, unless they were counted by reading already."""
        parts: list[TaskPart] = []
        differing: list[tuple[_One, Difference, int]] = []
        left = READ_IN_ALL
        for one, compared in found:
            _enter(one, compared)
            for each in compared.differences:
                part = one.part(self._catalog, each.range)
                can = part.size_bytes <= left
                differing.append((one, each, len(parts) if can else -1))
                if can:
                    left -= part.size_bytes
                    parts.append(part)
        accounts = self._read(parts, "compared again", progress)
        for one, each, at in differing:
            _settle(one, each, accounts[at] if at >= 0 else None)
        for one, _ in found:
            _drop_explained(one.report)

    def _confirm(self, made: Sequence[_One], progress: Progress) -> None:
        """Read what the run reports have as control or aborted records: a committed record there
        is a missing row."""
        parts: list[TaskPart] = []
        wanted: list[tuple[_One, int]] = []
        left = READ_IN_ALL
        for one in made:
            bounds = self._catalog.bounds(one.report.topic, one.report.partition)
            for span, offsets in claims(one.coverage, bounds.start, bounds.end):
                part = one.part(self._catalog, span)
                if part.size_bytes <= min(MAX_READ, left):
                    left -= part.size_bytes
                    parts.append(part)
                    wanted.append((one, offsets))
        accounts = self._read(parts, "read for aborted transactions", progress)
        for (one, offsets), account in zip(wanted, accounts, strict=True):
            _enter_confirmed(one, offsets, account)

    def _read(self, parts: Sequence[TaskPart], what: str, progress: Progress) -> list[Account]:
        if not parts:
            return []
        words = f"ranges of the source {what}"
        return accounts_of(self._catalog, parts, lambda done: progress(words, done, len(parts)))


def _too_much(part: TaskPart, left: int) -> str:
    size = -(-part.size_bytes // (1 << 20))
    most = min(MAX_READ, left) >> 20
    return f"they are no whole segment, and {size} MiB are more than the {most} read to count them"


def _as_explained(each: PartitionReport) -> Coverage:
    """Return the gaps of a table without run reports, as explained by the source."""
    unknown = each.found.get(UNEXPLAINED)
    counts = dict(each.gaps) | ({UNEXPLAINED: unknown.offsets} if unknown else {})
    return Coverage((CoveredRange(each.first, each.last + 1, CUT_OFF, counts),))


def _counts(made: Stretches) -> AuditCounts:
    """Return the counts of the source before the comparison."""
    sizes = np.diff(made.boundaries)
    known = made.records >= 0
    found = AuditCounts(
        int(made.records[known].sum()), int(sizes[known].sum()), int(sizes[made.read].sum())
    )
    for at in sorted(made.whys):
        span = made.range(at)
        last = found.uncompared[-1] if found.uncompared else None
        if last is not None and last.end == span.base and last.why == made.whys[at]:
            found.uncompared[-1] = last._replace(end=span.end)
        else:
            found.uncompared.append(Uncompared(*span, made.whys[at]))
    return found


def _enter(one: _One, compared: ComparedCounts) -> None:
    counts = one.report.counts
    assert counts is not None
    counts.cleaned, counts.trusted = compared.cleaned, compared.trusted


def claims(known: Coverage, low: int, high: int) -> Iterator[tuple[Range, int]]:
    """Yield ranges within [low, high) with the offsets that run reports list as control or aborted
    records, and the number of these. Near ones are in one range, which is read at once."""
    base, end, offsets, count = 0, 0, 0, 0
    for gap in known.stretches:
        if gap.kind != GAP or gap.counts.keys().isdisjoint(WITHOUT_ROW):
            continue
        start, stop = max(gap.base, low), min(gap.end, high)
        if start >= stop:
            continue
        if count and (start - end > NEAR_OFFSETS or count == CLAIMS):
            yield Range(base, end), offsets
            count = offsets = 0
        base = base if count else start
        end, offsets, count = stop, offsets + stop - start, count + 1
    if count:
        yield Range(base, end), offsets


def _enter_confirmed(one: _One, offsets: int, account: Account) -> None:
    """Enter what the source has where run reports have control or aborted records."""
    counts = one.report.counts
    assert counts is not None
    if denied := _find_denied_records(one.coverage, account):
        rows = sum(each.end - each.base for each in denied)
        text = (
            f"the source has {rows} committed records at {_describe_offsets(denied)}, "
            "which the account of their run has as control records or aborted"
        )
        one.report.problems.append(AuditProblem(MISSING, text, rows, tuple(denied)))
    elif account.counts.keys() <= {*WITHOUT_ROW, COMPACTED}:
        confirmed = min(offsets, counts.trusted)
        counts.confirmed += confirmed
        counts.trusted -= confirmed


def _settle(one: _One, each: Difference, account: Account | None) -> None:
    """Report a difference that was confirmed by reading, or that is too large to be read."""
    counts = one.report.counts
    assert counts is not None
    span = f"offsets [{each.range.base}, {each.range.end})"
    if account is not None:
        read = records_of(account)
        counts.records += read - each.records
        if not each.holds(account):
            text = f"its manifest counts {each.records} records in {span}, and there are {read}"
            one.report.notes.append(text)
            return
        each = each._replace(records=read)
    counts.differ = True
    kind = FEWER if each.short else MORE
    if sum(problem.kind == kind for problem in one.report.problems) == FINDINGS_KEPT:
        return
    text = f"the source has {each.records} records in {span}, the table {_table_has(each)}"
    ranges = [each.range]
    if account is None:
        text += " (by its manifest: too many to be read)"
    elif each.short and (denied := _find_denied_records(one.coverage, account)):
        ranges = denied
        text += f"; there is one at {_describe_offsets(denied)} where its run saw none"
    missing = each.records - each.most if each.short else each.least - each.records
    one.report.problems.append(AuditProblem(kind, text, missing, tuple(ranges)))


def _drop_explained(report: PartitionReport) -> None:
    """Remove count differences that the missing rows already explain."""
    missing, fewer = (
        sum(problem.offsets for problem in report.problems if problem.kind == kind)
        for kind in (MISSING, FEWER)
    )
    if fewer <= missing:
        report.problems = [problem for problem in report.problems if problem.kind != FEWER]


def _table_has(each: Difference) -> str:
    least, most = each.least - each.rows, each.most - each.rows
    rows = f"{each.rows} rows and dead letters"
    if not most:
        return rows
    more = f"{most}" if least == most else f"{least} to {most}"
    return f"{rows}, and {more} that were control, aborted or damaged"


def _find_denied_records(known: Coverage, account: Account) -> list[Range]:
    """Find records of the source that the run reports deny, as far as both list their gaps."""
    if sum(gap.end - gap.base for gap in account.gaps) < sum(account.counts.values()):
        return []
    there, found = with_records(account), list[Range]()
    at = 0
    for gap in known.stretches:
        while at < len(there) and there[at].end <= gap.base:
            at += 1
        for each in there[at:] if gap.kind == GAP else ():
            if each.base >= gap.end:
                break
            found.append(Range(max(each.base, gap.base), min(each.end, gap.end)))
    return found[:FINDINGS_KEPT]


def _describe_offsets(ranges: Sequence[Range]) -> str:
    shown = ", ".join(span_of(each) for each in ranges[:SHOWN])
    return f"offset {shown}" + (", ..." if len(ranges) > SHOWN else "")
