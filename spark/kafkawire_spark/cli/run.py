"""`kafkawire pipeline run|compact`: run a job and print its progress and results.

Implemented by kafkawire_spark.pipeline.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kafkawire.cli.shared.output import fail, print_json, print_json_line
from kafkawire.cli.shared.parameters import Json, not_empty
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import print_table
from kafkawire.plural import count
from kafkawire.reading.model.source import SourceError, Unreachable, exit_code

if TYPE_CHECKING:
    from kafkawire_spark.pipeline.engine import RunOutcome
    from kafkawire_spark.pipeline.jobs.job import Job


JobFile = Annotated[str, typer.Argument(metavar="JOB.toml")]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        callback=not_empty,
        help="spark://HOST:PORT, yarn, k8s://... [default: from the job, or local]",
    ),
]


def run(
    job: JobFile,
    master: Master = "",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run until stopped, whatever the job file says.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write new records of the topics to the table of the job, each offset exactly once.

    An interrupted run is finished first. With --json each run prints one line of JSON. Exit code 0:
    done, or stopped by SIGINT or SIGTERM in continuous mode; 1: failed and can be retried; 2: the
    job file is invalid, or its topics or table are not there, checked before Spark starts. In
    continuous mode a broker that cannot be reached is tried again.

    Examples:
      kafkawire pipeline run orders.toml
      kafkawire pipeline run orders.toml --continuous --master spark://HOST:7077
    """
    planned = read_job(job)
    from kafkawire_spark.pipeline.jobs.job import CONTINUOUS
    from kafkawire_spark.pipeline.preflight import check_job
    from kafkawire_spark.pipeline.submitted import run_batch, run_continuous

    forever = continuous or planned.running.mode == CONTINUOUS
    _check(lambda: check_job(planned), forever)
    try:
        if forever:
            run_continuous(
                planned, master, lambda outcome: _notify(outcome, as_json), _print_failure
            )
            return
        outcomes: list[RunOutcome] = []
        try:
            with bars() as progress:
                run_batch(planned, master, progress, outcomes.append)
        finally:  # not earlier: a progress bar captures printed lines
            _show(outcomes, as_json)
    except SourceError as problem:
        fail(problem, exit_code(problem, started=True))
    except KeyboardInterrupt:
        fail("interrupted; the next run continues from there", 130)


def _print_failure(problem: SourceError, wait_s: float) -> None:
    print(f"kafkawire: {problem}; retrying in {wait_s:.0f} s", file=sys.stderr)


def compact(job: JobFile, master: Master = "", as_json: Json = False) -> None:
    """Merge small adjacent files of the table.

    If interrupted, the next run continues.

    Examples:
      kafkawire pipeline compact orders.toml
    """
    planned = read_job(job)
    from kafkawire_spark.pipeline.preflight import check_table
    from kafkawire_spark.pipeline.submitted import engine_of

    _check(lambda: check_table(planned))
    try:
        with bars() as progress, engine_of(planned, master, progress) as engine:
            before, after = engine.compact()
    except SourceError as problem:
        fail(problem, exit_code(problem, started=True))
    except KeyboardInterrupt:
        fail("interrupted; the next compact or run continues from there", 130)
    if as_json:
        print_json({"merged": before, "into": after})
    elif before:
        print(f"merged {count(before, 'small file')} into {after}")
    else:
        print("no adjacent small files to merge")


def read_job(path: str) -> Job:
    """Read the job of a TOML file; ends the command with exit code 2 if it cannot run here."""
    from kafkawire_spark.pipeline import submitted

    try:
        return submitted.read_job(path)
    except SourceError as problem:
        fail(problem, 2)


def _check(check: Callable[[], object], retried: bool = False) -> None:
    """Check a job before Spark is started; ends the command with exit code 2 if it cannot run, and
    with 1 for lost data, and for a service that cannot be reached unless that is `retried`."""
    try:
        check()
    except SourceError as problem:
        if not (retried and isinstance(problem, Unreachable)):
            fail(problem, exit_code(problem, started=False))
        print(f"kafkawire: {problem}; retrying when Spark has started", file=sys.stderr)
    except KeyboardInterrupt:
        fail("interrupted; nothing was begun", 130)


def _notify(outcome: RunOutcome, as_json: bool) -> None:
    """Print one line."""
    from kafkawire_spark.pipeline import submitted

    if as_json:
        print_json_line(submitted.totals(outcome))
    else:
        print(submitted.sentence(outcome))
    sys.stdout.flush()


def _show(outcomes: Sequence[RunOutcome], as_json: bool) -> None:
    """Print one line per run; for a single run also one row per partition."""
    from kafkawire_spark.pipeline import submitted

    runs = [outcome for outcome in outcomes if outcome.record is not None]
    if len(runs) == 1 and runs[0].record is not None and not as_json:
        rows = submitted.partitions(runs[0].record, runs[0].lags)
        few = [submitted.format_partition_row(row) for row in rows[: submitted.ROWS_SHOWN]]
        print_table(few, submitted.PARTITION_COLUMNS, f"run {runs[0].record.run}")
        if len(rows) > len(few):
            print(f"and {count(len(rows) - len(few), 'more partition')}")
    for outcome in runs or outcomes:
        _notify(outcome, as_json)
