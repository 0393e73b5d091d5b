"""`kafkawire pipeline query`: SQL over topics, one statement or a prompt."""

from __future__ import annotations

import contextlib
import csv
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkawire.cli.shared.output import fail, print_json_line
from kafkawire.cli.shared.parameters import (
    COMMITTED,
    INT32,
    LOCAL,
    Isolation,
    SparkMaster,
    TailServer,
    Wide,
    not_empty,
)
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.query_rows import plain, print_rows, print_unread, text_of, unique
from kafkawire.cli.shared.source import source_of
from kafkawire.client.notation import OptionError
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire_spark.query import Result, Shell

FORMATS = ("table", "csv", "json")
HISTORY_LINES = 1000
INTERRUPT_CHECK_S = 0.5
MAX_LIMIT = INT32 - 1
"""Spark limits rows by an int, and one row more is read, to see whether there are more."""
HELP = "End each statement with a semicolon. Every topic is a table:\
SELECT count(*) FROM `my-topic`; show topics; describe TOPIC; quit"


def query(
    sql: Annotated[
        str,
        typer.Argument(
            metavar="[SQL]",
            callback=not_empty,
            help="SQL statement. [default: open a prompt]",
            show_default=False,
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|DIR|URL",
            callback=not_empty,
            help=f"Broker, data folder or remote tier. [default: --server, or {LOCAL}]",
        ),
    ] = "",
    server: TailServer = "",
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="table, csv or json (one object per line)."
        ),
    ] = "table",
    limit: Annotated[
        int,
        typer.Option(min=0, max=MAX_LIMIT, help="Maximum number of rows; 0: no limit."),
    ] = 1000,
    master: SparkMaster = "local[*]",
    isolation: Isolation = COMMITTED,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per row, as --format json.")
    ] = False,
    wide: Wide = False,
) -> None:
    """Query topics with SQL. Each topic is a table of the same name.

    Columns: topic, partition, offset, timestamp, timestampType, key, value, headers, key_text and
    value_text. Starts a local Spark session by default.

    Examples:
      kafkawire pipeline query "SELECT count(*) FROM orders"
      kafkawire pipeline query --source s3://bucket/prefix "SELECT * FROM orders LIMIT 10"
    """
    from kafkawire.reading.model.source import SourceError, exit_code
    from kafkawire_spark.pipeline.preflight import check_source
    from kafkawire_spark.session import open_session

    if form not in FORMATS:
        fail(OptionError("--format", form, "one of " + ", ".join(FORMATS)), 2)
    form = "json" if as_json else form
    try:
        asked = source_of(source or ("" if server else LOCAL), server, isolation)
        check_source(asked)
        with bars() as progress:
            spark = open_session(master, app_name="kafkawire query", progress=progress)
    except SourceError as error:
        fail(error, exit_code(error, started=False))
    try:
        run(spark, asked, sql, lambda result: show(result, form, limit, wide), limit)
    except SourceError as error:
        fail(error)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    finally:
        spark.stop()


def run(
    spark: Any, source: Any, sql: str, show_result: Callable[[Result], None], limit: int
) -> None:
    """Run the statements of `sql`, or those entered at the prompt. Raises the SourceError of the
    first failing statement of `sql`; at the prompt it is printed and the next statement is read. If
    the input is a pipe, the command then ends with exit code 1."""
    from kafkawire.reading.model.source import SourceError
    from kafkawire_spark.query import Shell, statements_of

    shell = Shell(spark, source)
    try:
        if sql:
            for statement in statements_of(sql):
                show_result(_answer(shell, spark, statement, limit))
                print_unread(shell.unread())
            return
        failed = False
        for statement in _read_statements():
            try:
                show_result(_answer(shell, spark, statement, limit))
                print_unread(shell.unread())
            except SourceError as error:
                print(f"kafkawire: {error}", file=sys.stderr)
                failed = True
            except KeyboardInterrupt:
                print("stopped", file=sys.stderr)
        if failed and not sys.stdin.isatty():
            raise SystemExit(1)
    finally:
        shell.close()


def _answer(shell: Shell, spark: Any, statement: str, limit: int) -> Result:
    """Run a statement in its own thread, because Ctrl-C inside a call to Spark's JVM causes long
    tracebacks. After Ctrl-C its jobs are cancelled until the thread has ended, because planning may
    still start one."""
    with ThreadPoolExecutor(1) as pool:
        # The thread runs before the statement exists: a pool does not know a thread whose start
        # Ctrl-C interrupted, and would not wait for its statement.
        thread = pool.submit(threading.current_thread).result()
        try:
            coming = pool.submit(shell.run, statement, limit)
            # In steps: Ctrl-C just before a wait without a timeout is only handled when it ends.
            while not wait([coming], INTERRUPT_CHECK_S).done:
                pass
            return coming.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            while thread.is_alive():
                spark.sparkContext.cancelAllJobs()
                thread.join(INTERRUPT_CHECK_S)
            raise


def _read_statements() -> Iterator[str]:
    """Yield statements from the terminal, with history, or from a pipe."""
    from kafkawire_spark.query import split, statements_of

    if not sys.stdin.isatty():
        yield from statements_of(sys.stdin.read())
        return
    print(HELP)
    with _history():
        rest = ""
        while True:
            try:
                line = input("        -> " if rest.strip() else "kafkawire> ")
            except KeyboardInterrupt:
                rest = ""
                print()
                continue
            except EOFError:
                print()
                return
            if not rest.strip() and line.strip().rstrip(";").lower() in ("quit", "exit"):
                return
            statements, rest = split(f"{rest}{line}\n")
            yield from statements


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Enable line history at the prompt, if Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    folder = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "kafkawire"
    file = folder / "query-history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)


def show(result: Result, form: str, limit: int, wide: bool = False) -> None:
    """Print rows in the requested format; note on standard error if there are more."""
    found = ([plain(value) for value in row] for row in result.rows)
    if form == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(result.columns)
        writer.writerows([text_of(value) for value in row] for row in found)
    elif form == "json":
        for row in found:
            print_json_line(dict(zip(unique(result.columns), row, strict=True)))
    else:
        print_rows(unique(result.columns), found, wide)
    sys.stdout.flush()
    if result.more:
        rows = count(limit, "row")
        print(f"kafkawire: output limited to {rows}; use --limit 0 for all", file=sys.stderr)
