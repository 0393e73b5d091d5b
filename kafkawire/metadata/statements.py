"""Statements that more than one method of `sql.SqlMetadata` needs, each inside its transaction.

Every function takes the connection of a running transaction and commits nothing. Raises KafkaError
if a condition of the `Metadata` port is violated; the caller's transaction is then rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, bindparam, delete, select, update
from sqlalchemy.exc import IntegrityError

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import rows
from kafkawire.metadata.catalog import TOPIC_RESOURCE, Catalog, ConfigChange, NewTopic, TopicInfo
from kafkawire.metadata.generated import now_ms, random_id
from kafkawire.metadata.schema import ORPHANED
from kafkawire.metadata.session import Session
from kafkawire.metadata.session import insert as insert_text
from kafkawire.metadata.tables import (
    cluster,
    configs,
    offset_mappings,
    partition_metadata,
    partition_offset_checkpoints,
    partitions,
    tiering_offsets,
    topics,
)

T = TypeVar("T")
# Values in one IN (...) and rows of one INSERT: SQLAlchemy takes two milliseconds of the event loop
# for them, and the loop runs while the statement does.
IN_LIMIT = 500
ROWS_PER_INSERT = 250

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
        brokers=session.rows("SELECT node_id, listeners, rack FROM brokers"),
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
            "SELECT topic_id, number, leader, leader_epoch FROM partitions WHERE number > ?"
            " ORDER BY number",
            -1,
            1,
        ),
        configs=session.rows("SELECT resource_type, resource, name, value FROM configs"),
        features=session.rows("SELECT name, level, epoch FROM features"),
    )


def _pages(session: Session, query: str, after: bytes | int, key: int) -> rows.Parts:
    """Yield the rows of a large table in the order of column `key`, page by page: the drivers
    fetch all rows of a query at once."""
    page = f"{query} LIMIT {rows.ROWS_AT_A_TIME}"
    while part := session.rows(page, (after,)):
        yield part
        after = part[-1][key]


def advance(connection: Connection, partitions: int = 0) -> tuple[int, int]:
    """Raise the catalog version and take partition numbers: return (new version, first number)."""
    connection.execute(
        update(cluster).values(
            version=cluster.c.version + 1, next_partition=cluster.c.next_partition + partitions
        )
    )
    found = (connection.execute(select(cluster))).one()
    return found.version, found.next_partition - partitions


def create_topics(connection: Connection, new: Sequence[NewTopic]) -> list[TopicInfo]:
    """Insert new topics with their partitions and settings. Raises TOPIC_ALREADY_EXISTS."""
    created_ms = now_ms()
    version, number = advance(connection, sum(len(topic.leaders) for topic in new))
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
        of_partitions = (rows.partition_rows(t.id, t.partitions) for t in some)
        insert(connection, partitions, chain.from_iterable(of_partitions))
        insert(connection, configs, chain.from_iterable(rows.config_rows(t) for t in some))
        made += some
    return made


def _taken(new: Sequence[NewTopic]) -> KafkaError:
    names = ", ".join(topic.name for topic in new[:10])
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"One of these topics exists: {names}")


def bump_leader_epochs(
    connection: Connection, numbers: Iterable[int], node_id: int
) -> dict[int, int]:
    """Raise the leader epochs of partitions that `node_id` leads; return the new ones. Raises
    NOT_LEADER_OR_FOLLOWER if it does not lead one of them."""
    epochs: dict[int, int] = {}
    version, _ = advance(connection)
    for part in chunks(sorted(set(numbers))):
        mine = (partitions.c.number.in_(part), partitions.c.leader == node_id)
        raised = connection.execute(
            update(partitions).where(*mine).values(leader_epoch=partitions.c.leader_epoch + 1)
        )
        if raised.rowcount != len(part):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        found = connection.execute(
            select(partitions.c.number, partitions.c.leader_epoch).where(*mine)
        )
        epochs.update((number, epoch) for number, epoch in found)
        touched = select(partitions.c.topic_id).where(partitions.c.number.in_(part))
        connection.execute(update(topics).where(topics.c.id.in_(touched)).values(version=version))
    return epochs


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
        for table in (partition_offset_checkpoints, partition_metadata, tiering_offsets):
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
