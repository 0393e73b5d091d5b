"""Connections to followers: a port, and TCP."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from kafkawire.replication.certificate import client_context

NO_ROUTE = (errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Errors of an address that this machine cannot connect to at all: an IPv6 one without IPv6."""


class Network(Protocol):
    """Connects to followers."""

    async def connect(
        self,
        factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        certificate: str = "",
    ) -> asyncio.Transport:
        """Return a new connection; its events are calls of the protocol that `factory` returns.
        `certificate`: the one that the follower must have, as PEM; empty: without TLS. Raises
        OSError: ConnectionRefusedError if nothing listens there."""


class TcpNetwork:
    """Connections over TCP, of the running event loop."""

    async def connect(
        self,
        factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        certificate: str = "",
    ) -> asyncio.Transport:
        context = client_context(certificate) if certificate else None
        # One address at a time: of several, asyncio and uvloop raise a plain OSError.
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as wrong:
            raise OSError(f"{host!r} is not a name of a host: {wrong}") from wrong
        failures: list[OSError] = []
        for family, _, _, _, address in found:
            try:
                transport, _ = await loop.create_connection(
                    factory, str(address[0]), port, family=family, ssl=context,
                    server_hostname="" if context is not None else None,
                )  # fmt: skip
            except OSError as failure:
                failures.append(failure)
            else:
                return transport
        raise join_failures(failures)


def join_failures(failures: Sequence[OSError]) -> OSError:
    """Return one failure for those of all addresses of a host. Addresses that this machine has no
    route to count only if there are no others: ConnectionRefusedError if nothing listens at any of
    these, the error number of the first one if none of them has answered."""
    if len(failures) == 1:
        return failures[0]
    texts = dict.fromkeys(each.strerror or str(each) for each in failures)
    text = "; ".join(texts) or "the host has no address"
    counted = [each for each in failures if each.errno not in NO_ROUTE] or failures
    refused = [each for each in counted if isinstance(each, ConnectionRefusedError)]
    if counted and (not refused or len(refused) == len(counted)):
        return OSError(counted[0].errno, text)  # of the class that belongs to the number
    return OSError(text)


async def open_streams(
    network: Network, host: str, port: int, certificate: str = ""
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as asyncio.open_connection does. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = await network.connect(lambda: protocol, host, port, certificate)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
