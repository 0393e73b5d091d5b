"""`kafkawire pipeline audit TABLE`: check that every offset exists exactly once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import (
    COMMITTED,
    EachPartition,
    Isolation,
    Json,
    SparkMaster,
    TailServer,
    not_empty,
)
from kafkawire.cli.shared.source import source_of
from kafkawire.cli.shared.tables import print_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkawire_spark.audit.verdict import PartitionReport, TableReport

NOTED_PLACES = 3
"""Partitions named in a note that many of them have; -v names all."""
PROBLEMS_PRINTED = 50
"""Problems printed on standard error; --json has all."""


def audit(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            callback=not_empty,
            help="Table to audit: a path or s3://BUCKET/PREFIX.",
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|DIR|URL",
            callback=not_empty,
            help="Origin of the records, to explain gaps and to compare record counts.",
        ),
    ] = "",
    server: TailServer = "",
    master: SparkMaster = "local[*]",
    isolation: Isolation = COMMITTED,
    verbose: EachPartition = False,
    as_json: Json = False,
) -> None:
    """Check that a table has every offset exactly once, with every gap explained.

    Reads partition and offset of every row of a Parquet, Delta or Iceberg table, and the reports of
    the runs that wrote it on offsets without a row. With --source the record counts of the broker
    are compared; --isolation-level is then that of the table's job. Without -v there is a line for
    each topic, and for each partition that is not clean. Exit code 0: clean, 1: not, 2:
    invalid arguments, or it could not be done, 130: Ctrl-C.

    Examples:
      kafkawire pipeline audit lake/orders
      kafkawire pipeline audit lake/orders --source s3://bucket/prefix --server 127.0.0.1:9092
    """
    from kafkawire.cli.shared.progress import bars
    from kafkawire.reading.files.open import open_place
    from kafkawire.reading.model.source import Damaged, SourceError
    from kafkawire_spark.audit import job
    from kafkawire_spark.audit.job import through_new_spark
    from kafkawire_spark.pipeline.preflight import check_source, reach_store
    from kafkawire_spark.pipeline.tables.port import LOCATION
    from kafkawire_spark.session import open_session

    try:
        against = source_of(source, server, isolation) if source or server else None
        reach_store(open_place(table, LOCATION))
        if against is not None:
            check_source(replace(against, fail_on_data_loss=False))
        with bars() as progress:

            def opening() -> SparkSession:
                return open_session(master, app_name="kafkawire audit", progress=progress)

            report, _ = job.audit(table, through_new_spark(opening, progress), against, progress)
    except SourceError as error:
        fail(error, 1 if isinstance(error, Damaged) else 2)
    except KeyboardInterrupt:
        fail("interrupted; nothing was changed", 130)
    show(report, as_json, verbose)
    if not report.clean:
        raise SystemExit(1)


def show(report: TableReport, as_json: bool, verbose: bool = False) -> None:
    """Print the report, `verbose` with a line for each partition; problems go to standard
    error."""
    if as_json:
        print_json(report.plain())
        return
    reasons = sorted({reason for each in report.partitions for reason in each.gaps})
    compared = any(each.counts is not None for each in report.partitions)
    title = f"{report.table} ({report.format})"
    rows = [_row(each, reasons, compared) for each in report.partitions]
    if not verbose:
        topics = [_topic_row(each, reasons, compared) for each in _by_topic(report)]
        print_table(topics, list(topics[0]) if topics else [], title)
        title = "partitions that are not clean"
        rows = [row for row, each in zip(rows, report.partitions, strict=True) if not each.clean]
    if rows or verbose:
        print_table(rows, list(rows[0]) if rows else [], title)
    for note in report.notes:
        print(f"Note: {note}.")
    for text, places in _notes(report).items():
        shown = places if verbose else places[:NOTED_PLACES]
        more = f" and {len(places) - len(shown)} more" if len(places) > len(shown) else ""
        print(f"Note: {', '.join(shown)}{more}: {text}.")
    words = "every offset once" if report.clean else "NOT CLEAN"
    print(
        f"{report.rows:,} rows, files: {report.files:,}, runs: {report.runs:,}, "
        f"{report.seconds:.1f} s: {words}"
    )
    if not report.clean:
        _complain(report)


def _by_topic(report: TableReport) -> list[list[PartitionReport]]:
    topics: dict[str, list[PartitionReport]] = {}
    for each in report.partitions:
        topics.setdefault(each.topic, []).append(each)
    return list(topics.values())


def _notes(report: TableReport) -> dict[str, list[str]]:
    """Return the partitions of each note."""
    found: dict[str, list[str]] = {}
    for each in report.partitions:
        for note in each.all_notes():
            found.setdefault(note, []).append(each.where)
    return found


def _topic_row(of: list[PartitionReport], reasons: list[str], compared: bool) -> dict[str, Any]:
    """Return the sums of a topic; `verdict`: how many of its partitions are not clean."""
    wrong = sum(not each.clean for each in of)
    row: dict[str, Any] = {
        "topic": of[0].topic,
        "partitions": len(of),
        "rows": sum(each.rows for each in of),
    }
    row |= {reason: sum(each.gaps.get(reason, 0) for each in of) for reason in reasons}
    row["dead letters"] = sum(each.dead for each in of)
    if compared:
        row["records"] = sum(each.counts.records for each in of if each.counts is not None)
        verdicts = {"not compared" if p.counts is None else p.counts.verdict for p in of}
        row["counts"] = ", ".join(sorted(verdicts))
    row["verdict"] = f"NOT CLEAN: {wrong} of {len(of)}" if wrong else "ok"
    return row


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
