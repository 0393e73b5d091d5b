"""CPU time of one request on a machine that does other things too.

Another process on the same core, or on its other hardware thread, adds to CPU time: caches are
spoiled, and each instruction takes longer. So a request that seems to take too long is repeated
with growing pauses, each time divided by how much slower a computation of the same kind was at
that moment, and the least counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_ATTEMPTS = 30
PAUSE_STEP_S = 0.02
"""The pause before a repetition grows by this much: all of them take 9 seconds."""
REFERENCE_S = 0.005
"""CPU time of `fixed_work` on the machine the limits were set on."""
MAX_SLOWNESS = 4.0
"""A slower machine would hide what the limits are for."""


def fixed_work() -> float:
    """CPU seconds of a computation that is always the same: a set as large as the arrays of a
    request is built and freed."""
    began = time.thread_time()
    seen: set[tuple[int, str]] = set()
    for number in range(24_000):
        seen.add((number, str(number)))
    del seen
    return time.thread_time() - began


def slowness() -> float:
    """How much slower this machine is now than the one of the limits; 1.0 to MAX_SLOWNESS."""
    measured = min(fixed_work(), fixed_work()) / REFERENCE_S
    return min(MAX_SLOWNESS, max(1.0, measured))


def least_cpu_time(measure: Callable[[], float], limit_s: float) -> float:
    """CPU seconds on the machine of the limits: the least of some measurements. The first that is
    within the limit ends the search."""
    least = float("inf")
    for number in range(MAX_ATTEMPTS):
        time.sleep(number * PAUSE_STEP_S)
        took = measure()
        if took > limit_s:
            took /= slowness()
        least = min(least, took)
        if least <= limit_s:
            break
    return least
