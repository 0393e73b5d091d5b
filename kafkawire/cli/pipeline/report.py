"""`kafkawire pipeline report NAME`: a predefined analysis on Spark, as tables and an image.

Implemented by kafkawire.spark.reports.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import COMMITTED, EachPartition, Isolation, Json
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import print_table
from kafkawire.progress import Progress

if TYPE_CHECKING:
    from kafkawire.spark.reports.report import Report, ReportTable
    from kafkawire.spark.reports.scope import Request
    from kafkawire.spark.source.model import Source

PER_PARTITION = "partition"
"""The column of tables that have a row for each partition."""
ROWS_PRINTED = 20
"""Maximum rows of a table on a terminal; the files have all."""


def report(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Report: continuity, lag, sizes or late.")
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="URL|HOST:PORT", help="Source: s3://BUCKET/PREFIX, a folder or a broker."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Output folder or s3:// URL.")],
    topics: Annotated[
        str,
        typer.Option(metavar="T,...", help="Topics to include. [default: all but internal ones]"),
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="First record time (ISO 8601, UTC by default).")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="TIME", help="End of the record time, exclusive.")
    ] = "",
    bootstrap: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Broker, for records that are in no segment yet."),
    ] = "",
    master: Annotated[str, typer.Option(metavar="URL", help="Spark master URL.")] = "local[*]",
    isolation: Isolation = COMMITTED,
    verbose: EachPartition = False,
    as_json: Json = False,
) -> None:
    """Write a report on topics: NAME.png, and tables as Parquet and CSV.

    continuity: whether every offset exists exactly once, and why not. lag: lag of groups over time.
    sizes: bytes, records, rates and key skew. late: out-of-order event times. Exit code 0: done; 1:
    continuity found lost, damaged, unexplained or duplicate offsets; 2: invalid arguments."""
    from kafkawire.spark.reports.jobs import REPORTS
    from kafkawire.spark.reports.scope import Request
    from kafkawire.spark.source.files.open import open_place
    from kafkawire.spark.source.model import SourceError

    try:
        if name not in REPORTS:
            raise OptionError("NAME", name, "one of " + ", ".join(REPORTS))
        place = open_place(whole_path(out))
        request = Request(
            where(source, bootstrap, isolation),
            tuple(part.strip() for part in topics.split(",") if part.strip()),
            time_ms("--since", since),
            time_ms("--until", until),
        )
        with bars() as progress:
            made = _made(name, request, master, progress)
        files = made.write(place)
    except (SourceError, OptionError) as error:
        fail(error, 2)
    except KeyboardInterrupt:
        fail("interrupted; no report was written", 130)
    show(made, files, out, as_json, verbose)
    if made.problems:
        raise SystemExit(1)


def _made(name: str, request: Request, master: str, progress: Progress) -> Report:
    """Make the report; Spark is started only after the arguments are checked."""
    from kafkawire.spark.reports.jobs import made, nothing, prepared
    from kafkawire.spark.session import open_session

    scope = prepared(name, request, progress)
    try:
        if not scope.offsets:
            return nothing(name, scope)
        spark = open_session(master, app_name=f"kafkawire report {name}")
        try:
            return made(spark, name, scope)
        finally:
            spark.stop()
    finally:
        scope.close()


def where(source: str, bootstrap: str, isolation: str = COMMITTED) -> Source:
    """Source named by --source and --bootstrap, by the rules of the data source's options."""
    from kafkawire.spark.source.options import parse_options

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
    """Parse ISO 8601 into ms since 1970, UTC if no zone is given; None for an empty text.
    OptionError."""
    if not text:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        allowed = "a time such as 2026-01-31 or 2026-01-31T12:00:00+02:00"
        raise OptionError(option, text, allowed) from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return int(when.timestamp() * 1000)


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
                "tables": {table.name: _rows(table) for table in tables},
            }
        )
        return
    for table in tables:
        if PER_PARTITION in table.shown and not verbose:
            continue
        print_table(_rows(table), table.shown, table.title)
        left = table.data.num_rows - ROWS_PRINTED
        if left > 0:
            print(f"... and {left:,} more rows in {table.name}.csv\n")
    for sentence in made.sentences:
        print(sentence)
    if files:
        print(f"Written to {out}: {', '.join(files)}")


def _rows(table: ReportTable) -> list[dict[str, Any]]:
    """Rows to show, limited in number, with times as text."""
    rows: list[dict[str, Any]] = table.data.slice(0, ROWS_PRINTED).select(table.shown).to_pylist()
    for row in rows:
        for name, value in row.items():
            if name.endswith("_ms") and name != "max_late_ms" and value is not None:
                at = datetime.fromtimestamp(value / 1000, UTC)
                row[name] = at.isoformat(timespec="milliseconds")
    return rows
