"""`kafkawire sql`: one statement over topics on DuckDB, without Spark."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from kafkawire.cli.shared.command_config import COMMAND_CONFIG
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import (
    COMMITTED,
    INT64,
    LOCAL,
    Isolation,
    TailServer,
    Wide,
    not_empty,
)
from kafkawire.client.notation import OptionError
from kafkawire.extras import need

if TYPE_CHECKING:
    from kafkawire.reading.model.source import Source
    from kafkawire.sql.topic_dataset import Scan

FORMATS = ("table", "json", "csv", "parquet")
TABLE_ROWS = 1000
"""Default limit of a table, whose rows are collected; the other formats stream and have none."""
AUTOMATIC = -1


def query(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL", callback=not_empty, help="SQL statement.", show_default=False
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|DIR|URL",
            callback=not_empty,
            help="Broker, data folder or remote tier. [default: --server, KAFKAWIRE_SERVER or "
            f"{LOCAL}]",
        ),
    ] = "",
    server: TailServer = "",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="table, json (one object per line), csv or parquet.",
        ),
    ] = "table",
    output: Annotated[
        str,
        typer.Option(
            metavar="FILE", callback=not_empty, help="File to write. [default: standard output]"
        ),
    ] = "",
    limit: Annotated[
        int,
        typer.Option(
            min=AUTOMATIC,
            max=INT64,
            help="Maximum number of rows; 0: no limit. [default: 1000 in a table, else 0]",
            show_default=False,
        ),
    ] = AUTOMATIC,
    isolation: Isolation = COMMITTED,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what was read of each topic, at the end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row, as --format json.")
    ] = False,
    wide: Wide = False,
) -> None:
    """Query topics with SQL at once, on DuckDB. Each topic is a table of the same name.

    Columns: topic, partition, "offset", timestamp, timestampType, key, value, headers, key_text and
    value_text; offset needs its quotes. Filters on partition, offset, timestamp and key skip
    segments.

    Examples:
      kafkawire sql "SELECT count(*) FROM orders"
      kafkawire sql --source s3://bucket/prefix "SELECT * FROM orders WHERE partition = 0 LIMIT 10"
      kafkawire sql --format parquet --output orders.parquet "SELECT * FROM orders"
    """
    form = "json" if as_json else form
    if form not in FORMATS:
        fail(OptionError("--format", form, "one of " + ", ".join(FORMATS)), 2)
    if form == "parquet" and not output:
        fail("--format parquet needs a file: --output FILE", 2)
    folder = os.path.dirname(os.path.abspath(output))
    if output and (os.path.isdir(output) or not os.path.isdir(folder)):
        fail(OptionError("--output", output, "a file in a folder that exists"), 2)
    if limit == AUTOMATIC:
        limit = TABLE_ROWS if form == "table" else 0
    need("sql", "SQL over topics")
    _run(_source(source, server, isolation), sql, (form, limit, output, wide), explain)


def _source(source: str, server: str, isolation: str) -> Source:
    from kafkawire.cli.shared.source import source_of
    from kafkawire.client.address import parse_servers
    from kafkawire.client.errors import ClientError
    from kafkawire.client.security import read_security
    from kafkawire.reading.model.source import SourceError

    try:
        if not (source or server):
            source = os.environ.get("KAFKAWIRE_SERVER") or LOCAL
        if server:
            parse_servers("--server", server)
        found = source_of(source, server, isolation)
        path = COMMAND_CONFIG.get() if found.bootstrap else ""
        if path:
            read_security("--command-config", path)
        return replace(found, security_file=path)
    except (ClientError, SourceError) as error:
        fail(error, 2)


def _run(source: Source, sql: str, shape: tuple[str, int, str, bool], explain: bool) -> None:
    from kafkawire.reading.files.manifests import NothingThere
    from kafkawire.reading.model.source import SourceError
    from kafkawire.sql.engine import SqlEngine

    form, limit, output, wide = shape
    try:
        with SqlEngine(source) as engine:
            from kafkawire.cli.shared.query_rows import print_unread
            from kafkawire.cli.sql.output import write_rows

            schema, batches = engine.run(sql)
            write_rows(schema, batches, form, limit, output, wide)
            if explain:
                _explain(engine.scans)
            print_unread(engine.unread())
    except NothingThere as error:
        fail(error, 2)
    except SourceError as error:
        fail(error)
    except BrokenPipeError:  # `| head` has closed the pipe
        sys.stderr.close()
    except OSError as error:
        fail(f"{output or 'standard output'} cannot be written: {error.strerror}")


def _explain(scans: Sequence[Scan]) -> None:
    for scan in scans:
        print(
            f"{scan.topic}: {scan.segments} of {scan.of_segments} segments, {scan.partitions} of "
            f"{scan.of_partitions} partitions, {scan.offsets} offsets, about {scan.size_bytes} "
            f"of {scan.of_bytes} bytes",
            file=sys.stderr,
        )
