"""Damage to rows of the metadata: values are changed, and the checksum of the row is not."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

_STORED = re.compile(r"checksum BIGINT GENERATED ALWAYS AS .* STORED, ?\s*intact", re.DOTALL)


def damage_sqlite(path: Path, change: str, table: str, values: Sequence[Any] = ()) -> None:
    """Run a statement that changes one row of a table in an SQLite file. Raises sqlite3.Error if it
    cannot; then the file is of no more use."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        query = "SELECT name, sql FROM sqlite_master WHERE tbl_name = ? AND type = 'trigger'"
        triggers = connection.execute(query, (table,)).fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        query = "SELECT sql FROM sqlite_master WHERE name = ?"
        ((declared,),) = connection.execute(query, (table,)).fetchall()
    plain = _STORED.sub("checksum BIGINT, intact", declared)
    assert plain != declared
    _declare(path, table, plain)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(change, values).rowcount == 1
    _declare(path, table, declared)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for _, sql in triggers:
            connection.execute(sql)
        assert connection.execute(f"SELECT count(*) FROM {table} WHERE NOT intact").fetchone() == (
            1,
        )


def _declare(path: Path, table: str, sql: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        update = "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?"
        connection.execute(update, (sql, table))


def damage_postgres(connection: Connection, change: str, table: str) -> None:
    """Run a statement that changes one row of a table in PostgreSQL. The checksums of the table are
    not kept from then on: to be rolled back, or of a database that is not written any more."""
    connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    connection.exec_driver_sql(f"ALTER TABLE {table} ALTER COLUMN checksum DROP EXPRESSION")
    assert connection.exec_driver_sql(change).rowcount == 1
    connection.exec_driver_sql(f"ALTER TABLE {table} ENABLE TRIGGER USER")
