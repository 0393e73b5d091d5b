"""A Spark job that is watched while it runs, and that ends with whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

T = TypeVar("T")

POLL_S = 0.25
"""Between two looks: often enough for a bar, and costs nothing beside a job."""


def watched(frame: DataFrame, look: Callable[[str], None]) -> list[Any]:
    """All rows of a job. `look` is called now and then with the name of the job's group, and once
    at the end. Whatever ends the wait, Ctrl-C for one, ends the job."""
    rows: list[Any] = watching(frame.sparkSession.sparkContext, frame.collect, look)
    return rows


def watching(context: SparkContext, work: Callable[[], T], look: Callable[[str], None]) -> T:
    """What `work` gives, whose jobs are watched as `watched` does it."""
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
            look(group)
    except BaseException:
        context.cancelJobGroup(group)
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def completed(context: SparkContext, group: str) -> int:
    """How many tasks of a group's jobs are done."""
    tracker = context.statusTracker()
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            told = tracker.getStageInfo(stage)
            done += told.numCompletedTasks if told else 0
    return done
