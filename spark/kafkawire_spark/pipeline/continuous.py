"""Continuous mode: run after run until stopped; a run in progress is completed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kafkawire.reading.model.source import DataLoss, SourceError
from kafkawire_spark.pipeline.engine import RunOutcome
from kafkawire_spark.pipeline.jobs.section import JobError

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
