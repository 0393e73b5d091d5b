"""Run seeds of a simulation: quietly, ten to a test, with the failing seed in the failure
message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE = 10
"""Seeds of one test: so many that the cost of starting the test does not matter."""


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log lines of simulated brokers."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def run_seeds(simulate: Callable[[int], object], first: int, end: int) -> None:
    """The seeds from `first` on, AT_ONCE of them, below `end`."""
    with quiet():
        for seed in range(first, min(first + AT_ONCE, end)):
            try:
                simulate(seed)
            except BaseException as failure:
                failure.add_note(f"seed {seed}")
                raise
