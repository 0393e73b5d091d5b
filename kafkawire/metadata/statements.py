"""Statements that more than one method of `sql.SqlMetadata` needs, each inside its transaction.

Every function takes the session of a running transaction and commits nothing. Raises KafkaError
if a condition of the `Metadata` port is violated; the caller's transaction is then rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import rows
from kafkawire.metadata.catalog import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    Catalog,
    ConfigChange,
    NewTopic,
    TopicInfo,
)
from kafkawire.metadata.directory import LeadGroup, local_group
from kafkawire.metadata.generated import now_ms, random_id
from kafkawire.metadata.schema import ORPHANED
from kafkawire.metadata.schema.created import KEYS
from kafkawire.metadata.session import GROUP, Session, marks, numbers_text
from kafkawire.metadata.session import insert as insert_text
from kafkawire.metadata.store import BrokerSuperseded, CatalogChanged
from kafkawire.plural import count

T = TypeVar("T")
IN_LIMIT = 500
"""Values in one IN (...): the event loop runs between statements."""
ROWS_PER_INSERT = 60 * GROUP
"""Rows that are built before they are inserted: a millisecond."""

GROUPS = "lead_groups", "id, leader, epoch"
"""A table and its columns, for `Session.read_checked`."""

ConfigKey = tuple[int, str, str]  # resource type, resource as in tables.configs, name


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in parts that fit into one statement."""
    for start in range(0, len(values), IN_LIMIT):
        yield values[start : start + IN_LIMIT]


def insert(session: Session, table: str, values: Iterable[dict[str, Any]], tail: str = "") -> None:
    """Insert all rows, which have equal columns, in groups, which are built on demand; no effect
    without rows. `tail`: see `session.insert`."""
    left = iter(values)
    while part := list(islice(left, ROWS_PER_INSERT)):
        head = f"INSERT INTO {table} ({', '.join(part[0])})"
        insert_text(session, head, [tuple(row.values()) for row in part], tail)


