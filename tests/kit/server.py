"""A broker with sockets inside the test's own loop: fast to start, easy to inspect."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from kafkawire.broker.options import Listener, SecurityProtocol, ServeOptions
from kafkawire.log.io.disk import real_env
from kafkawire.metadata.database import Database
from kafkawire.server.run import Server

PLAINTEXT = ("PLAINTEXT",)
METADATA = "metadata.db"
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "journal.bytes": str(1 << 20),
    "log.retention.ms": "-1",  # the records of many tests are old
}


def options(
    data: Path,
    protocols: Sequence[str] = PLAINTEXT,
    metadata: str | None = None,
    **settings: str,
) -> ServeOptions:
    """Settings of a broker with listeners on free ports; by name with underscores for dots.
    `metadata`: a URL, None: a file in the data folder."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ServeOptions(
        listeners=[Listener(each, "127.0.0.1", 0, SecurityProtocol(each)) for each in protocols],
        advertised=dict.fromkeys(protocols, ("127.0.0.1", 0)),
        data=str(data),
        metadata_url=metadata or f"sqlite+aiosqlite:///{data}/{METADATA}",
        settings={**QUICK, **named},
    )


_empty_metadata: list[bytes] = []
"""The file of metadata without rows, once a worker has created it."""


async def _make_tables(data: Path) -> None:
    """Copy a file of metadata without rows into a new data folder: creating its tables would take
    a third of the CPU time of a start."""
    if not _empty_metadata:
        with tempfile.TemporaryDirectory(prefix="kafkawire-metadata-") as folder:
            file = Path(folder, METADATA)
            database = Database(f"sqlite+aiosqlite:///{file}")
            await database.open()
            await database.close()
            _empty_metadata.append(file.read_bytes())  # noqa: ASYNC240 (a test may block its loop)
    (data / METADATA).write_bytes(_empty_metadata[0])


@asynccontextmanager
async def running(
    data: Path,
    protocols: Sequence[str] = PLAINTEXT,
    metadata: str | None = None,
    **settings: str,
) -> AsyncIterator[Server]:
    """A started server, closed in order at the end; `metadata` as of `options`."""
    data.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 (a test may block its loop)
    if metadata is None and not any(data.iterdir()):  # noqa: ASYNC240
        await _make_tables(data)
    server = await Server.start(options(data, protocols, metadata, **settings), real_env())
    try:
        yield server
    finally:
        await server.close()


def port_of(server: Server, listener: str = "PLAINTEXT") -> int:
    """The port that the server listens on."""
    return server.broker.listeners[listener][1]
