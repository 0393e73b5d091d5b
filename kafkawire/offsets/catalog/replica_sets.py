"""Statements on `followers` and `replica_sets` (topics with durability=replicated).

A follower is a process that keeps copies of the logs of other machines' brokers
(kafkawire.replication); its replica id is that of its folder, so that a machine with another disk
is another follower. The replica set of a broker names the followers whose copies have everything
that the broker has acknowledged: a start of the broker in another folder reads one of these copies.

Functions run inside a transaction of the caller (`Transactions.transact`). `broker_epoch` is that
of the calling process: once another process was started as the same broker, it changes nothing, so
the set that the next process reads does not change any more.

Callers keep this order:

- A process acknowledges nothing before it has stored a set of its own epoch.
- It waits for a follower from before it adds it to the set, and until it knows that the follower
  was removed from the set.
- `version` rises with each change. A change that may have been stored, because its answer was lost,
  is repeated with the same version.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kafkawire.log_lines import address_of
from kafkawire.metadata.session import Row, Session
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.object_logs import is_newest


@dataclass(frozen=True, slots=True)
class FollowerRow:
    """A registered follower. `node_id`: the broker whose machine it is on; `secret` permits to
    connect to it; `certificate`: that of its TLS as PEM, empty: its connections are not
    encrypted."""

    replica_id: str
    node_id: int
    host: str
    port: int
    secret: bytes
    certificate: str = ""

    @property
    def name(self) -> str:
        """Its name in log lines."""
        return f"the follower of broker {self.node_id} at {address_of(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The stored set of one broker. `broker_epoch`: of the process that stored it; `in_sync`:
    replica ids of followers."""

    node_id: int
    broker_epoch: int
    in_sync: frozenset[str]
    version: int


def load(session: Session, node_id: int) -> ReplicaSet | None:
    """Return the set of a broker; None if it has stored none."""
    found = _sets(session, "WHERE node_id = ?", (node_id,))
    return found[0] if found else None


def load_all(session: Session) -> list[ReplicaSet]:
    """Return the sets of all brokers, by node id."""
    return _sets(session, "ORDER BY node_id")


def store(
    session: Session,
    node_id: int,
    broker_epoch: int,
    in_sync: Collection[str],
    version: int,
    now_ms: int,
) -> bool:
    """Store the set of the calling process under the version after `version`, which is that of the
    stored set, 0 without one; return whether it is stored. False if the process was superseded.
    Raises MetadataError if the stored set has another version and is not this one."""
    if not is_newest(session, node_id, broker_epoch):
        return False
    text = ",".join(sorted(in_sync))
    if version:
        changed = session.run(
            "UPDATE replica_sets SET broker_epoch = ?, in_sync = ?, version = ?, changed_ms = ?"
            " WHERE node_id = ? AND version = ?",
            (broker_epoch, text, version + 1, now_ms, node_id, version),
        )
    else:
        changed = session.run(
            "INSERT INTO replica_sets (node_id, broker_epoch, in_sync, version, changed_ms)"
            " VALUES (?, ?, ?, 1, ?) ON CONFLICT (node_id) DO NOTHING",
            (node_id, broker_epoch, text, now_ms),
        )
    if changed:
        return True
    stored = load(session, node_id)
    wanted = ReplicaSet(node_id, broker_epoch, frozenset(in_sync), version + 1)
    # Equal: this very change was stored before, and its answer was lost. Otherwise the database
    # went back in time, as the newest process alone changes the set.
    if stored != wanted:
        raise MetadataError(f"the replica set of broker {node_id} is {stored}, not {wanted}")
    return True


def delete(session: Session, node_id: int, broker_epoch: int) -> None:
    """Delete the set of a broker that needs nothing of what its followers have, unless the calling
    process was superseded."""
    if is_newest(session, node_id, broker_epoch):
        session.run("DELETE FROM replica_sets WHERE node_id = ?", (node_id,))


def register(session: Session, follower: FollowerRow, now_ms: int) -> None:
    """Store the address of a follower. Of the brokers of one machine the lowest counts."""
    # Another one that was registered for the same broker stays: its copies may be the only ones.
    session.run(
        "INSERT INTO followers"
        " (replica_id, node_id, host, port, secret, certificate, changed_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (replica_id) DO UPDATE SET node_id = CASE"
        " WHEN followers.node_id < excluded.node_id THEN followers.node_id"
        " ELSE excluded.node_id END, host = excluded.host, port = excluded.port,"
        " secret = excluded.secret, certificate = excluded.certificate,"
        " changed_ms = excluded.changed_ms",
        (
            follower.replica_id, follower.node_id, follower.host, follower.port, follower.secret,
            follower.certificate, now_ms,
        ),
    )  # fmt: skip


def load_followers(session: Session) -> list[FollowerRow]:
    """Return all registered followers, by node id; of one node id those that registered last come
    first."""
    rows = session.read_checked(
        "followers",
        "replica_id, node_id, host, port, secret, certificate",
        "ORDER BY node_id, changed_ms DESC, replica_id",
    )
    return [FollowerRow(*row) for row in rows]


def _sets(session: Session, condition: str, values: Row = ()) -> list[ReplicaSet]:
    columns = "node_id, broker_epoch, in_sync, version"
    return [
        ReplicaSet(node, epoch, frozenset(filter(None, text.split(","))), version)
        for node, epoch, text, version in session.read_checked(
            "replica_sets", columns, condition, values
        )
    ]
