"""A Spark job that is watched while it runs, and that ends with whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POLL_S = 0.25
"""Between two looks: often enough for a bar, and costs nothing beside a job."""


def watched(frame: DataFrame, look: Callable[[str], None]) -> list[Any]:
    """All rows of a job. `look` is called now and then with the name of the job's group, and once
    at the end. Whatever ends the wait, Ctrl-C for one, ends the job."""
    from pyspark import InheritableThread  # has the properties of the calling one in Spark

    context = frame.sparkSession.sparkContext
    group = f"kafkawire-{id(frame)}"
    outcome: list[Any] = []

    def work() -> None:
        context.setJobGroup(group, "kafkawire pipeline", True)
        try:
            outcome.append(frame.collect())
        except BaseException as problem:
            outcome.append(problem)

    thread: threading.Thread = InheritableThread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            look(group)
    except BaseException:
        context.cancelJobGroup(group)
        thread.join()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    rows: list[Any] = outcome[0]
    return rows
