"""Clients that are not logged in yet: how many there may be, and how long they may take.

A stranger may hold a connection, a request of `sasl.server.max.receive.size` and the delay of its
failure; so their number is limited, in total and per address. Called by `server.sasl_connection`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkawire.log_lines import LineLimit, shorten_for_log

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.security.sasl.service import LoginService

logger = logging.getLogger(__name__)

REFUSED_BURST, REFUSED_PER_S = 20, 1.0
"""Log lines about refused log-ins at once, and per second after that: clients retry."""


class LoggingIn(Protocol):
    """The connection of a client that logs in."""

    client_host: str
    listener: str

    def abort(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ListenerLogins:
    """The log-ins of one listener: those in progress on all of them, and its own mechanisms."""

    all: Logins
    service: LoginService


class Logins:
    """The log-ins in progress on all listeners with SASL."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.env = broker.env
        self.config = broker.config
        self._deadlines: dict[LoggingIn, float] = {}  # in their order
        self._per_host: dict[str, int] = {}
        self._counted: dict[LoggingIn, str] = {}  # not logged in, with their address
        self._lines = LineLimit(broker.env.clock.monotonic, REFUSED_BURST, REFUSED_PER_S)

    def admit(self, connection: LoggingIn) -> bool:
        """Count a new connection, unless there are too many that are not logged in."""
        host = connection.client_host
        of_host = self._per_host.get(host, 0)
        if len(self._counted) >= self.config.sasl_login_max_connections:
            self._note_refusal(
                f"{len(self._counted)} connections", "sasl.login.max.connections", host
            )
            return False
        if of_host >= self.config.sasl_login_max_connections_per_ip:
            what = f"{of_host} connections from there"
            self._note_refusal(what, "sasl.login.max.connections.per.ip", host)
            return False
        self._per_host[host] = of_host + 1
        self._counted[connection] = host
        self.start_login(connection)
        return True

    def _note_refusal(self, what: str, setting: str, host: str) -> None:
        self.broker.counts.logged_in("", "refused")
        omitted = self._lines.admit()
        if omitted is not None:
            logger.warning(
                "closed a connection from %s: %s are not logged in, the most that %s allows%s",
                host, what, setting, _more(omitted),
            )  # fmt: skip

    def start_login(self, connection: LoggingIn) -> None:
        """Start the time limit of a log-in."""
        limit_s = self.config.sasl_login_timeout_ms / 1000
        self._deadlines.pop(connection, None)
        self._deadlines[connection] = self.env.clock.monotonic() + limit_s

    def end_login(self, connection: LoggingIn) -> None:
        """Count a connection no longer: it is logged in, or closed."""
        self._deadlines.pop(connection, None)
        host = self._counted.pop(connection, None)
        if host is not None:
            self._per_host[host] -= 1
            if not self._per_host[host]:
                del self._per_host[host]

    def sweep(self) -> None:
        """Called every second: close connections that have taken too long."""
        now = self.env.clock.monotonic()
        late = []
        for connection, deadline in self._deadlines.items():
            if deadline > now:
                break
            late.append(connection)
        for connection in late:
            self.end_login(connection)
            self.broker.counts.logged_in("", "timed_out")
            connection.abort(
                f"it has not logged in within {self.config.sasl_login_timeout_ms} ms "
                "(sasl.login.timeout.ms)"
            )

    def note_failed_login(
        self, connection: LoggingIn, mechanism: str, user: str, cause: str
    ) -> None:
        """Count a refused log-in, record it in the audit log, and log it at a bounded rate."""
        self.broker.counts.logged_in(mechanism, "failed")
        self.broker.security.audit.authentication_failed(
            connection.client_host, connection.listener, mechanism, cause, user
        )
        omitted = self._lines.admit()
        level = logging.DEBUG if omitted is None else logging.INFO
        who = f"user {shorten_for_log(user)}" if user else "a client"
        logger.log(
            level, "refused the log-in of %s at %s on listener %s%s: %s%s", who,
            connection.client_host, connection.listener, mechanism and f" with {mechanism}", cause,
            _more(omitted or 0),
        )  # fmt: skip


def _more(omitted: int) -> str:
    return f" ({omitted} more since the last line)" if omitted else ""
