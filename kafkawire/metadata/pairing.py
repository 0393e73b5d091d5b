"""The pairing of metadata and data folder as SQL stores it: the table `data_folders`, and what
proves staleness.

A broker's folder and its metadata carry the same `metadata_id`. SQL raises `generation` after
changes, and the folder records a generation only once the transaction that raised it is durable, so
the generation in SQL is never below the one in the folder. A lower one means an older copy of the
metadata. `kafkawire.log.recovery.identity` compares the two, and every second the database with
what the running broker has seen in it (`SeenInSql`). Functions here run inside a transaction of the
caller (`Transactions.transact`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kafkawire.metadata.session import Session, among, parts
from kafkawire.metadata.store import OlderMetadata


@dataclass(frozen=True, slots=True)
class StoredPairing:
    """The stored pairing of one broker. `metadata_id` empty: it was never paired with a folder.

    `version`: the catalog version, 0 for metadata that was just created; `log_position`: of the
    last checkpoint, 0: none; `segments`: whether it has segments with local files; `objects`:
    whether it has finished objects in a remote tier; `next_node`: an id that no broker has."""

    cluster_id: str
    version: int
    metadata_id: bytes = b""
    generation: int = 0
    log_position: int = 0
    segments: bool = False
    objects: bool = False
    next_node: int = 2


@dataclass(slots=True)
class SeenInSql:
    """Numbers in SQL that never fall, as a running broker has seen them there: `generation` of its
    data folder, whose id is `metadata_id` (empty: not paired yet), and `version`, that of the
    catalog. All that a broker changes in SQL raises one of them in the same transaction, so a
    database that was replaced by an older copy has less, however little it is older."""

    version: Callable[[], int] = int
    metadata_id: bytes = b""
    generation: int = 0

    def check(self, session: Session, node_id: int) -> None:
        """Raise OlderMetadata if SQL has less. The generation of another folder, which the broker
        has used since, is not compared: the broker epoch fences this process."""
        query = "SELECT metadata_id, generation FROM data_folders WHERE node_id = ?"
        rows = session.rows(query, (node_id,))
        if not rows or bytes(rows[0][0]) == self.metadata_id:
            _compare("generation", rows[0][1] if rows else 0, self.generation)
        rows = session.rows("SELECT version FROM cluster")
        _compare("catalog version", rows[0][0] if rows else 0, self.version())

    def raise_generation(self, session: Session, node_id: int) -> int:
        """Raise the generation in the same transaction as a change, and return it; 0 if the broker
        is not paired with this folder (any more). The caller notes it once the transaction is
        durable. Raises OlderMetadata."""
        if not self.metadata_id:
            return 0
        query = (
            "UPDATE data_folders SET generation = generation + 1"
            " WHERE node_id = ? AND metadata_id = ? RETURNING generation"
        )
        rows = session.rows(query, (node_id, self.metadata_id))
        if not rows:
            self.check(session, node_id)
            return 0
        _compare("generation", rows[0][0] - 1, self.generation)
        return int(rows[0][0])

    def note_generation(self, generation: int) -> None:
        """Note a generation that SQL has."""
        self.generation = max(self.generation, generation)


def _compare(name: str, stored: int, seen: int) -> None:
    if stored < seen:
        raise OlderMetadata(f"its {name} is {stored}, and was {seen} before")


def load(session: Session, node_id: int) -> StoredPairing:
    """Load the stored pairing of a broker."""
    ((cluster_id, version),) = session.read_checked("cluster", "cluster_id, version")
    of_node = "WHERE node_id = ?"
    row = session.read_checked("data_folders", "metadata_id, generation", of_node, (node_id,))
    log_position = session.read_checked("checkpoints", "place", of_node, (node_id,))
    of = f"SELECT 1 FROM segments WHERE node_id = {node_id:d}"
    segments = session.rows(f"{of} AND local = 1 LIMIT 1")
    objects = session.rows(
        f"SELECT 1 FROM remote_objects WHERE node_id = {node_id:d} AND state = 1 LIMIT 1"
    )
    ((last_node,),) = session.rows("SELECT MAX(node_id) FROM brokers")
    return StoredPairing(
        cluster_id,
        int(version),
        bytes(row[0][0]) if row else b"",
        int(row[0][1]) if row else 0,
        int(log_position[0][0]) if log_position else 0,
        bool(segments),
        bool(objects),
        max(int(last_node or 0), node_id) + 1,
    )


def pair(session: Session, node_id: int, metadata_id: bytes, generation: int) -> None:
    """Store that a folder with this id belongs to a broker, replacing the previous pairing."""
    session.run(
        "INSERT INTO data_folders (node_id, metadata_id, generation) VALUES (?, ?, ?)"
        " ON CONFLICT (node_id) DO UPDATE"
        " SET metadata_id = excluded.metadata_id, generation = excluded.generation",
        (node_id, metadata_id, generation),
    )


def known_partitions(session: Session, numbers: Iterable[int]) -> set[int]:
    """Return those of the partition numbers that were ever assigned, deleted ones included."""
    found: set[int] = set()
    wanted: Sequence[int] = sorted(set(numbers))
    for part in parts(wanted):
        rows = session.rows(f"SELECT number FROM partitions WHERE {among('number', part)}")
        found.update(int(number) for (number,) in rows)
    return found


def known_topics(session: Session, ids: Iterable[bytes]) -> set[bytes]:
    """Return those of the topic ids that were ever assigned, deleted ones included."""
    query = "SELECT 1 FROM topics WHERE id = ?"
    return {topic_id for topic_id in set(ids) if session.rows(query, (topic_id,))}
