"""The statements a start needs of an SQLite file, without SQLAlchemy.

What `sql.py` does with the same names, for `quick.SqliteMetadata`; each function is run inside
a transaction of `engine.sqlite_transaction`, on a thread. The contract tests run against both
ways. The tables of a new file come from `schema.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.metadata import engine, rows, schema
from kafkawire.metadata.catalog import BrokerInfo, Catalog


def load(connection: sqlite3.Connection) -> Catalog | None:
    """The catalog of a file with our revision, or of a file that is made just now; else None."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return _create(connection)
    if schema.VERSION_TABLE not in names:
        return None
    stored = connection.execute(f"SELECT version_num FROM {schema.VERSION_TABLE}").fetchone()
    found = connection.execute("SELECT cluster_id, version FROM cluster").fetchone()
    if stored != (schema.REVISION,) or found is None:
        return None
    return rows.catalog(
        found[0],
        found[1],
        brokers=connection.execute("SELECT node_id, listeners, rack FROM brokers"),
        # The plus keeps the planner from the index of living names, which is ten times slower.
        topics=_parts(
            connection,
            "SELECT id, name, internal, created_ms FROM topics WHERE +deleted_ms IS NULL",
        ),
        partitions=_parts(
            connection,
            "SELECT topic_id, number, leader, leader_epoch FROM partitions ORDER BY number",
        ),
        configs=connection.execute("SELECT resource_type, resource, name, value FROM configs"),
    )


def _parts(connection: sqlite3.Connection, query: str) -> Iterator[list[tuple[Any, ...]]]:
    cursor = connection.execute(query)
    while part := cursor.fetchmany(rows.ROWS_AT_A_TIME):
        yield part


def _create(connection: sqlite3.Connection) -> Catalog:
    for statement in schema.SQLITE_TABLES.split(";\n"):  # executescript would commit
        connection.execute(statement)
    connection.execute(f"INSERT INTO {schema.VERSION_TABLE} VALUES (?)", (schema.REVISION,))
    cluster_id = uuid_text(engine.random_id())
    _put(connection, "cluster", [rows.cluster_row(cluster_id, engine.now_ms())])
    return Catalog(cluster_id)


def register_broker(connection: sqlite3.Connection, info: BrokerInfo) -> None:
    """Insert a broker."""
    _advance(connection)
    _put(connection, "brokers", [rows.broker_row(info, engine.now_ms())])


def bump_leader_epochs(
    connection: sqlite3.Connection, numbers: Iterable[int], node_id: int
) -> dict[int, int]:
    """Raise the leader epochs of partitions `node_id` leads; the new ones."""
    keys = [(number,) for number in sorted(set(numbers))]
    raised = connection.executemany(
        "UPDATE partitions SET leader_epoch = leader_epoch + 1"
        f" WHERE number = ? AND leader = {node_id:d}",
        keys,
    )
    if raised.rowcount != len(keys):
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    version = _advance(connection)
    connection.executemany(
        f"UPDATE topics SET version = {version:d}"
        " WHERE id = (SELECT topic_id FROM partitions WHERE number = ?)",
        keys,
    )
    one = "SELECT number, leader_epoch FROM partitions WHERE number = ?"
    return dict(connection.execute(one, key).fetchone() for key in keys)


def raise_leader_epochs(connection: sqlite3.Connection, node_id: int) -> None:
    """Raise the leader epochs of all partitions `node_id` leads."""
    _advance(connection)
    connection.execute(
        "UPDATE partitions SET leader_epoch = leader_epoch + 1 WHERE leader = ?", (node_id,)
    )


def _advance(connection: sqlite3.Connection) -> int:
    """Raise the catalog version: the new one."""
    connection.execute("UPDATE cluster SET version = version + 1")
    return int(connection.execute("SELECT version FROM cluster").fetchone()[0])


def _put(connection: sqlite3.Connection, table: str, values: list[rows.Row]) -> None:
    """Insert rows, or replaces those with the same primary key."""
    if values:
        marks = ", ".join("?" * len(values[0]))
        connection.executemany(
            f"INSERT OR REPLACE INTO {table} ({', '.join(values[0])}) VALUES ({marks})",
            [tuple(row.values()) for row in values],
        )
