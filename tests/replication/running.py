"""A follower's server in this process, for tests over sockets."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from pathlib import Path

from kafkawire.replication.connection import TimeLimits
from kafkawire.replication.follower import Follower
from kafkawire.replication.machine import Files, failed_sync, monotonic
from kafkawire.replication.messages import ErrorMessage, Purpose
from kafkawire.replication.server import FollowerServer
from tests.kit.waiting import WITHIN_S
from tests.replication.client import Client
from tests.replication.model import NODE, ModelLog


class SlowFiles(Files):
    """Real files whose syncs can be stopped, or fail."""

    def __init__(self) -> None:
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.is_syncing = threading.Event()
        self.fails = False
        self.syncs = 0

    def sync(self, fd: int, path: str) -> None:
        self.syncs += 1
        self.is_syncing.set()
        assert self.may_sync.wait(WITHIN_S)
        if self.fails and path.endswith(".journal"):
            raise failed_sync(path, OSError(5, "Input/output error"))
        super().sync(fd, path)


class Running:
    """A follower that serves on a port."""

    def __init__(
        self,
        folder: Path,
        cluster: str = "",
        limits: TimeLimits = TimeLimits(),  # noqa: B008
        max_connections: int = 64,
    ) -> None:
        self.files = SlowFiles()
        self.follower = Follower(self.files, str(folder))
        self.key = self.follower.identity.key
        self.fatal: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(listener.getsockname()[1])
        self.server = FollowerServer(
            self.follower,
            [listener],
            cluster,
            monotonic,
            self.fatal.append,
            limits,
            max_connections,
        )
        self.server.start()

    def client(self, purpose: Purpose, epoch: int, node: int = NODE) -> Client:
        """Return a connection that has said HELLO."""
        client = Client(self.port)
        client.hello(self.key, purpose, epoch, node)
        return client

    @property
    def connections(self) -> int:
        return len(self.server._connections)

    def close(self) -> None:
        self.files.may_sync.set()
        self.server.close()
        with contextlib.suppress(Exception):
            self.follower.close()


def model(epoch: int = 1, sizes: tuple[int, ...] = (3000, 2000)) -> ModelLog:
    log = ModelLog(epoch, random.Random(epoch), 5)
    for index, size in enumerate(sizes):
        if index:
            log.roll()
        log.append(size)
    return log


def refusal(client: Client) -> str:
    """Return the text of the ERROR that ends a connection."""
    text = client.expect(ErrorMessage).text
    assert client.receive() is None
    return text
