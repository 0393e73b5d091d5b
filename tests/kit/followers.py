"""Followers in threads of the test process, on free ports."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from kafkawire.metadata.sql import SqlMetadata
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet
from kafkawire.replication import certificate
from kafkawire.replication.follower import Follower
from kafkawire.replication.machine import Files
from kafkawire.replication.server import FollowerServer


class RunningFollower:
    """The follower of a machine, as that of broker `node_id`. `port` stays the same over starts;
    `encrypts`: its connections have TLS."""

    def __init__(self, folder: Path, node_id: int, encrypts: bool = False) -> None:
        self.folder = folder
        self.node_id = node_id
        self.port = 0
        self.encrypts = encrypts
        self._certificate = ""
        self._follower: Follower | None = None
        self._server: FollowerServer | None = None
        self.start()

    def start(self) -> None:
        """Serve in threads."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        self.port = listener.getsockname()[1]
        self._follower = Follower(Files(), str(self.folder))
        context = None
        if self.encrypts:
            found = certificate.load_or_make(Files(), str(self.folder))
            self._certificate = found.certificate
            context = certificate.server_context(found, str(self.folder))
        self._server = FollowerServer(
            self._follower, [listener], "", time.monotonic, _fail, context=context
        )
        self._server.start()

    def stop(self) -> None:
        """Close all connections. Nothing happens if it does not run."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    @property
    def row(self) -> FollowerRow:
        """The row with which brokers find it."""
        assert self._follower is not None
        identity = self._follower.identity
        replica_id, key = identity.replica_id.hex(), identity.key
        return FollowerRow(replica_id, self.node_id, "127.0.0.1", self.port, key, self._certificate)

    async def register(self, url: str) -> None:
        """Store its row in SQL."""
        row = self.row
        metadata = SqlMetadata(url)
        await metadata.open()
        try:
            await metadata.transact(lambda session: replica_sets.register(session, row, 1))
        finally:
            await metadata.close()

    def committed(self, node_id: int, epoch: int) -> int:
        """Return the log position up to which it knows a broker's log as committed."""
        assert self._follower is not None
        return self._follower.node(node_id).listing(epoch).committed

    def journals(self, node_id: int) -> dict[str, bytes]:
        """Return the files of the newest copy of a broker's log, by name."""
        copies = [each for each in self.folder.joinpath(str(node_id)).iterdir() if each.is_dir()]
        newest = max(copies, key=lambda each: int(each.name))
        return {each.name: each.read_bytes() for each in newest.glob("*.journal")}


async def stored_set(url: str, node_id: int) -> ReplicaSet | None:
    """Return the in-sync followers of a broker in SQL."""
    return next((each for each in await stored_sets(url) if each.node_id == node_id), None)


async def stored_sets(url: str) -> list[ReplicaSet]:
    """Return the in-sync followers of all brokers in SQL."""
    metadata = SqlMetadata(url)
    await metadata.open()
    try:
        return await metadata.transact(replica_sets.load_all)
    finally:
        await metadata.close()


def _fail(reason: str) -> None:
    raise AssertionError(reason)
