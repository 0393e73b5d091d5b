"""An audit: list files, scan them, compare them with run reports and source, make a report."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkawire.progress import Progress, silent
from kafkawire_spark.audit.continuity import FINDINGS_KEPT, Outcome
from kafkawire_spark.audit.coverage import Coverage
from kafkawire_spark.audit.judging import Judge, Judgement, Where, load
from kafkawire_spark.audit.listing import AuditError, ListedTable, named, scan
from kafkawire_spark.audit.scanning import MISSING, OTHERS, ScanFinding
from kafkawire_spark.audit.through import VERDICT, Through
from kafkawire_spark.audit.verdict import AuditProblem, PartitionReport, TableReport

if TYPE_CHECKING:
    from kafkawire.reading.model.source import Source


def audit(
    url: str, through: Through, source: Source | None = None, progress: Progress = silent
) -> tuple[TableReport, ListedTable]:
    """Audit the table at a path or URL, compared with a source if one is given. Raises
    SourceError."""
    begun = time.monotonic()
    listed = scan(url)
    if source is None:
        _judge(listed, through)
    else:
        from kafkawire.reading.catalog import open_catalog, remade
        from kafkawire_spark.audit.against import compare
        from kafkawire_spark.audit.counting import Counting

        catalog = open_catalog(replace(source, fail_on_data_loss=False))
        try:
            others = remade(catalog, listed.ids)
            counting = Counting(catalog, listed.coverages, others)
            listed.boundaries = counting.boundaries
            rows = _judge(listed, through)
            compare(listed.report, catalog, others, counting, rows, progress)
        finally:
            catalog.close()
    listed.report.seconds = time.monotonic() - begun
    return listed.report, listed


def _judge(listed: ListedTable, through: Through) -> dict[Where, list[int]]:
    """Add the results of the scan to the report; return the number of rows between the borders."""
    report = listed.report
    judgements: dict[Where, Judgement] = {}
    others: dict[str, int] = {}
    for kind, topic, partition, base, end, text in through(listed) if listed.files else ():
        if kind == VERDICT:
            judgements[topic, partition] = load(text)
        elif kind == OTHERS:
            others[text] = end
        else:
            _file_problem(report, ScanFinding(kind, topic, partition, base, end, text))
    if any(problem.kind == MISSING for problem in report.problems) and listed.merged():
        raise AuditError(f"{report.table} was compacted while it was read: audit it again")
    if others:
        rows = f"{named(sorted(others))} with {sum(others.values()):,} rows"
        report.notes.append(f"{rows} of other programs, without an offset, in the adopted table")
    for where in sorted({*judgements, *(listed.coverages or {}), *listed.nexts}):
        judgement = judgements.get(where) or _rowless(where, listed)
        report.partitions.append(_partition(where, judgement, listed))
    return {where: judgement.outcome.counts for where, judgement in judgements.items()}


def _file_problem(report: TableReport, finding: ScanFinding) -> None:
    same = sum(problem.kind == finding.kind for problem in report.problems)
    if same < FINDINGS_KEPT:
        report.problems.append(AuditProblem(finding.kind, finding.text))


def _rowless(where: Where, listed: ListedTable) -> Judgement:
    """Return the outcome of a partition without rows."""
    empty = Judge(listed.coverages, listed.boundaries)
    empty.begin(where)
    return empty.finish()


def _partition(where: Where, judgement: Judgement, listed: ListedTable) -> PartitionReport:
    outcome: Outcome = judgement.outcome
    made = PartitionReport(
        *where,
        outcome.first,
        outcome.last,
        listed.nexts.get(where, -1),
        outcome.rows - judgement.dead,
        judgement.dead,
        outcome.gaps,
        outcome.found,
    )
    if listed.coverages is None:
        return made
    known = listed.coverages.get(where, Coverage())
    for base, end in known.twice:
        made.problems.append(AuditProblem("read twice", f"two runs have read [{base}, {end})"))
    for base, end in known.unbalanced:
        text = f"the account of the run that read [{base}, {end}) does not add up"
        made.problems.append(AuditProblem("account", text))
    if known.stretches and made.next >= 0 and made.next != known.end:
        text = f"the runs have read up to {known.end}, and the next one begins at {made.next}"
        made.problems.append(AuditProblem("next offset", text))
    return made
