"""Progress of a running Spark job, which is cancelled with its waiting caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

T = TypeVar("T")

POLL_S = 0.25
"""Between two checks: often enough for a progress bar, and free compared with a job."""
MAX_POLLS = 20
"""For tasks of a job that was ended: one that does not notice in five seconds is left to itself."""


def watched(frame: DataFrame, scan: Callable[[str], None]) -> list[Any]:
    """Return all rows of a job. `scan` is called periodically with the name of the job's group, and
    once at the end. Whatever ends the wait, Ctrl-C for one, ends the job."""
    rows: list[Any] = watching(frame.sparkSession.sparkContext, frame.collect, scan)
    return rows


def watching(context: SparkContext, work: Callable[[], T], scan: Callable[[str], None]) -> T:
    """Result of `work`, whose jobs are watched as by `watched`."""
    from pyspark import InheritableThread  # has the properties of the calling one in Spark

    group = f"kafkawire-{id(work)}"
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        context.setJobGroup(group, "kafkawire pipeline", True)
        try:
            outcome.append(work())
        except BaseException as problem:
            failure.append(problem)

    thread: threading.Thread = InheritableThread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            scan(group)
    except BaseException:
        context.cancelJobGroup(group)
        thread.join()
        _until_idle(context, group)
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _until_idle(context: SparkContext, group: str) -> None:
    """Its tasks end some time after their job; a session that is stopped before complains."""
    tracker = context.statusTracker()
    for _ in range(MAX_POLLS):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        if not any(stage.numActiveTasks for stage in stages if stage):
            return
        time.sleep(POLL_S)


def completed(context: SparkContext, group: str) -> int:
    """Return how many tasks of a group's jobs are done."""
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            done += stage_info.numCompletedTasks if stage_info else 0
    return done
