"""A broker with sockets inside the test's own loop: fast to start, easy to inspect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kafkawire.broker.options import Listener, ServeOptions
from kafkawire.log.io.disk import real_env
from kafkawire.server.run import Server

QUICK = {"group.initial.rebalance.delay.ms": "0", "journal.bytes": str(1 << 20)}


def options(data: Path, **settings: str) -> ServeOptions:
    """Settings of a broker on a free port; by name with underscores for dots."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ServeOptions(
        listeners=[Listener("PLAINTEXT", "127.0.0.1", 0)],
        advertised={"PLAINTEXT": ("127.0.0.1", 0)},
        data=str(data),
        metadata_url=f"sqlite+aiosqlite:///{data}/metadata.db",
        settings={**QUICK, **named},
    )


@asynccontextmanager
async def running(data: Path, **settings: str) -> AsyncIterator[Server]:
    """A started server, closed in order at the end."""
    data.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a test may block its loop)
    server = await Server.start(options(data, **settings), real_env())
    try:
        yield server
    finally:
        await server.close()


def port_of(server: Server) -> int:
    """The port that the server listens on."""
    return server.broker.listeners["PLAINTEXT"][1]