def upsert(session: Session, table: str, values: Sequence[dict[str, Any]]) -> None:
    """Insert rows, or replace those with the same primary key."""
    keys = KEYS[table]
    names = [name for name in chain(*values[:1]) if name not in keys]
    others = ", ".join(f"{name} = excluded.{name}" for name in names)
    insert(session, table, values, f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {others}")


def load_catalog(session: Session) -> Catalog:
    """Load the whole catalog; insert the row of the cluster if absent."""
    found = session.read_checked("cluster", "cluster_id, version")
    if not found:
        cluster_id = uuid_text(random_id())
        insert(session, "cluster", [rows.cluster_row(cluster_id, now_ms())])
        return Catalog(cluster_id)
    ((cluster_id, version),) = found
    return rows.catalog(
        cluster_id,
        version,
        brokers=session.read_checked(*rows.BROKERS),
        # The plus prevents SQLite's planner from using the index of names, which is slower.
        topics=_pages(
            session,
            ("topics", "id, name, internal, created_ms"),
            "WHERE +deleted_ms IS NULL AND id > ? ORDER BY id",
            b"",
            0,
        ),
        partitions=_pages(
            session,
            ("partitions", "topic_id, number, lead_group, epoch_base"),
            "WHERE number > ? ORDER BY number",
            -1,
            1,
        ),
        configs=session.read_checked("configs", "resource_type, resource, name, value"),
        features=session.read_checked("features", "name, level, epoch"),
        groups=session.read_checked(*GROUPS),
        moves=session.read_checked("partition_moves", "partition_number, target"),
    )


def _pages(
    session: Session, columns: tuple[str, str], rest: str, after: bytes | int, key: int
) -> rows.Parts:
    """Yield the rows of a large table in the order of column `key`, page by page: the drivers
    fetch all rows of a query at once."""
    page = f"{rest} LIMIT {rows.ROWS_AT_A_TIME}"
    while part := session.read_checked(*columns, page, (after,)):
        yield part
        after = part[-1][key]


def advance(session: Session, seen: int | None = None) -> int:
    """Raise the catalog version and return it; on PostgreSQL this locks the only row of `cluster`.
    `seen`: the version that the change was planned with. Raises CatalogChanged if it is another
    one now."""
    session.run("UPDATE cluster SET version = version + 1")
    ((version,),) = session.rows("SELECT version FROM cluster")
    if seen is not None and version != seen + 1:
        raise CatalogChanged(version - 1)
    return int(version)


def broker_epoch(session: Session, node_id: int, version: int, *, new: bool) -> int:
    """Return the epoch of a registered broker; raise it for a new start. The first one is the
    catalog version, which is above each epoch that a broker removed before had: epochs rise by one
    with a version."""
    if new:
        session.run(
            "UPDATE brokers SET epoch = CASE WHEN epoch = 0 THEN ? ELSE epoch + 1 END"
            " WHERE node_id = ?",
            (version, node_id),
        )
    return _stored_epoch(session, node_id)


def check_broker_epoch(session: Session, node_id: int, expected: int) -> None:
    """Raise BrokerSuperseded unless a broker has this epoch."""
    epoch = _stored_epoch(session, node_id)
    if epoch != expected:
        raise BrokerSuperseded(node_id, epoch)


def _stored_epoch(session: Session, node_id: int) -> int:
    """Return the epoch of a broker, 0 for one that is not registered."""
    found = session.rows("SELECT epoch FROM brokers WHERE node_id = ?", (node_id,))
    return int(found[0][0]) if found else 0


_DELETES_THEM = "only the broker itself deletes them: start it again"
_HELD = (
    (
        ("led partition", "led partitions"),
        "drain the broker, or delete their topics",
        "partitions p JOIN topics t ON t.id = p.topic_id JOIN lead_groups g ON g.id = p.lead_group"
        " WHERE t.deleted_ms IS NULL AND g.leader = ?",
    ),
    (("segment", "segments"), _DELETES_THEM, "segments WHERE node_id = ?"),
    (
        ("object in a remote tier", "objects in a remote tier"),
        _DELETES_THEM,
        "remote_objects WHERE node_id = ?",
    ),
    (
        ("log that may have log objects", "logs that may have log objects"),
        "start the broker again, and stop it when `kafkawire tier status` shows no log objects",
        "object_logs WHERE node_id = ? AND broker_epoch <> {own_epoch:d}"
        " AND (ended IS NULL OR released < ended)",
    ),
    (
        ("range of deleted topics in segments", "ranges of deleted topics in segments"),
        _DELETES_THEM,
        "offset_mappings m JOIN partitions p ON p.number = m.partition_number"
        " JOIN lead_groups g ON g.id = p.lead_group WHERE g.leader = ?",
    ),
)
"""Rows of things that only one broker serves or deletes: their name, what to do, the query."""

NO_EPOCH = -1
"""No process has this broker epoch."""


def held_by_broker(
    session: Session, node_id: int, own_epoch: int = NO_EPOCH
) -> tuple[str, str] | None:
    """Return what a broker has, and what to do about it; None if it has nothing. `own_epoch`: of a
    process that has no log objects in its own log any more."""
    for nouns, advice, found in _HELD:
        source = found.format(own_epoch=own_epoch)
        ((number,),) = session.rows(f"SELECT count(*) FROM {source}", (node_id,))
        if number:
            return count(number, *nouns), advice
    return None


def remove_broker(
    session: Session, node_id: int, version: int, own_epoch: int | None = None
) -> None:
    """Delete the registration of a broker, its heartbeat and its settings. Raises
    BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST if it has what no other broker serves or deletes.

    `own_epoch`: of the calling process, if that is the broker, whose log has no objects any more
    and gets none. It needs no fence: a row is only needed to find objects. BrokerSuperseded if
    another process was started as the broker.

    Its lead group stays: partitions of deleted topics are in it, and its epoch must not fall. So do
    the rows that pair it with its data folder, so that the broker can be registered again."""
    lock_groups(session)  # a process of this broker that is not as dead as it seems writes nothing
    if own_epoch is not None:
        check_broker_epoch(session, node_id, own_epoch)
        session.run(
            "DELETE FROM object_logs WHERE node_id = ? AND broker_epoch = ? AND ended IS NULL",
            (node_id, own_epoch),
        )
    if not session.run("DELETE FROM brokers WHERE node_id = ?", (node_id,)):
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if held := held_by_broker(session, node_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {node_id} has {': '.join(held)}.")
    session.run("DELETE FROM broker_heartbeats WHERE node_id = ?", (node_id,))
    session.run("DELETE FROM followers WHERE node_id = ?", (node_id,))
    session.run(
        "DELETE FROM configs WHERE resource_type = ? AND resource = ?",
        (BROKER_RESOURCE, str(node_id)),
    )
    session.run("UPDATE cluster SET broker_configs_version = ?", (version,))


def take_numbers(session: Session, count: int) -> int:
    """Take partition numbers and return the first."""
    session.run("UPDATE cluster SET next_partition = next_partition + ?", (count,))
    ((end,),) = session.rows("SELECT next_partition FROM cluster")
    return int(end) - count


def groups_of(session: Session, leaders: Iterable[int], version: int) -> dict[int, LeadGroup]:
    """Return the lead group of local logs of each broker; create those that do not exist."""
    wanted = sorted(set(leaders))
    new = [rows.group_row(local_group(leader), version) for leader in wanted]
    insert(session, "lead_groups", new, "ON CONFLICT (id) DO NOTHING")
    found = session.read_checked(*GROUPS, f"WHERE id IN ({numbers_text(wanted)})")
    return {group.leader: group for group in map(LeadGroup._make, found)}


def create_topics(session: Session, new: Sequence[NewTopic], version: int) -> list[TopicInfo]:
    """Insert new topics with their partitions and settings. Raises TOPIC_ALREADY_EXISTS."""
    created_ms = now_ms()
    number = take_numbers(session, sum(len(topic.leaders) for topic in new))
    groups = groups_of(session, chain.from_iterable(t.leaders for t in new), version)
    made: list[TopicInfo] = []
    for part in chunks(new):
        some: list[TopicInfo] = []
        for topic in part:
            some.append(rows.new_topic(topic, random_id(), number, created_ms))
            number += len(topic.leaders)
        try:
            insert(session, "topics", (rows.topic_row(t, version) for t in some))
        except session.conflict as error:  # the unique index of the names of existing topics
            raise _name_taken(new) from error
        of_partitions = (rows.partition_rows(t.id, t.partitions, groups) for t in some)
        insert(session, "partitions", chain.from_iterable(of_partitions))
        insert(session, "configs", chain.from_iterable(rows.config_rows(t) for t in some))
        made += some
    return made


def _name_taken(new: Sequence[NewTopic]) -> KafkaError:
    names = ", ".join(topic.name for topic in new[:10])
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"One of these topics exists: {names}")


def bump_leader_epochs(
    session: Session, numbers: Iterable[int], node_id: int, version: int
) -> dict[int, int]:
    """Raise the leader epochs of partitions that `node_id` leads; return the new ones. Raises
    NOT_LEADER_OR_FOLLOWER if it does not lead one of them."""
    epochs: dict[int, int] = {}
    for part in chunks(sorted(set(numbers))):
        among = f"number IN ({numbers_text(part)})"
        raised = session.run(
            f"UPDATE partitions SET epoch_base = epoch_base + 1 WHERE {among}"
            " AND lead_group IN (SELECT id FROM lead_groups WHERE leader = ?)",
            (node_id,),
        )
        if raised != len(part):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found = session.rows(
            "SELECT p.number, p.epoch_base + g.epoch FROM partitions p"
            f" JOIN lead_groups g ON g.id = p.lead_group WHERE p.{among}"
        )
        epochs.update((number, epoch) for number, epoch in found)
        _touch_topics(session, part, version)
    return epochs


def _touch_topics(session: Session, numbers: Sequence[int], version: int) -> None:
    """Mark the topics of partitions as changed."""
    touched = f"SELECT topic_id FROM partitions WHERE number IN ({numbers_text(numbers)})"
    session.run(f"UPDATE topics SET version = ? WHERE id IN ({touched})", (version,))


def move_partitions(session: Session, numbers: Iterable[int], leader: int, version: int) -> None:
    """Move partitions to the lead group of local logs of `leader`, each into its next leader epoch;
    those it leads already stay as they are. Their planned moves end."""
    new = groups_of(session, [leader], version)[leader]
    lock_groups(session)
    for part in chunks(sorted(set(numbers))):
        _touch_topics(session, part, version)
        _end_moves(session, part)
        session.run(
            "UPDATE partitions SET lead_group = ?, epoch_base = epoch_base + 1 - ?"
            " + (SELECT g.epoch FROM lead_groups g WHERE g.id = partitions.lead_group)"
            f" WHERE number IN ({numbers_text(part)}) AND lead_group <> ?",
            (new.id, new.epoch, new.id),
        )


def _end_moves(session: Session, numbers: Sequence[int]) -> None:
    """Delete the planned moves of partitions."""
    chosen = f"partition_number IN ({numbers_text(numbers)})"
    session.run(f"DELETE FROM partition_moves WHERE {chosen}")


def plan_moves(session: Session, targets: Mapping[int, int | None], version: int) -> None:
    """Store the brokers that existing partitions are to be moved to; None ends a move."""
    for part in chunks(sorted(targets)):
        _touch_topics(session, part, version)
        _end_moves(session, part)
        now = now_ms()
        insert(
            session,
            "partition_moves",
            (
                {"partition_number": number, "target": targets[number], "asked_ms": now}
                for number in part
                if targets[number] is not None
            ),
        )


def lock_groups(session: Session) -> None:
    """Lock all lead groups until the end of the transaction: writers with `led` wait."""
    if session.dialect == "postgresql":  # SQLite has only one writer
        session.rows("SELECT id FROM lead_groups ORDER BY id FOR UPDATE")


def raise_group_epochs(session: Session, node_id: int, version: int) -> list[LeadGroup]:
    """Raise the epochs of all groups that `node_id` leads; return the groups."""
    session.run(
        "UPDATE lead_groups SET epoch = epoch + 1, version = ? WHERE leader = ?",
        (version, node_id),
    )
    found = session.read_checked(*GROUPS, "WHERE leader = ?", (node_id,))
    return [LeadGroup._make(row) for row in found]


def touch(session: Session, ids: Iterable[bytes], version: int) -> None:
    """Mark existing topics as changed. Raises UNKNOWN_TOPIC_ID."""
    for part in chunks(sorted(set(ids))):
        changed = session.run(
            f"UPDATE topics SET version = ? WHERE id IN ({marks(part)}) AND deleted_ms IS NULL",
            (version, *part),
        )
        if changed != len(part):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)


