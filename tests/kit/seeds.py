"""Run seeds of a simulation: quietly, ten to a test, with the failing seed in the failure message;
or until one fails, with a mutation of the product."""

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


def first_failing(simulate: Callable[[int], object], seeds: range) -> int:
    """Return the first seed with which a check fails; -1 if there is none."""
    with quiet():
        for seed in seeds:
            try:
                simulate(seed)
            except (AssertionError, TimeoutError):
                return seed
    return -1
