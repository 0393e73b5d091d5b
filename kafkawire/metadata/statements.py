"""Statements that more than one method of `sql.SqlMetadata` needs, each inside its transaction.

Every function takes the connection of a running transaction and commits nothing. Raises KafkaError
if a condition of the `Metadata` port is violated; the caller's transaction is then rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, bindparam, case, delete, select, update
from sqlalchemy.exc import IntegrityError

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
from kafkawire.metadata.session import Session, numbers_text
from kafkawire.metadata.session import insert as insert_text
from kafkawire.metadata.store import BrokerSuperseded, CatalogChanged
from kafkawire.metadata.tables import (
    broker_heartbeats,
    brokers,
    cluster,
    configs,
    followers,
    lead_groups,
    offset_mappings,
    partition_metadata,
    partition_moves,
    partition_offset_checkpoints,
    partitions,
    tiering_offsets,
    topics,
)
from kafkawire.plural import count

T = TypeVar("T")
# Values in one IN (...) and rows of one INSERT: SQLAlchemy takes two milliseconds of the event loop
# for them, and the loop runs while the statement does.
IN_LIMIT = 500
ROWS_PER_INSERT = 250

GROUPS = "SELECT id, leader, epoch FROM lead_groups"

ConfigKey = tuple[int, str, str]  # resource type, resource as in tables.configs, name


def chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the values in parts that fit into one statement."""
    for start in range(0, len(values), IN_LIMIT):
        yield values[start : start + IN_LIMIT]


def insert(connection: Connection, table: Table, values: Iterable[dict[str, Any]]) -> None:
    """Insert all rows in groups, which are built on demand; no effect without rows."""
    left = iter(values)
    while part := list(islice(left, ROWS_PER_INSERT)):
        connection.execute(table.insert(), part)


def upsert(connection: Connection, table: Table, values: list[dict[str, Any]]) -> None:
    """Insert rows, or replace those with the same primary key."""
    if not values:
        return
    keys = [column.name for column in table.primary_key]
    others = [f"{name} = excluded.{name}" for name in values[0] if name not in keys]
    # As text: SQLAlchemy has this statement once for each dialect, and importing PostgreSQL's takes
    # a start with SQLite 30 ms.
    insert_text(
        Session(connection),
        f"INSERT INTO {table.name} ({', '.join(values[0])})",
        [tuple(row.values()) for row in values],
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {', '.join(others)}",
    )


def load_catalog(connection: Connection) -> Catalog:
    """Load the whole catalog; insert the row of the cluster if absent."""
    found = connection.execute(select(cluster)).first()
    if found is None:
        cluster_id = uuid_text(random_id())
        insert(connection, cluster, [rows.cluster_row(cluster_id, now_ms())])
        return Catalog(cluster_id)
    session = Session(connection)
    return rows.catalog(
        found.cluster_id,
        found.version,
        brokers=session.rows(rows.BROKERS),
        # The plus prevents SQLite's planner from using the index of names, which is slower.
        topics=_pages(
            session,
            "SELECT id, name, internal, created_ms FROM topics WHERE +deleted_ms IS NULL AND id > ?"
            " ORDER BY id",
            b"",
            0,
        ),
        partitions=_pages(
            session,
            "SELECT topic_id, number, lead_group, epoch_base FROM partitions WHERE number > ?"
            " ORDER BY number",
            -1,
            1,
        ),
        configs=session.rows("SELECT resource_type, resource, name, value FROM configs"),
        features=session.rows("SELECT name, level, epoch FROM features"),
        groups=session.rows(GROUPS),
        moves=session.rows("SELECT partition_number, target FROM partition_moves"),
    )


def _pages(session: Session, query: str, after: bytes | int, key: int) -> rows.Parts:
    """Yield the rows of a large table in the order of column `key`, page by page: the drivers
    fetch all rows of a query at once."""
    page = f"{query} LIMIT {rows.ROWS_AT_A_TIME}"
    while part := session.rows(page, (after,)):
        yield part
        after = part[-1][key]


def advance(connection: Connection, seen: int | None = None) -> int:
    """Raise the catalog version and return it; on PostgreSQL this locks the only row of `cluster`.
    `seen`: the version that the change was planned with. Raises CatalogChanged if it is another
    one now."""
    connection.execute(update(cluster).values(version=cluster.c.version + 1))
    version = int(connection.execute(select(cluster.c.version)).scalar_one())
    if seen is not None and version != seen + 1:
        raise CatalogChanged(version - 1)
    return version


def broker_epoch(connection: Connection, node_id: int, version: int, *, new: bool) -> int:
    """Return the epoch of a registered broker; raise it for a new start. The first one is the
    catalog version, which is above each epoch that a broker removed before had: epochs rise by one
    with a version."""
    if new:
        raised = case((brokers.c.epoch == 0, version), else_=brokers.c.epoch + 1)
        connection.execute(update(brokers).where(brokers.c.node_id == node_id).values(epoch=raised))
    found = select(brokers.c.epoch).where(brokers.c.node_id == node_id)
    return int(connection.execute(found).scalar_one())


