"""Listening sockets that a worker got from the supervisor, by their descriptors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable


async def accept_on(
    descriptors: Iterable[int], protocol: Callable[[], asyncio.BaseProtocol], backlog: int
) -> list[asyncio.Server]:
    """Accept connections on sockets that other processes may accept on, too. Closing what is
    returned closes this process's descriptors; the sockets listen as long as the supervisor runs.
    """
    loop = asyncio.get_running_loop()
    return [
        await loop.create_server(protocol, sock=socket.socket(fileno=each), backlog=backlog)
        for each in descriptors
    ]
