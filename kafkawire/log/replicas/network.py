"""Connections to followers: a port, and TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Network(Protocol):
    """Connects to followers."""

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Transport:
        """Return a new connection, whose events the protocol that `factory` returns takes. Raises
        OSError."""


class TcpNetwork:
    """Connections over TCP, of the running event loop."""

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(factory, host, port)
        return transport


async def open_streams(
    network: Network, host: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as asyncio.open_connection does. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = await network.connect(lambda: protocol, host, port)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