def check_broker_epoch(connection: Connection, node_id: int, expected: int) -> None:
    """Raise BrokerSuperseded unless a broker has this epoch."""
    found = select(brokers.c.epoch).where(brokers.c.node_id == node_id)
    epoch = connection.execute(found).scalar()
    if epoch != expected:
        raise BrokerSuperseded(node_id, int(epoch or 0))


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
    connection: Connection, node_id: int, version: int, own_epoch: int | None = None
) -> None:
    """Delete the registration of a broker, its heartbeat and its settings. Raises
    BROKER_ID_NOT_REGISTERED, or INVALID_REQUEST if it has what no other broker serves or deletes.

    `own_epoch`: of the calling process, if that is the broker, whose log has no objects any more
    and gets none. It needs no fence: a row is only needed to find objects. BrokerSuperseded if
    another process was started as the broker.

    Its lead group stays: partitions of deleted topics are in it, and its epoch must not fall. So do
    the rows that pair it with its data folder, so that the broker can be registered again."""
    session = Session(connection)
    lock_groups(session)  # a process of this broker that is not as dead as it seems writes nothing
    if own_epoch is not None:
        check_broker_epoch(connection, node_id, own_epoch)
        session.run(
            "DELETE FROM object_logs WHERE node_id = ? AND broker_epoch = ? AND ended IS NULL",
            (node_id, own_epoch),
        )
    gone = connection.execute(delete(brokers).where(brokers.c.node_id == node_id))
    if not gone.rowcount:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if held := held_by_broker(session, node_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {node_id} has {': '.join(held)}.")
    connection.execute(delete(broker_heartbeats).where(broker_heartbeats.c.node_id == node_id))
    connection.execute(delete(followers).where(followers.c.node_id == node_id))
    connection.execute(
        delete(configs).where(
            configs.c.resource_type == BROKER_RESOURCE, configs.c.resource == str(node_id)
        )
    )
    connection.execute(update(cluster).values(broker_configs_version=version))


def take_numbers(connection: Connection, count: int) -> int:
    """Take partition numbers and return the first."""
    connection.execute(update(cluster).values(next_partition=cluster.c.next_partition + count))
    return int(connection.execute(select(cluster.c.next_partition)).scalar_one()) - count


def groups_of(connection: Connection, leaders: Iterable[int], version: int) -> dict[int, LeadGroup]:
    """Return the lead group of local logs of each broker; create those that do not exist."""
    session = Session(connection)
    wanted = sorted(set(leaders))
    rows_of = [rows.group_row(local_group(leader), version) for leader in wanted]
    insert_text(
        session,
        f"INSERT INTO lead_groups ({', '.join(rows_of[0])})",
        [tuple(row.values()) for row in rows_of],
        "ON CONFLICT (id) DO NOTHING",
    )
    found = session.rows(f"{GROUPS} WHERE id IN ({numbers_text(wanted)})")
    return {group.leader: group for group in map(LeadGroup._make, found)}


def create_topics(connection: Connection, new: Sequence[NewTopic], version: int) -> list[TopicInfo]:
    """Insert new topics with their partitions and settings. Raises TOPIC_ALREADY_EXISTS."""
    created_ms = now_ms()
    number = take_numbers(connection, sum(len(topic.leaders) for topic in new))
    groups = groups_of(connection, chain.from_iterable(t.leaders for t in new), version)
    made: list[TopicInfo] = []
    for part in chunks(new):
        some: list[TopicInfo] = []
        for topic in part:
            some.append(rows.new_topic(topic, random_id(), number, created_ms))
            number += len(topic.leaders)
        try:
            insert(connection, topics, (rows.topic_row(t, version) for t in some))
        except IntegrityError as error:  # the unique index of the names of existing topics
            raise _taken(new) from error
        of_partitions = (rows.partition_rows(t.id, t.partitions, groups) for t in some)
        insert(connection, partitions, chain.from_iterable(of_partitions))
        insert(connection, configs, chain.from_iterable(rows.config_rows(t) for t in some))
        made += some
    return made


def _taken(new: Sequence[NewTopic]) -> KafkaError:
    names = ", ".join(topic.name for topic in new[:10])
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"One of these topics exists: {names}")


def bump_leader_epochs(
    connection: Connection, numbers: Iterable[int], node_id: int, version: int
) -> dict[int, int]:
    """Raise the leader epochs of partitions that `node_id` leads; return the new ones. Raises
    NOT_LEADER_OR_FOLLOWER if it does not lead one of them."""
    epochs: dict[int, int] = {}
    mine = select(lead_groups.c.id).where(lead_groups.c.leader == node_id)
    for part in chunks(sorted(set(numbers))):
        raised = connection.execute(
            update(partitions)
            .where(partitions.c.number.in_(part), partitions.c.lead_group.in_(mine))
            .values(epoch_base=partitions.c.epoch_base + 1)
        )
        if raised.rowcount != len(part):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found = connection.execute(
            select(partitions.c.number, partitions.c.epoch_base + lead_groups.c.epoch)
            .join(lead_groups, lead_groups.c.id == partitions.c.lead_group)
            .where(partitions.c.number.in_(part))
        )
        epochs.update((number, epoch) for number, epoch in found)
        _touch_topics(connection, part, version)
    return epochs


