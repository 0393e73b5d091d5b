"""The folder of a follower: its lock, its identity, and the copies of each broker.

lock          locked while a process uses the folder
identity      the replica id and the key, which the follower's brokers get from its supervisor
NODE/fence    the lowest epoch of this broker that may write
NODE/EPOCH/   the copy of the log that this broker has written in that epoch
"""

from __future__ import annotations

import os.path
import re
import secrets
from dataclasses import dataclass
from threading import Lock

from kafkawire.replication import sealed_file
from kafkawire.replication.failures import FollowerError, reason
from kafkawire.replication.machine import Files
from kafkawire.replication.messages import KEY_BYTES, REPLICA_ID_BYTES
from kafkawire.replication.node_copies import NodeCopies
from kafkawire.replication.options import IDENTITY

_NODE = re.compile(r"0|[1-9]\d*")
_LOST_IDENTITY = (
    "Brokers know this follower by this file, so it is not created again: restore it from a backup "
    "or, if the copies are not needed, move this folder away, which begins another follower"
)


@dataclass(frozen=True, slots=True)
class FollowerIdentity:
    """The identity of a follower's folder. `key` is the secret that its brokers prove to have."""

    replica_id: bytes
    key: bytes


class Follower:
    """All copies in one folder. Thread-safe."""

    def __init__(self, files: Files, folder: str) -> None:
        """Open the folder; create it if it does not exist. Raises FollowerError if it is locked or
        cannot be used, or its identity is damaged, and DiskFailed."""
        self._files = files
        self._folder = folder
        self._nodes: dict[int, NodeCopies] = {}
        self._adding = Lock()
        try:
            files.make_folder(folder)
            self._lock = self._lock_folder()
            try:
                self._open()
            except BaseException:
                files.close(self._lock)
                raise
        except OSError as failure:
            raise FollowerError(reason(failure, folder)) from failure

    def node(self, node_id: int) -> NodeCopies:
        """Return the copies of a broker, of which there may be none yet."""
        with self._adding:
            if node_id not in self._nodes:
                path = f"{self._folder}/{node_id}"
                self._nodes[node_id] = NodeCopies(self._files, path, node_id)
            return self._nodes[node_id]

    def close(self) -> None:
        """Make everything durable, close the files and release the lock."""
        for node in self._nodes.values():
            node.close()
        self._files.close(self._lock)

    def _open(self) -> None:
        # A process may have been killed before it did: what is read now must not be lost later.
        self._files.sync_folder(self._folder)
        nodes = [int(name) for name in self._files.names(self._folder) if _NODE.fullmatch(name)]
        self.identity = self._load_identity(is_new=not nodes)
        for node_id in nodes:
            self.node(node_id)

    def _lock_folder(self) -> int:
        try:
            return self._files.lock(f"{self._folder}/lock")
        except BlockingIOError:
            raise FollowerError(
                f"{self._folder} is used by another process: a folder belongs to one follower"
            ) from None

    def _load_identity(self, is_new: bool) -> FollowerIdentity:
        path = f"{self._folder}/{IDENTITY}"
        try:
            content = sealed_file.load(self._files, path)
        except FollowerError as failure:
            raise FollowerError(f"{failure}. {_LOST_IDENTITY}") from failure
        if content is not None:
            ids = bytes.fromhex(content["replica_id"]), bytes.fromhex(content["key"])
            return FollowerIdentity(*ids)
        # With another identity brokers would not find the copies that they were acknowledged.
        if not is_new:
            raise FollowerError(f"{path} is missing, and the folder has copies. {_LOST_IDENTITY}")
        # The name of the folder first: brokers will rely on this identity.
        self._files.sync_folder(os.path.dirname(os.path.abspath(self._folder)))
        made = FollowerIdentity(
            secrets.token_bytes(REPLICA_ID_BYTES), secrets.token_bytes(KEY_BYTES)
        )
        text = {"replica_id": made.replica_id.hex(), "key": made.key.hex()}
        sealed_file.save(self._files, path, text)
        return made
