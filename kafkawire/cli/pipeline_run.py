"""`kafkawire pipeline run|compact`: what is said of a job while it is done, and after it.

Called by kafkawire.cli.pipeline_app; the work is kafkawire.spark.pipeline's.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from kafkawire.cli.progress import bars
from kafkawire.cli.tables import fail, print_json, print_json_line, print_table
from kafkawire.spark.model import SourceError

if TYPE_CHECKING:
    from kafkawire.spark.pipeline.engine import Outcome
    from kafkawire.spark.pipeline.job import Job

NEEDED = ("pyspark", "pyarrow", "numba")


def run(path: str, master: str, continuous: bool, as_json: bool) -> None:
    """Exit codes: 0 done, 1 it failed, 2 the job is wrong."""
    from kafkawire.spark.pipeline.job import CONTINUOUS

    job = read_job(path)
    on_and_on = continuous or job.running.mode == CONTINUOUS

    def told(outcome: Outcome) -> None:
        _show(outcome, as_json, brief=on_and_on)

    def failed(problem: SourceError, wait_s: float) -> None:
        print(f"kafkawire: {problem}; again in {wait_s:.0f} s", file=sys.stderr)

    from kafkawire.spark.pipeline.submitted import run_job

    try:
        with bars() as progress:
            run_job(job, master, progress, told, failed, continuous=continuous)
    except SourceError as problem:
        fail(problem)
    except KeyboardInterrupt:
        fail("interrupted; the next run goes on from there", 130)


def compact(path: str, master: str, as_json: bool) -> None:
    """Exit codes as `run`."""
    job = read_job(path)
    from kafkawire.spark.pipeline.submitted import engine_of

    try:
        with bars() as progress, engine_of(job, master, progress) as engine:
            before, after = engine.compact()
    except SourceError as problem:
        fail(problem)
    except KeyboardInterrupt:
        fail("interrupted; the next compact or run goes on from there", 130)
    if as_json:
        print_json({"merged": before, "into": after})
    elif before:
        print(f"{before} small files are {after} now")
    else:
        print("no small files next to each other")


def read_job(path: str) -> Job:
    """The job of a TOML file; ends the command with exit code 2 if it cannot be done here."""
    from kafkawire.spark.pipeline.submitted import read_job as read

    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"{', '.join(missing)} is not installed: pip install 'kafkawire[spark]'", 2)
    try:
        return read(path)
    except SourceError as problem:
        fail(problem, 2)


def _show(outcome: Outcome, as_json: bool, *, brief: bool) -> None:
    from kafkawire.spark.pipeline import summary

    if as_json:
        (print_json_line if brief else print_json)(summary.totals(outcome))
        return
    if outcome.record is not None and not brief:
        rows = summary.partitions(outcome.record, outcome.behind)
        few = [summary.shown(row) for row in rows[: summary.ROWS_SHOWN]]
        print_table(few, summary.PARTITION_COLUMNS, f"run {outcome.record.run}")
        if len(rows) > len(few):
            print(f"and {len(rows) - len(few)} more partitions")
    print(summary.sentence(outcome), flush=True)