def delete_topics(session: Session, ids: Sequence[bytes], version: int) -> None:
    """Mark topics as deleted, and delete unneeded rows of theirs: settings and the state of
    partitions; mark their mappings into segments. Raises UNKNOWN_TOPIC_ID."""
    touch(session, ids, version)
    for part in chunks(ids):
        session.run(
            f"UPDATE topics SET deleted_ms = ? WHERE id IN ({marks(part)})", (now_ms(), *part)
        )
        session.run(
            f"DELETE FROM configs WHERE resource_type = ? AND resource IN ({marks(part)})",
            (TOPIC_RESOURCE, *map(uuid_text, part)),
        )
        of_topics = (
            "WHERE partition_number IN"
            f" (SELECT number FROM partitions WHERE topic_id IN ({marks(part)}))"
        )
        for table in (
            "partition_offset_checkpoints", "partition_metadata", "tiering_offsets",
            "partition_moves",
        ):  # fmt: skip
            session.run(f"DELETE FROM {table} {of_topics}", tuple(part))
        session.run(  # the log deletes them, and must find them after a crash
            f"UPDATE offset_mappings SET due_ms = ? {of_topics}", (ORPHANED, *part)
        )


def living(session: Session, changes: list[ConfigChange]) -> dict[str, bytes]:
    """Return the ids of the topics to change, by name. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    names = sorted({each.name for each in changes if each.resource_type == TOPIC_RESOURCE})
    ids: dict[str, bytes] = {}
    for part in chunks(names):
        found = session.rows(
            f"SELECT name, id FROM topics WHERE name IN ({marks(part)}) AND deleted_ms IS NULL",
            tuple(part),
        )
        ids.update((name, topic_id) for name, topic_id in found)
    if len(ids) != len(names):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ids


def write_configs(session: Session, changes: Mapping[ConfigKey, str | None]) -> None:
    """Store settings; None removes one."""
    session.many(
        "DELETE FROM configs WHERE resource_type = ? AND resource = ? AND name = ?",
        [key for key, value in changes.items() if value is None],
    )
    kept = [
        {"resource_type": kind, "resource": of, "name": name, "value": value}
        for (kind, of, name), value in changes.items()
        if value is not None
    ]
    upsert(session, "configs", kept)
