"""Disconnects idle connections, and slow ones that hold memory others wait for.

While memory suffices clients may be slow, as with Kafka. But what is sent from one file must leave
within `connections.max.idle.ms`: the file cannot be deleted meanwhile, and no client waits so long
for a response. When others wait for memory (of requests being received or of responses), a
connection that holds some must keep a minimum rate. A client that does not read its responses, or
sends a large request too slowly, is disconnected with a log line.

Pure; called by `server.host` once a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from kafkawire.server.receiving import DRAINING

if TYPE_CHECKING:
    from kafkawire.metric_counters import Counts
    from kafkawire.server.connection import Connection, ConnectionHost

WINDOW_TICKS = 3
"""Window of the rates in seconds: longer than the retransmission of a lost packet."""
PARKED_WINDOW_TICKS = 30
"""The same for responses queued after a parked one of their connection, which may wait as long as a
Fetch or a rebalance."""
LEAST_RATE = 64 << 10
"""Minimum bytes a second: half a megabit, or a request of 1 MiB in 16 seconds."""
WITHIN_S = 60
"""All held bytes must also move within a minute: 1.7 MiB a second for 100 MiB."""
STALLED_TICKS = 60
"""A request without a new byte for this long will not be completed: clients give up after 30 s
(librdkafka: 60 s)."""
UNUSED_TICKS = 10
"""At `max.connections`, a connection without a request for this long is closed."""


class Rates:
    """Rates of connections between two sweeps while others wait for memory."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        # start of the window, bytes moved by then
        self._marks: dict[Connection, tuple[int, int]] = {}

    def clear(self) -> None:
        """Reset all rates, because no connection waits."""
        self._marks.clear()

    def slow(
        self, tick: int, holders: Iterable[tuple[Connection, int, int, int]]
    ) -> list[tuple[Connection, int, int]]:
        """Return those of (connection, held bytes, bytes moved so far, window in ticks) that are
        too slow, with their held bytes and rate."""
        found: list[tuple[Connection, int, int]] = []
        marks: dict[Connection, tuple[int, int]] = {}
        for connection, held, moved, window in holders:
            since, before = self._marks.get(connection, (tick, moved))
            if moved < before:
                since, before = tick, moved  # restarted
            if tick - since >= window:
                rate = (moved - before) // (tick - since)
                if rate < max(LEAST_RATE, held // WITHIN_S):
                    found.append((connection, held, rate))
                    continue
                since, before = tick, moved
            marks[connection] = since, before
        self._marks = marks
        return found


class Sweeper:
    """Closes idle, stalled and slow connections."""

    __slots__ = ("_connections", "_counts", "_host", "_receiving", "_sending", "_unused_tick")

    def __init__(self, host: ConnectionHost, connections: Collection[Connection]) -> None:
        self._host = host
        self._connections = connections
        self._counts: Counts = host.counts
        self._receiving = Rates()
        self._sending = Rates()
        self._unused_tick = 0

    def sweep(self, idle_ticks: float) -> None:
        """Called every tick. `idle_ticks`: connections.max.idle.ms; negative: never."""
        tick = self._host.tick
        if self._host.answers.short:
            for connection, held, rate in self._sending.slow(tick, self._behind()):
                self._close(
                    connection, "slow_reader",
                    f"other connections wait for the memory of {held} bytes of responses that "
                    f"it has not read; it reads {rate} bytes a second",
                )  # fmt: skip
        else:
            self._sending.clear()
        if self._host.memory.waiting:
            for connection, held, rate in self._receiving.slow(tick, self._incomplete()):
                self._close(
                    connection, "slow_sender",
                    f"other connections wait for the memory of {held} bytes of requests that it "
                    f"sends; it sends {rate} bytes a second",
                )  # fmt: skip
        else:
            self._receiving.clear()
        if tick % max(1, min(STALLED_TICKS, abs(int(idle_ticks))) // 10) == 0:
            self._close_stalled(tick, idle_ticks)

    def _close_stalled(self, tick: int, idle_ticks: float) -> None:
        for connection in list(self._connections):
            quiet = tick - connection.tick
            behind = connection.waits & DRAINING
            if behind and connection.moves():
                since = connection.sending_since
                if 0 <= idle_ticks < tick - since and since >= 0:
                    self._close(
                        connection, "slow_reader",
                        f"it has not read a response in {tick - since} s, whose file cannot be "
                        "deleted meanwhile",
                    )  # fmt: skip
                continue
            if quiet > STALLED_TICKS and connection.is_receiving():
                self._close(connection, "stalled", f"no byte of its request arrived for {quiet} s")
            elif 0 <= idle_ticks < quiet and (behind or not connection.exchanges):
                self._close(connection, "idle", "idle")

    def make_room(self) -> bool:
        """Close the connection without a request that has been open longest, if there is one."""
        tick = self._host.tick
        if self._unused_tick == tick:
            # one a second, because each scan takes a millisecond for 10,000 connections
            return False
        self._unused_tick = tick
        unused = [each for each in self._connections if each.last_key < 0]
        oldest = min(unused, key=lambda each: each.tick, default=None)
        if oldest is None or tick - oldest.tick < UNUSED_TICKS:
            return False
        self._close(
            oldest, "unused", "it has not sent a request, and other clients want to connect"
        )
        return True

    def _behind(self) -> Iterator[tuple[Connection, int, int, int]]:
        for each in self._connections:
            if each.held_bytes:
                window = WINDOW_TICKS if each.waits & DRAINING else PARKED_WINDOW_TICKS
                yield each, each.held_bytes, -each.wire.unsent_bytes(), window

    def _incomplete(self) -> Iterator[tuple[Connection, int, int, int]]:
        for each in self._connections:
            if each.kept is not None and (each.is_receiving() or each.waits & DRAINING):
                yield each, each.kept.charged, each.kept_total, WINDOW_TICKS

    def _close(self, connection: Connection, kind: str, reason: str) -> None:
        if not connection.closed:
            closed = self._counts.connections_closed
            closed[kind] = closed.get(kind, 0) + 1
            connection.abort(reason)
