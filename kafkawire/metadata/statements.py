"""Statements that more than one method of `sql.SqlMetadata` needs, each inside its transaction.

Everything here takes the connection of a running transaction and commits nothing. KafkaError
where a condition of the `Metadata` port does not hold; the caller's transaction is then undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Table, bindparam, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import rows
from kafkawire.metadata.catalog import TOPIC_RESOURCE, Catalog, ConfigChange
from kafkawire.metadata.engine import now_ms, random_id
from kafkawire.metadata.schema import ORPHANED
from kafkawire.metadata.tables import (
    brokers,
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
    """The values in parts that fit into one statement."""
    for start in range(0, len(values), IN_LIMIT):
        yield values[start : start + IN_LIMIT]


async def insert(
    connection: AsyncConnection, table: Table, values: Iterable[dict[str, Any]]
) -> None:
    """Insert all rows, some at a time, which are made when it is their turn; none is fine."""
    left = iter(values)
    while part := list(islice(left, ROWS_PER_INSERT)):
        await connection.execute(table.insert(), part)


async def upsert(connection: AsyncConnection, table: Table, values: list[dict[str, Any]]) -> None:
    """Insert rows, or replaces those with the same primary key."""
    if not values:
        return
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table)
    keys = list(table.primary_key.columns)
    others = {
        column.name: statement.excluded[column.name]
        for column in table.columns
        if column not in keys and column.name in values[0]
    }
    replacing = statement.on_conflict_do_update(index_elements=keys, set_=others)
    for start in range(0, len(values), ROWS_PER_INSERT):
        await connection.execute(replacing, values[start : start + ROWS_PER_INSERT])


async def load_catalog(connection: AsyncConnection) -> Catalog:
    """The whole catalog; makes the row of the cluster when there is none."""
    found = (await connection.execute(select(cluster))).first()
    if found is None:
        cluster_id = uuid_text(random_id())
        await insert(connection, cluster, [rows.cluster_row(cluster_id, now_ms())])
        return Catalog(cluster_id)
    alive = topics.c.deleted_ms.is_(None)
    return rows.catalog(
        found.cluster_id,
        found.version,
        brokers=await _all(
            connection, select(brokers.c.node_id, brokers.c.listeners, brokers.c.rack)
        ),
        topics=await _parts(
            connection,
            select(topics.c.id, topics.c.name, topics.c.internal, topics.c.created_ms).where(alive),
        ),
        partitions=await _parts(
            connection,
            select(
                partitions.c.topic_id,
                partitions.c.number,
                partitions.c.leader,
                partitions.c.leader_epoch,
            ).order_by(partitions.c.number),
        ),
        configs=await _all(
            connection,
            select(configs.c.resource_type, configs.c.resource, configs.c.name, configs.c.value),
        ),
    )


async def _all(connection: AsyncConnection, statement: Any) -> Iterable[Any]:
    return (await connection.execute(statement)).all()


async def _parts(connection: AsyncConnection, statement: Any) -> rows.Parts:
    return (await connection.execute(statement)).partitions(rows.ROWS_AT_A_TIME)


async def advance(connection: AsyncConnection, partitions: int = 0) -> tuple[int, int]:
    """Raise the catalog version and takes partition numbers: (new version, first number)."""
    await connection.execute(
        update(cluster).values(
            version=cluster.c.version + 1, next_partition=cluster.c.next_partition + partitions
        )
    )
    found = (await connection.execute(select(cluster))).one()
    return found.version, found.next_partition - partitions


async def touch(connection: AsyncConnection, ids: Iterable[bytes], version: int) -> None:
    """Mark existing topics as changed. UNKNOWN_TOPIC_ID when one is not there."""
    for part in chunks(sorted(set(ids))):
        changed = await connection.execute(
            update(topics)
            .where(topics.c.id.in_(part), topics.c.deleted_ms.is_(None))
            .values(version=version)
        )
        if changed.rowcount != len(part):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)


async def forget(connection: AsyncConnection, ids: Sequence[bytes]) -> None:
    """Drop what nobody needs of deleted topics: settings and the state of
    partitions; mappings into segments are marked."""
    for part in chunks(ids):
        names = [uuid_text(topic_id) for topic_id in part]
        await connection.execute(
            delete(configs).where(
                configs.c.resource_type == TOPIC_RESOURCE, configs.c.resource.in_(names)
            )
        )
        numbers = select(partitions.c.number).where(partitions.c.topic_id.in_(part))
        for table in (partition_offset_checkpoints, partition_metadata, tiering_offsets):
            await connection.execute(delete(table).where(table.c.partition_number.in_(numbers)))
        await connection.execute(  # the log drops them, and must find them after a crash too
            update(offset_mappings)
            .where(offset_mappings.c.partition_number.in_(numbers))
            .values(due_ms=ORPHANED)
        )


async def living(connection: AsyncConnection, changes: list[ConfigChange]) -> dict[str, bytes]:
    """The ids of the topics that are changed, by name. UNKNOWN_TOPIC_OR_PARTITION."""
    names = sorted({each.name for each in changes if each.resource_type == TOPIC_RESOURCE})
    ids: dict[str, bytes] = {}
    for part in chunks(names):
        found = await connection.execute(
            select(topics.c.name, topics.c.id).where(
                topics.c.name.in_(part), topics.c.deleted_ms.is_(None)
            )
        )
        ids.update((name, topic_id) for name, topic_id in found)
    if len(ids) != len(names):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ids


async def write_configs(
    connection: AsyncConnection, changes: Mapping[ConfigKey, str | None]
) -> None:
    """Store settings; None takes one away."""
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
        await connection.execute(one, gone[start : start + ROWS_PER_INSERT])
    kept = [
        {"resource_type": kind, "resource": of, "name": name, "value": value}
        for (kind, of, name), value in changes.items()
        if value is not None
    ]
    await upsert(connection, configs, kept)
