"""Requests to the other brokers of the cluster: one connection to each, in threads.

A connection (kafkawire.client) has one request at a time. Requests that wait for their turn fail
with the one before them: none waits for several timeouts of a broker that does not answer. Used for
transactions: markers (kafkawire.broker.remote_markers) and verification
(kafkawire.broker.remote_coordinators), each with connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError
from kafkawire.client.security import NO_SECURITY, ClientSecurity
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.ports import Env
from kafkawire.metadata.catalog import Catalog

CONNECT_TIMEOUT_S = 5.0
"""Time for connecting: a stop of this broker waits for it."""

Address = tuple[str, int]


class OtherBrokers:
    """Connections to other brokers. `listeners`: names of listeners, of which the first that the
    other broker has is used; `security` returns encryption and log-in of a new connection, in any
    thread, or raises ClientError."""

    def __init__(
        self,
        env: Env,
        catalog: Catalog,
        listeners: Iterable[str],
        security: Callable[[], ClientSecurity] = lambda: NO_SECURITY,
    ) -> None:
        self._security = security
        self._env = env
        self._catalog = catalog
        self._listeners = tuple(listeners)
        self._connections: dict[int, tuple[Address, ClientConnection]] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._failures: dict[int, int] = {}
        self._closed = False

    async def request(self, broker: int, key: int, message: object) -> Any:
        """Send a request to a broker and return its decoded response. Raises KafkaError:
        BROKER_NOT_AVAILABLE without an address, NETWORK_EXCEPTION if the outcome is unknown."""
        address = self._address(broker)
        before = self._failures.get(broker, 0)
        async with self._locks.setdefault(broker, asyncio.Lock()):
            if self._failures.get(broker, 0) != before:
                text = f"broker {broker} did not answer the request before"
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, text)
            try:
                return await self._env.offload.submit(
                    "brokers", self._exchange, broker, address, key, message
                )
            except ClientError as error:
                self._failures[broker] = before + 1
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error)) from None

    def close(self) -> None:
        """End every connection; a request that waits for its answer fails."""
        self._closed = True
        for _, connection in list(self._connections.values()):
            connection.close()

    def _address(self, broker: int) -> Address:
        info = self._catalog.brokers.get(broker)
        offered = {} if info is None else info.listeners
        for name in (*self._listeners, *offered):
            if name in offered:
                return offered[name]
        raise KafkaError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not registered with an address"
        )

    def _exchange(self, broker: int, address: Address, key: int, message: object) -> Any:
        """Send a request and wait for its answer; runs in a thread."""
        known, connection = self._connections.get(broker, (None, None))
        if connection is not None and known != address:
            connection.close()
            connection = None
        if connection is None:
            connection = ClientConnection(
                *address, connect_timeout_s=CONNECT_TIMEOUT_S, security=self._security()
            )
            self._connections[broker] = address, connection
        try:
            if self._closed:
                raise ClientError("this broker is stopping")
            return connection.request(key, message)
        except BaseException:
            connection.close()
            self._connections.pop(broker, None)
            raise


def known_code(number: int) -> ErrorCode:
    """The error code that another broker answered."""
    return ErrorCode(number) if number in set(ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
