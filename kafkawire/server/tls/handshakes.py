"""Bounds for handshakes of all TLS listeners: their processor time, number and memory.

A step of a handshake computes for 0.2 ms (P-256) to 1.5 ms (RSA). Steps wait in a queue, of which
an event-loop iteration takes a few. A started handshake has 45 KB of OpenSSL's memory, which a
client obtains for 500 bytes; so their number is limited. While it is reached, the one that has
waited longest for its client gives way, unless it began just now: a client answers within a round
trip, and clients that never do delay others by a second for each MAX_STARTED of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

HANDSHAKE_TIMEOUT_S = 10.0
"""From the connection to the end of the handshake."""
STEP_BUDGET_S = 0.002
"""Processor time of steps in an event-loop iteration; the last one may exceed it."""
MAX_STEPS = 64
"""Steps in an event-loop iteration, should the clock not advance."""
MAX_STARTED = 1024
"""Handshakes with memory of OpenSSL: 45 MB."""
LEAST_S = 1.0
"""How long a started handshake may wait for its client before it may give way to others."""


RETRY_S = 0.05
"""Interval of trying to start more while MAX_STARTED is reached."""


class Handshaking(Protocol):
    """A connection in its handshake."""

    def step(self) -> None:
        """Continue with the bytes that have arrived; closes the connection if they are wrong. Does
        nothing if it is closed already."""

    def give_way(self) -> None:
        """Close the connection: others wait."""


class Handshakes:
    """The queues of steps, and the started handshakes in the order of their start."""

    def __init__(
        self,
        now: Callable[[], float],
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._now = now
        self._call_soon = call_soon
        self._call_later = call_later
        self._ready: deque[Handshaking] = deque()  # started ones
        self._new: deque[Handshaking] = deque()
        self._started: dict[Handshaking, float] = {}  # when
        self._scheduled = False

    def enqueue(self, one: Handshaking) -> None:
        """Have its next step done soon."""
        (self._ready if one in self._started else self._new).append(one)
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._run)

    def remove(self, one: Handshaking) -> None:
        """Remove a handshake that is finished, or whose connection is closed."""
        self._started.pop(one, None)

    def _run(self) -> None:
        until = self._now() + STEP_BUDGET_S
        full = False
        for _ in range(MAX_STEPS):
            if self._ready:
                self._ready.popleft().step()
            elif not self._new:
                break
            elif self._make_room():
                one = self._new.popleft()
                self._started[one] = self._now()
                one.step()
            else:
                full = True
                break
            if self._now() >= until:
                break
        self._scheduled = bool(self._ready or self._new)
        if full:
            self._call_later(RETRY_S, self._run)
        elif self._scheduled:
            self._call_soon(self._run)

    def _make_room(self) -> bool:
        """Return whether one more may start, after closing the oldest if it may be closed."""
        if len(self._started) < MAX_STARTED:
            return True
        oldest, since = next(iter(self._started.items()))
        if self._now() - since < LEAST_S:
            return False
        self.remove(oldest)
        oldest.give_way()
        return True
