"""Execute a job from its file, on Spark: one run, or run after run until stopped (a run in progress
is completed); and summarize a run as text and as JSON.

Called by the command and by spark-submit:

    spark-submit --master ... PATH_OF/kafkawire_spark/pipeline/__main__.py JOB.toml
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kafkawire.plural import count
from kafkawire.progress import Progress, silent
from kafkawire.reading.model.source import DataLoss, SourceError
from kafkawire_spark.pipeline.engine import Engine, RunOutcome
from kafkawire_spark.pipeline.executors import OnSpark
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import RunRecord
from kafkawire_spark.session import open_session

TRIES = 5
"""Maximum number of consecutive runs that fail because a location or a broker is unavailable."""


@contextmanager
def until_signalled() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second one interrupts as usual."""
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        print("kafkawire: stopping after this run; signal again to interrupt it", file=sys.stderr)

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_on(
    run: Callable[[], RunOutcome],
    every_s: float,
    stopped: threading.Event,
    report: Callable[[RunOutcome], None],
    failed: Callable[[SourceError, float], None],
) -> None:
    """Start a run every `every_s` seconds, immediately if the last one took longer or stopped at a
    limit. `report` is called after each run, `failed` for one that is retried after some seconds.
    Raises SourceError if retrying cannot help or has failed too often."""
    tries = 0
    while not stopped.is_set():
        begun = time.monotonic()
        try:
            outcome = run()
        except (JobError, DataLoss):
            raise
        except SourceError as problem:
            tries += 1
            if tries == TRIES:
                raise
            failed(problem, every_s)
            stopped.wait(every_s)
            continue
        tries = 0
        report(outcome)
        more = outcome.record is not None and outcome.planned_less
        if not more:
            stopped.wait(max(0.0, every_s - (time.monotonic() - begun)))


PARTITION_COLUMNS = ("topic", "partition", "from", "to", "rows", "dead letters", "no row", "lag")
ROWS_SHOWN = 50
"""Partitions in the text table, as a cluster may have thousands; JSON has all."""


def partitions(record: RunRecord, lags: dict[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Return summary rows by partition: range read [from, to), rows in the table, dead letters,
    offsets without a row by reason, and the lag: existing offsets that are not in the table yet."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for share in record.shares:
        topic, partition, base, end = share.range
        row = found.setdefault(
            (topic, partition),
            {
                "topic": topic,
                "partition": partition,
                "from": base,
                "to": end,
                "rows": 0,
                "dead_letters": 0,
                "no_row": {},
                "lag": lags.get((topic, partition)),
            },
        )
        row["from"], row["to"] = min(row["from"], base), max(row["to"], end)
        row["rows"] += share.rows
        row["dead_letters"] += share.dead
        for reason, offsets in share.counts.items():
            row["no_row"][reason] = row["no_row"].get(reason, 0) + offsets
    return [found[key] for key in sorted(found)]


def totals(outcome: RunOutcome) -> dict[str, Any]:
    """Return the whole run, as JSON."""
    record = outcome.record
    lag = sum(outcome.lags.values())
    if record is None:
        return {"run": None, "lag": lag}
    shares = record.shares
    return {
        "run": record.run,
        "resumed": outcome.resumed,
        "rows": record.rows,
        "dead_letters": sum(share.dead for share in shares),
        "offsets": sum(share.range.end - share.range.base for share in shares),
        "files": len(record.files),
        "bytes": record.size_bytes,
        "lag": lag,
        "seconds": record.seconds,
        "partitions": partitions(record, outcome.lags),
    }


def sentence(outcome: RunOutcome) -> str:
    """Return the run in one line."""
    record = outcome.record
    lag = sum(outcome.lags.values())
    if record is None:
        return f"nothing new, lag {lag}"
    dead = sum(share.dead for share in record.shares)
    letters = f", {count(dead, 'dead letter')}" if dead else ""
    rate = f" ({record.rows / record.seconds:,.0f} rows/s)" if record.seconds else ""
    again = ", begun before" if outcome.resumed else ""
    rows, files = count(record.rows, "row"), count(len(record.files), "file")
    return (
        f"run {record.run}{again}: {rows} in {files}, "
        f"{_size(record.size_bytes)}{letters}, {record.seconds:.1f} s{rate}, lag {lag}"
    )


def format_partition_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `partitions` as text, by PARTITION_COLUMNS."""
    gone = row["no_row"]
    reasons = ", ".join(f"{offsets} {reason}" for reason, offsets in sorted(gone.items())) or None
    text = {name.replace("_", " "): value for name, value in row.items()}
    return {**text, "no row": reasons}


def _size(count: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    return f"{count:.0f} {units[0]}" if units[0] == "B" else f"{count:.1f} {units[0]}"


LOCAL = "local[*]"


def read_job(path: str) -> Job:
    """Read the job of a TOML file. Raises SourceError."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobError(f"{path} is not UTF-8") from None
    except SourceError as error:
        raise type(error)(f"{path}: {error}") from None


@contextmanager
def engine_of(job: Job, master: str, progress: Progress) -> Iterator[Engine]:
    """Yield an engine with a Spark session, which is stopped if it was started here."""
    from pyspark.sql import SparkSession

    given = SparkSession.getActiveSession()
    conf = dict(job.running.spark or {})
    spark = open_session(
        master or job.running.master or LOCAL,
        conf=conf,
        app_name=f"kafkawire {job.name}",
        progress=progress,
    )
    engine = Engine(job, OnSpark(spark), progress=progress)
    try:
        yield engine
    finally:
        engine.close()
        if given is None:
            spark.stop()


def run_batch(
    job: Job, master: str, progress: Progress, report: Callable[[RunOutcome], None]
) -> None:
    """Execute one run; if one was interrupted or limited, execute more until the table has
    everything that existed at the start. Raises SourceError. After an interruption the next run
    continues."""
    with engine_of(job, master, progress) as engine:
        while True:
            outcome = engine.run()
            report(outcome)
            if outcome.record is None or not (outcome.planned_less or outcome.resumed):
                return


def run_continuous(
    job: Job,
    master: str,
    report: Callable[[RunOutcome], None],
    failed: Callable[[SourceError, float], None],
) -> None:
    """Execute runs until SIGINT or SIGTERM, which let the current run finish; a second signal
    interrupts it. Raises SourceError."""
    with engine_of(job, master, silent) as engine, until_signalled() as stopped:
        run_on(engine.run, job.running.every_s, stopped, report, failed)
