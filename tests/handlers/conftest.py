"""A broker and a client of it, for tests of handlers that need sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.server import port_of, running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with running(tmp_path / "data", flush="commit") as started:
        yield started


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    connected = await Client.connect(port_of(server))
    yield connected
    await connected.close()
