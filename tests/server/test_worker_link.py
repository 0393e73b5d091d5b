"""A worker's connection to its supervisor.

Covers: kafkawire.server.worker.link, kafkawire.server.worker.link.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from kafkawire.server.worker import link as module
from kafkawire.server.worker.link import SupervisorLink, accept_on
from tests.kit.server import running
from tests.kit.waiting import until


class Ends:
    """Both ends of the connection: `lines` were received by the supervisor."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        self.stopped: list[bool] = []
        self.link = SupervisorLink(theirs.detach(), lambda: self.stopped.append(True))
        self.data = b""

    @property
    def lines(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            self.data += self.socket.recv(4096)
        return self.data.split(b"\n")[:-1]


@pytest.fixture
async def ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ends]:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    made = Ends()
    yield made
    made.link.close()
    made.socket.close()


async def test_beats_while_the_loop_runs(ends: Ends) -> None:
    await until(lambda: len(ends.lines) >= 3)
    assert set(ends.lines) == {b"beat"}
    assert not ends.stopped


async def test_end_of_supervisor_stops_the_worker_once(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        ends.socket.close()
        await until(lambda: bool(ends.stopped))
        await asyncio.sleep(0.05)  # beats after it are dropped
    assert ends.stopped == [True]
    assert [each.message for each in caplog.records] == [
        "the supervisor of the workers has ended, so this worker stops"
    ]


async def test_supervisor_that_is_stopped_does_not_hold_up_the_worker(ends: Ends) -> None:
    for _ in range(100_000):
        ends.link._send(module.BEAT)
    assert not ends.stopped


async def test_worker_knows_of_others_before_their_heartbeats(tmp_path: Path, ends: Ends) -> None:
    ends.socket.send(b"1 7\n")  # before it serves: the supervisor sends it again
    async with running(tmp_path) as server:
        await server.broker.metadata.register_broker(2, {"PLAINTEXT": ("h", 1)}, None)
        assert server.broker.liveness.may_lead() == [1]
        opened: list[bool] = []

        async def open_shared() -> None:
            opened.append(True)

        ends.link.send_ready(server.broker, open_shared)
        await until(lambda: b"ready" in ends.lines)
        for part in (b"1", b" 2", b"\n"):
            ends.socket.send(part)
        await until(lambda: b"knows 1 2" in ends.lines)
        assert server.broker.liveness.may_lead() == [1, 2]
        assert 2 in server.broker.catalog.brokers
        assert not opened
        ends.socket.send(b"open\n1 2\nopen\n")
        await until(lambda: bool(opened))
        await until(lambda: ends.lines.count(b"knows 1 2") == 2)
        assert opened == [True]


async def test_two_processes_accept_on_one_socket() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    made: list[int] = []

    class Greeting(asyncio.Protocol):
        def __init__(self, number: int) -> None:
            made.append(number)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    servers = []
    for number in (1, 2):
        copy = listening.dup().detach()
        servers += await accept_on([copy], partial(Greeting, number), 5)
    address = listening.getsockname()
    for server in servers:
        _, writer = await asyncio.open_connection(*address)
        writer.close()
        server.close()
        await server.wait_closed()
    await until(lambda: len(made) == 2)
    with socket.create_connection(address, 5):  # the socket listens without them
        pass
    listening.close()