def _touch_topics(connection: Connection, numbers: Sequence[int], version: int) -> None:
    """Mark the topics of partitions as changed."""
    touched = select(partitions.c.topic_id).where(partitions.c.number.in_(numbers))
    connection.execute(update(topics).where(topics.c.id.in_(touched)).values(version=version))


def move_partitions(
    connection: Connection, numbers: Iterable[int], leader: int, version: int
) -> None:
    """Move partitions to the lead group of local logs of `leader`, each into its next leader epoch;
    those it leads already stay as they are. Their planned moves end."""
    new = groups_of(connection, [leader], version)[leader]
    lock_groups(Session(connection))
    old_epoch = (
        select(lead_groups.c.epoch)
        .where(lead_groups.c.id == partitions.c.lead_group)
        .scalar_subquery()
    )
    for part in chunks(sorted(set(numbers))):
        chosen = partitions.c.number.in_(part), partitions.c.lead_group != new.id
        _touch_topics(connection, part, version)
        connection.execute(
            delete(partition_moves).where(partition_moves.c.partition_number.in_(part))
        )
        connection.execute(
            update(partitions)
            .where(*chosen)
            .values(
                lead_group=new.id, epoch_base=partitions.c.epoch_base + old_epoch + 1 - new.epoch
            )
        )


def plan_moves(connection: Connection, targets: Mapping[int, int | None], version: int) -> None:
    """Store the brokers that existing partitions are to be moved to; None ends a move."""
    for part in chunks(sorted(targets)):
        _touch_topics(connection, part, version)
        connection.execute(
            delete(partition_moves).where(partition_moves.c.partition_number.in_(part))
        )
        now = now_ms()
        insert(
            connection,
            partition_moves,
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


def raise_group_epochs(connection: Connection, node_id: int, version: int) -> list[LeadGroup]:
    """Raise the epochs of all groups that `node_id` leads; return the groups."""
    session = Session(connection)
    session.run(
        "UPDATE lead_groups SET epoch = epoch + 1, version = ? WHERE leader = ?",
        (version, node_id),
    )
    found = session.rows(f"{GROUPS} WHERE leader = ?", (node_id,))
    return [LeadGroup._make(row) for row in found]


def touch(connection: Connection, ids: Iterable[bytes], version: int) -> None:
    """Mark existing topics as changed. Raises UNKNOWN_TOPIC_ID."""
    for part in chunks(sorted(set(ids))):
        changed = connection.execute(
            update(topics)
            .where(topics.c.id.in_(part), topics.c.deleted_ms.is_(None))
            .values(version=version)
        )
        if changed.rowcount != len(part):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)


def forget(connection: Connection, ids: Sequence[bytes]) -> None:
    """Delete unneeded rows of deleted topics: settings and the state of partitions; mark their
    mappings into segments."""
    for part in chunks(ids):
        names = [uuid_text(topic_id) for topic_id in part]
        connection.execute(
            delete(configs).where(
                configs.c.resource_type == TOPIC_RESOURCE, configs.c.resource.in_(names)
            )
        )
        numbers = select(partitions.c.number).where(partitions.c.topic_id.in_(part))
        for table in (
            partition_offset_checkpoints, partition_metadata, tiering_offsets, partition_moves,
        ):  # fmt: skip
            connection.execute(delete(table).where(table.c.partition_number.in_(numbers)))
        connection.execute(  # the log deletes them, and must find them after a crash
            update(offset_mappings)
            .where(offset_mappings.c.partition_number.in_(numbers))
            .values(due_ms=ORPHANED)
        )


def living(connection: Connection, changes: list[ConfigChange]) -> dict[str, bytes]:
    """Return the ids of the topics to change, by name. Raises UNKNOWN_TOPIC_OR_PARTITION."""
    names = sorted({each.name for each in changes if each.resource_type == TOPIC_RESOURCE})
    ids: dict[str, bytes] = {}
    for part in chunks(names):
        found = connection.execute(
            select(topics.c.name, topics.c.id).where(
                topics.c.name.in_(part), topics.c.deleted_ms.is_(None)
            )
        )
        ids.update((name, topic_id) for name, topic_id in found)
    if len(ids) != len(names):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ids


def write_configs(connection: Connection, changes: Mapping[ConfigKey, str | None]) -> None:
    """Store settings; None removes one."""
    gone = [
        {"of_type": kind, "of": of, "key": name}
        for (kind, of, name), value in changes.items()
        if value is None
    ]
    one = delete(configs).where(
        configs.c.resource_type == bindparam("of_type"),
        configs.c.resource == bindparam("of"),
        configs.c.name == bindparam("key"),
    )
    for start in range(0, len(gone), ROWS_PER_INSERT):
        connection.execute(one, gone[start : start + ROWS_PER_INSERT])
    kept = [
        {"resource_type": kind, "resource": of, "name": name, "value": value}
        for (kind, of, name), value in changes.items()
        if value is not None
    ]
    upsert(connection, configs, kept)
