"""Execute a job from its file, on Spark; called by the command and by spark-submit.

spark-submit --master ... PATH_OF/kafkawire_spark/pipeline/__main__.py JOB.toml
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kafkawire.progress import Progress, silent
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.continuous import run_on, until_signalled
from kafkawire_spark.pipeline.engine import Engine, RunOutcome
from kafkawire_spark.pipeline.executors import OnSpark
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.session import open_session

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
