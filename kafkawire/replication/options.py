"""Messages between the supervisor and its follower process, each of them one frame."""

from __future__ import annotations

from dataclasses import dataclass

FOLLOWER_FOLDER = "replicas"
"""The folder of a follower in the data folder of its machine."""
SSL = "SSL"
"""The replication.security.protocol with TLS."""
IDENTITY = "identity"
"""The file of that folder with the follower's identity."""


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """Options of a follower process. `descriptors`: listening sockets that it inherits;
    `cluster_id`: the cluster of its brokers, empty: any; `encrypts`: connections are encrypted
    with TLS; `log_level` and `log_format` as of the
    broker's options."""

    folder: str
    descriptors: tuple[int, ...]
    cluster_id: str
    encrypts: bool
    log_level: str
    log_format: str


@dataclass(frozen=True, slots=True)
class FollowerReady:
    """The answer of a follower that serves: its replica id and its key, which brokers need."""

    replica_id: bytes
    key: bytes
