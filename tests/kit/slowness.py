"""How much slower this machine is now than the one that limits of CPU time were set on.

Another process on the same core, or on its other hardware thread, adds to CPU time too. A limit
holds on a loaded machine if what was measured is divided by the slowness at that moment.
"""

from __future__ import annotations

import time

REFERENCE_S = 0.0005
"""CPU time of `fixed_work` on the machine the limits were set on."""
REPEATED = 3


def fixed_work() -> float:
    """CPU seconds of a computation that is always the same."""
    began = time.thread_time()
    table: dict[str, int] = {}
    for number in range(5_000):
        table[str(number)] = number
    return time.thread_time() - began


def slowness() -> float:
    """1.0 on the machine of the limits; the least of some measurements of 0.5 ms each."""
    return min(fixed_work() for _ in range(REPEATED)) / REFERENCE_S
