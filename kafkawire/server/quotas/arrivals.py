"""New connections: limits per address and per second (KIP-402, KIP-612). `server.host` has that of
all connections.

A connection over `max.connections.per.ip` is closed at once. One over max.connection.creation.rate
is accepted and read later, where Kafka accepts it later. One over an address's quota
connection_creation_rate is not served, and closed after the delay, which slows clients that connect
again at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.codec.configs.parse import address_limits
from kafkawire.codec.configs.row import INT32_MAX
from kafkawire.log_lines import LineLimit
from kafkawire.plural import count
from kafkawire.security.quotas.alterations import address_of
from kafkawire.security.quotas.arithmetic import Rate, SampleWindow

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Timer
    from kafkawire.metric_counters import Counts
    from kafkawire.security.quotas.service import Quotas
    from kafkawire.server.connection import Connection

logger = logging.getLogger(__name__)

LINES, LINES_PER_S = 10, 1 / 60
"""Lines about refused connections at once, and per second after that: clients retry at once."""
LATER_MS = 1_000
"""A connection that will be closed is muted for so much longer, so that nothing of it is served."""


class Arrivals:
    """Counts connections by address, and delays or refuses new ones."""

    def __init__(
        self,
        config: BrokerConfig,
        quotas: Quotas,
        counts: Counts,
        now: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._config = config
        self._quotas = quotas
        self._counts = counts
        self._now = now
        self._call_later = call_later
        self._open: dict[str, int] = {}
        self._rate = Rate(
            SampleWindow(config.quota_window_num, config.quota_window_size_seconds * 1000)
        )
        self._lines = LineLimit(now, LINES, LINES_PER_S)

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if its address has too many. Otherwise
        `note_closed` must be called when it is closed."""
        have = self._open.get(address, 0)
        if have >= self._limit_of(address):
            omitted = self._lines.admit()
            if omitted is not None:
                logger.warning(
                    "%s has %s, the most that max.connections.per.ip allows: closed a new one "
                    "(%d more since the last line); raise the setting, or find the client that "
                    "opens so many", address, count(have, "open connection"), omitted,
                )  # fmt: skip
            self._counts.connections_refused += 1
            return False
        self._open[address] = have + 1
        return True

    def note_closed(self, address: str) -> None:
        """Count a closed connection."""
        have = self._open.pop(address, 0)
        if have > 1:
            self._open[address] = have - 1

    def delay(self, connection: Connection) -> None:
        """Mute a new connection if there are too many in a short time."""
        limit = self._config.max_connection_creation_rate
        if limit < INT32_MAX:
            now_ms = int(self._now() * 1000)
            self._rate.record(1, now_ms)
            delay_ms = self._rate.delay_ms(limit, now_ms)
            if delay_ms:
                connection.throttle(delay_ms)
        if self._quotas.of_connections:
            address = address_of(connection.client_host)
            delay_ms = 0 if address is None else self._quotas.sensors.record_connection(address)
            if delay_ms:
                connection.throttle(delay_ms + LATER_MS)
                self._call_later(delay_ms / 1000, connection.finish)

    def _limit_of(self, address: str) -> int:
        config = self._config
        overrides = config.max_connections_per_ip_overrides
        if overrides:
            limit = address_limits(overrides).get(address_of(address) or "")
            if limit is not None:
                return limit
        return config.max_connections_per_ip
