"""Report the progress of a running Spark job, and cancel it with its caller."""

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
"""Interval of checks: often enough for a progress bar, and negligible compared with a job."""
MAX_POLLS = 20
"""Checks for the tasks of a cancelled job: one that does not end in five seconds is left
running."""


def collect_with_progress(frame: DataFrame, scan: Callable[[str], None]) -> list[Any]:
    """Return all rows of a job. `scan` is called periodically with the name of the job's group, and
    once at the end. If the wait ends early, e.g. by Ctrl-C, the job is cancelled."""
    rows: list[Any] = run_with_progress(frame.sparkSession.sparkContext, frame.collect, scan)
    return rows


def run_with_progress(
    context: SparkContext, work: Callable[[], T], scan: Callable[[str], None]
) -> T:
    """Return the result of `work`, whose jobs are watched as by `collect_with_progress`."""
    from pyspark import InheritableThread  # has the Spark properties of the calling thread

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
    """Wait for its tasks, which end some time after their job; stopping the session earlier causes
    errors."""
    tracker = context.statusTracker()
    for _ in range(MAX_POLLS):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        if not any(stage.numActiveTasks for stage in stages if stage):
            return
        time.sleep(POLL_S)


def count_completed_tasks(context: SparkContext, group: str) -> int:
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            stage_info = tracker.getStageInfo(stage)
            done += stage_info.numCompletedTasks if stage_info else 0
    return done
