"""A watched Spark job: its result, its error, and an interruption, which cancels the job."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire_spark import watch
from kafkawire_spark.watch import count_completed_tasks, run_with_progress


class Context:
    """The part of a SparkContext that `run_with_progress` needs: one job with one stage.
    InheritableThread finds no JVM here, so it only runs its target."""

    def __init__(self) -> None:
        self.group = ""
        self.cancelled: list[str] = []
        self.ended = threading.Event()
        self.stage = SimpleNamespace(numActiveTasks=2, numCompletedTasks=3)

    def setJobGroup(self, group: str, description: str, interrupt: bool) -> None:
        self.group = group

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.append(group)
        self.ended.set()

    def statusTracker(self) -> Context:
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:
        return [1] if group == self.group else []

    def getJobInfo(self, job: int) -> Any:
        return SimpleNamespace(stageIds=[4, 5])

    def getStageInfo(self, stage: int) -> Any:
        return self.stage if stage == 4 else None  # the tracker forgets old stages


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(watch, "POLL_S", 0.001)
    return Context()


def test_result_is_returned_and_progress_reported(context: Any) -> None:
    seen: list[str] = []

    def work() -> int:
        assert context.ended.wait(60)
        return 7

    def scan(group: str) -> None:
        seen.append(group)
        context.ended.set()

    assert run_with_progress(context, work, scan) == 7
    assert set(seen) == {context.group}
    assert count_completed_tasks(context, context.group) == 3
    assert count_completed_tasks(context, "another") == 0
    assert not context.cancelled


def test_error_of_job_is_raised(context: Any) -> None:
    def work() -> int:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        run_with_progress(context, work, lambda group: None)


def test_interruption_cancels_job_and_waits_for_tasks(
    context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[str] = []

    def interrupted(group: str) -> None:
        raise KeyboardInterrupt

    def one_poll(seconds: float) -> None:
        polls.append(context.cancelled[0])
        context.stage.numActiveTasks = 0

    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=one_poll))
    with pytest.raises(KeyboardInterrupt):
        run_with_progress(context, lambda: context.ended.wait(60), interrupted)
    assert polls == [context.group]
