"""Run after run, until it is told to end: a run that is under way is brought to its end."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kafkawire.spark.pipeline.engine import RunOutcome
from kafkawire.spark.pipeline.section import JobError
from kafkawire.spark.source.model import DataLoss, SourceError

TRIES = 5
"""Runs in a row that may fail because a place or a broker cannot be reached; then it ends."""


@contextmanager
def until_signalled() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one interrupts as usual."""
    event = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_signal(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        print("kafkawire: ends after this run; once more interrupts it", file=sys.stderr)

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
    """Begin a run each `every_s` seconds, at once where the last one took longer or left something
    behind that a bound of its own kept it from. `report` of each run, `failed` of one that will be
    tried again after so many seconds. SourceError where trying again is no use, or has been."""
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
