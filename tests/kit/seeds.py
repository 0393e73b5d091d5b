"""Running seeds of a simulation: quiet, ten to a test, a failing one named in the failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AT_ONCE = 10
"""Seeds of one test: enough that starting it costs nothing beside them."""


@contextmanager
def quiet() -> Iterator[None]:
    """What a simulated broker logs is no news."""
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
