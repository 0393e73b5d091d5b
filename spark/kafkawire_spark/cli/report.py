"""`kafkawire pipeline report NAME`: a predefined analysis on Spark, as tables and an image.

Implemented by kafkawire_spark.reports.
"""

from __future__ import annotations

import os
import time
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
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import print_table
from kafkawire.cli.shared.times import parse_time
from kafkawire.client.notation import OptionError, time_text
from kafkawire.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkawire.reading.model.source import Source
    from kafkawire_spark.reports.report import Report, ReportTable
    from kafkawire_spark.reports.scope import Request

PER_PARTITION = "partition"
"""The column of tables that have a row for each partition."""
ROWS_PRINTED = 20
"""Maximum rows of a table on a terminal; the files have all."""


ReportedTopics = Annotated[
    list[str],
    typer.Option(
        "--topic",
        metavar="TOPIC",
        callback=not_empty,
        help="Topic to include; may be repeated. [default: all but internal ones]",
    ),
]


def report(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Report: continuity, lag, sizes or late.")
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|DIR|URL",
            callback=not_empty,
            help="Source: s3://BUCKET/PREFIX, a folder or a broker.",
        ),
    ],
    output: Annotated[
        str, typer.Option(metavar="DIR", callback=not_empty, help="Output folder or s3:// URL.")
    ],
    topics: ReportedTopics = [],  # noqa: B006
    since: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            callback=not_empty,
            help="First record time: ISO 8601, -1h or @MILLISECONDS.",
        ),
    ] = "",
    until: Annotated[
        str,
        typer.Option(metavar="TIME", callback=not_empty, help="End of the record time, exclusive."),
    ] = "",
    server: TailServer = "",
    master: SparkMaster = "local[*]",
    isolation: Isolation = COMMITTED,
    verbose: EachPartition = False,
    as_json: Json = False,
) -> None:
    """Write a report on topics: NAME.png, and tables as Parquet and CSV.

    continuity: whether every offset exists exactly once, and why not. lag: lag of groups over time.
    sizes: bytes, records, rates and key skew. late: out-of-order event times. Exit code 0: done; 1:
    failed, or continuity found lost, damaged, unexplained or duplicate offsets; 2: invalid
    arguments, 130: Ctrl-C.

    Examples:
      kafkawire pipeline report continuity --source s3://bucket/prefix --output reports
      kafkawire pipeline report lag --source 127.0.0.1:9092 --output reports --from -7d
    """
    from kafkawire.reading.files.open import open_place
    from kafkawire.reading.model.source import SourceError, exit_code
    from kafkawire_spark.pipeline.preflight import reach_store
    from kafkawire_spark.reports.jobs import REPORTS
    from kafkawire_spark.reports.scope import Request

    try:
        if name not in REPORTS:
            raise OptionError("NAME", name, "one of " + ", ".join(REPORTS))
        place = open_place(whole_path(output), "report location")
        reach_store(place)
        request = Request(
            where(source, server, isolation),
            tuple(name.strip() for text in topics for name in text.split(",") if name.strip()),
            time_ms("--from", since),
            time_ms("--until", until),
        )
        with bars() as progress:
            made = _make_report(name, request, master, progress)
        files = made.write(place)
    except OptionError as error:
        fail(error, 2)
    except SourceError as error:
        fail(error, exit_code(error, started=False))
    except KeyboardInterrupt:
        fail("interrupted; no report was written", 130)
    show(made, files, output, as_json, verbose)
    if made.problems:
        raise SystemExit(1)


def _make_report(name: str, request: Request, master: str, progress: Progress) -> Report:
    """Make the report; Spark is started only after the arguments are checked."""
    from kafkawire_spark.pipeline.preflight import reach_source
    from kafkawire_spark.reports.jobs import nothing, prepare_scope, run_report
    from kafkawire_spark.session import open_session

    reach_source(request.source)
    scope = prepare_scope(name, request, progress)
    try:
        if not scope.offsets:
            return nothing(name, scope)
        spark = open_session(master, app_name=f"kafkawire report {name}", progress=progress)
        try:
            return run_report(spark, name, scope)
        finally:
            spark.stop()
    finally:
        scope.close()


def where(source: str, bootstrap: str, isolation: str = COMMITTED) -> Source:
    """Return the source of --source and --server, by the rules of the data source's options."""
    from kafkawire_spark.source.options import parse_options

    given = {"source": whole_path(source), "subscribe": "any", "isolation.level": isolation}
    if bootstrap:
        given["kafka.bootstrap.servers"] = bootstrap
    return parse_options(given, streaming=False).source


def whole_path(text: str) -> str:
    """Return the absolute path of a folder, because tasks run in other folders; URLs are
    unchanged."""
    here = text.startswith((".", "/")) or os.path.isdir(text) or ":" not in text
    return os.path.abspath(text) if here else text


def time_ms(option: str, text: str) -> int | None:
    """Parse a time into ms since 1970; None for an empty text. OptionError."""
    return parse_time(option, text, time.time_ns() // 1_000_000) if text else None


def show(made: Report, files: list[str], out: str, as_json: bool, verbose: bool = False) -> None:
    """Print the first rows of the tables, then the findings, then the paths of the files. Tables
    with a row for each partition are printed with `verbose` only."""
    tables = [table for table in made.tables if table.shown]
    if as_json:
        print_json(
            {
                "report": made.name,
                "problems": made.problems,
                "sentences": made.sentences,
                "files": files,
                "tables": {table.name: _exact_rows(table) for table in tables},
            }
        )
        return
    for table in tables:
        if PER_PARTITION in table.shown and not verbose:
            continue
        table.data = without_empty_internal(table.data)
        print_table(_rows(table), table.shown, table.title)
        left = table.data.num_rows - ROWS_PRINTED
        if left > 0:
            print(f"... and {left:,} more rows in {table.name}.csv\n")
    for sentence in made.sentences:
        print(sentence)
    if files:
        print(f"Written to {out}: {', '.join(files)}")


def without_empty_internal(data: pa.Table) -> pa.Table:
    """Return the table without partitions of internal topics that have no records: there are
    many."""
    import pyarrow.compute as pc

    if not {"topic", "records"} <= set(data.column_names):
        return data
    internal = pc.starts_with(data["topic"], "__")
    return data.filter(pc.invert(pc.and_(internal, pc.equal(data["records"], 0))))


def _exact_rows(table: ReportTable) -> list[dict[str, Any]]:
    """Return the rows to show, limited in number."""
    rows: list[dict[str, Any]] = table.data.slice(0, ROWS_PRINTED).select(table.shown).to_pylist()
    return rows


def _rows(table: ReportTable) -> list[dict[str, Any]]:
    """Return the rows to show, with times as text."""
    rows = _exact_rows(table)
    for row in rows:
        for name, value in row.items():
            if name.endswith("_ms") and name != "max_late_ms" and value is not None:
                row[name] = time_text(value)
    return rows
