"""`kafkawire pipeline audit TABLE`: check that every offset exists exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkawire.cli.pipeline.query import source_of
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import COMMITTED, Isolation, Json
from kafkawire.cli.shared.tables import print_table

if TYPE_CHECKING:
    from kafkawire.spark.audit.verdict import PartitionReport, TableReport

PROBLEMS_PRINTED = 50
"""Problems printed on standard error; --json has all."""


def audit(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Table to audit: a path or s3://BUCKET/PREFIX.")
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="URL|HOST:PORT",
            help="Origin of the records, to explain gaps and to compare record counts.",
        ),
    ] = "",
    bootstrap: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Broker, for records that are in no segment yet."),
    ] = "",
    master: Annotated[str, typer.Option(metavar="URL", help="Spark master URL.")] = "local[*]",
    isolation: Isolation = COMMITTED,
    as_json: Json = False,
) -> None:
    """Check that a table has every offset exactly once, with every gap explained.

    Reads partition and offset of every row of a Parquet, Delta or Iceberg table, and the reports of
    the runs that wrote it on offsets without a row. With --source the record counts of the broker
    are compared; --isolation-level is then that of the table's job. Exit code 0: clean, 1: not, 2:
    invalid arguments, 130: Ctrl-C."""
    from kafkawire.cli.shared.progress import bars
    from kafkawire.spark.audit import job
    from kafkawire.spark.audit.through import through_spark
    from kafkawire.spark.session import open_session
    from kafkawire.spark.source.model import SourceError

    try:
        against = source_of(source, bootstrap, isolation) if source or bootstrap else None
        with bars() as progress:
            spark = open_session(master, app_name="kafkawire audit")
            try:
                report, _ = job.audit(table, through_spark(spark, progress), against, progress)
            finally:
                spark.stop()
    except SourceError as error:
        fail(error, 2)
    except KeyboardInterrupt:
        fail("interrupted; nothing was changed", 130)
    show(report, as_json)
    if not report.clean:
        raise SystemExit(1)


def show(report: TableReport, as_json: bool) -> None:
    """Print the report; problems go to standard error."""
    if as_json:
        print_json(report.plain())
        return
    reasons = sorted({reason for each in report.partitions for reason in each.gaps})
    compared = any(each.counts is not None for each in report.partitions)
    rows = [_row(each, reasons, compared) for each in report.partitions]
    columns = list(rows[0]) if rows else []
    print_table(rows, columns, f"{report.table} ({report.format})")
    for note in report.notes:
        print(f"Note: {note}.")
    for each in report.partitions:
        for note in each.all_notes():
            print(f"Note: {each.where}: {note}.")
    words = "every offset once" if report.clean else "NOT CLEAN"
    print(
        f"{report.rows:,} rows, files: {report.files:,}, runs: {report.runs:,}, "
        f"{report.seconds:.1f} s: {words}"
    )
    if not report.clean:
        _complain(report)


def _row(each: PartitionReport, reasons: list[str], compared: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic": each.topic,
        "partition": each.partition,
        "first": each.first if each.first >= 0 else None,
        "last": each.last if each.last >= 0 else None,
        "rows": each.rows,
    }
    row |= {reason: each.gaps.get(reason, 0) for reason in reasons}
    row["dead letters"] = each.dead
    if each.source is not None:
        row["source"] = f"{each.source.start}..{each.source.end}"
    if compared:
        row["records"] = None if each.counts is None else each.counts.records
        row["counts"] = "not compared" if each.counts is None else each.counts.verdict
    row["verdict"] = "ok" if each.clean else ", ".join(p.kind for p in each.all_problems())
    return row


def _complain(report: TableReport) -> None:
    import sys

    sentences = list(report.sentences())
    for sentence in sentences[:PROBLEMS_PRINTED]:
        print(f"kafkawire: {sentence}", file=sys.stderr)
    if len(sentences) > PROBLEMS_PRINTED:
        print(
            f"kafkawire: {len(sentences) - PROBLEMS_PRINTED} more problems (use --json)",
            file=sys.stderr,
        )
