"""Limits of connections that one listener has of its own (KIP-402, KIP-612).

They hold in addition to those of the whole broker. A connection over `max.connections` is closed at
once; one over `max.connection.creation.rate` is accepted and read later. Kafka accepts both later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.codec.configs.listeners import MAX_CONNECTIONS, MAX_CREATION_RATE
from kafkawire.codec.configs.row import INT32_MAX
from kafkawire.log_lines import LineLimit
from kafkawire.security.quotas.arithmetic import Rate, SampleWindow

if TYPE_CHECKING:
    from kafkawire.codec.configs.listeners import ListenerConfig
    from kafkawire.metric_counters import Counts

logger = logging.getLogger(__name__)

LINES, LINES_PER_S = 10, 1 / 60
"""Lines about refused connections at once, and per second after that: clients retry at once."""


class ListenerLimits:
    """Counts the connections of one listener. Create it with `for_listener`."""

    def __init__(
        self, name: str, own: ListenerConfig, counts: Counts, now: Callable[[], float]
    ) -> None:
        config = own.config
        self._name = name
        self._max = config.max_connections if MAX_CONNECTIONS in own.own else INT32_MAX
        per_second = config.max_connection_creation_rate
        self._per_second = per_second if MAX_CREATION_RATE in own.own else INT32_MAX
        self._counts = counts
        self._now = now
        self._open = 0
        window = SampleWindow(config.quota_window_num, config.quota_window_size_seconds * 1000)
        self._rate = Rate(window)
        self._lines = LineLimit(now, LINES, LINES_PER_S)

    @classmethod
    def for_listener(
        cls, name: str, own: ListenerConfig, counts: Counts, now: Callable[[], float]
    ) -> ListenerLimits | None:
        """Return the limits of a listener; None if it has none of its own."""
        if own.own.keys() & {MAX_CONNECTIONS, MAX_CREATION_RATE}:
            return cls(name, own, counts, now)
        return None

    def admit(self) -> bool:
        """Count a new connection, unless there are too many. Otherwise `note_closed` must be
        called when it is closed."""
        if self._open < self._max:
            self._open += 1
            return True
        omitted = self._lines.admit()
        if omitted is not None:
            logger.warning(
                "listener %s has %d connections, the most that listener.name.%s.%s allows: closed "
                "a new one (%d more since the last line); raise the setting, or find the client "
                "that opens so many",
                self._name, self._open, self._name.lower(), MAX_CONNECTIONS, omitted,
            )  # fmt: skip
        self._counts.connections_refused += 1
        return False

    def note_closed(self) -> None:
        """Count a closed connection."""
        self._open -= 1

    def delay_ms(self) -> int:
        """Record a new connection; return how long it must wait if there are too many in a short
        time."""
        if self._per_second == INT32_MAX:
            return 0
        now_ms = int(self._now() * 1000)
        self._rate.record(1, now_ms)
        return self._rate.delay_ms(self._per_second, now_ms)
