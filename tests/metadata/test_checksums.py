"""Checksums of rows: one flipped bit in any column of any table is found, named, and not changed.

Covers: kafkawire.metadata.schema.checksums, kafkawire.metadata.damage.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Float, ForeignKey, LargeBinary, String, Table, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from kafkawire.codec.types import uuid_text
from kafkawire.metadata import copies, damage, migrate, tables
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.damage import PageCheck
from kafkawire.metadata.database import Database
from kafkawire.metadata.engines import EngineSession
from kafkawire.metadata.schema import REVISION, UNCHECKED
from kafkawire.metadata.schema.checksums import WRITTEN_WHOLE
from kafkawire.metadata.session import Row
from kafkawire.metadata.sql import SqlMetadata, sqlite_metadata
from kafkawire.metadata.store import DamagedMetadata
from kafkawire.offsets.catalog.sql.storage import SqlStorage
from tests.kit.damaged_rows import damage_postgres, damage_sqlite
from tests.kit.postgres import new_database

TOPIC = b"t" * 16
CHECKED = [table for table in tables.metadata.sorted_tables if table.name not in UNCHECKED]
NAMES = [table.name for table in CHECKED]
COLUMNS = [
    pytest.param(table, column, id=f"{table.name}.{column.name}")
    for table in CHECKED
    for column in table.columns
    if column.computed is None
]


def value_of(column: Column[Any], at: int) -> Any:
    """A value of row `at`: the first has numbers of several sizes, the second zeros and NULLs."""
    if column.name == "topic_id" or (column.table.name == "topics" and column.name == "id"):
        return TOPIC if at == 0 or column.name == "topic_id" else b"u" * 16
    if column.name in ("partition_number", "number", "segment_id") or (
        column.table.name == "segments" and column.name == "id"
    ):
        return at + 1
    if column.primary_key and not isinstance(column.type, String | LargeBinary):
        return at + 1
    if at and column.nullable:
        return None
    if isinstance(column.type, LargeBinary):
        return bytes([1, 2, 200, at]) * 4
    if isinstance(column.type, String):
        return f"{column.name} {at}"[:22]
    if isinstance(column.type, Float):
        return 0.1 if at == 0 else 0.0
    if column.type.python_type is bool:
        return at == 0
    return (
        0 if at else {"Integer": 300, "BigInteger": 1_700_000_000_000}[type(column.type).__name__]
    )


def rows_of(table: Table) -> list[dict[str, Any]]:
    written = [column for column in table.columns if column.computed is None]
    return [{column.name: value_of(column, at) for column in written} for at in range(2)]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with two rows in each table."""
    path = tmp_path_factory.mktemp("full") / "metadata.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        tables.metadata.create_all(connection)
        connection.execute(tables.revision.insert().values(version_num=REVISION))
        for table in CHECKED:
            connection.execute(table.insert(), rows_of(table))
    engine.dispose()
    return path


@pytest.fixture
def copy(full: Path, tmp_path: Path) -> Path:
    path = tmp_path / "metadata.db"
    path.write_bytes(full.read_bytes())
    return path


def test_undamaged_rows_are_intact(copy: Path) -> None:
    damage.check_file(str(copy))
    assert PageCheck(str(copy)).run()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_flipped_bit_of_a_row_in_file_is_found(copy: Path, name: str) -> None:
    """Bits of each byte of the page that has the rows of a table: the check of rows, SQLite's own
    check or the reading of the row finds them, or the rows are the same."""
    with closing(sqlite3.connect(copy)) as connection:
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)
        )
        before = connection.execute(f"SELECT * FROM {name}").fetchall()
    whole = bytearray(copy.read_bytes())
    size = int.from_bytes(whole[16:18], "big")
    first = (page - 1) * size
    cells = first + int.from_bytes(whole[first + 5 : first + 7], "big")
    silent, found = [], 0
    for at in [*range(first, first + 20), *range(cells, first + size)]:
        for bit in (at % 8, (at + 3) % 8):
            whole[at] ^= 1 << bit
            seen = _state(bytes(whole), name, before)
            whole[at] ^= 1 << bit
            found += seen is None
            if seen is not None and seen != before:
                silent.append((at - first, bit, seen))
    assert not silent
    assert found > 50


def _state(image: bytes, name: str, before: list[Row]) -> list[Row] | None:
    """The rows of a table; None if damage is noticed."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(image)
        try:
            if connection.execute(f"SELECT 1 FROM {name} WHERE NOT {name}.intact").fetchone():
                return None
            rows = connection.execute(f"SELECT * FROM {name}").fetchall()
            check = "PRAGMA integrity_check(1)"
            if rows != before and connection.execute(check).fetchone() != ("ok",):
                return None
        except sqlite3.Error:
            return None
    return rows


def flipped(column: Column[Any], dialect: str) -> str:
    """An expression of SQL: the value of a column with one bit changed."""
    name = column.name
    if isinstance(column.type, LargeBinary):
        if dialect == "postgresql":
            return f"set_bit({name}, 9, 1 - get_bit({name}, 9))"
        return "x'" + bytes([1, 3, 200, 0] + [1, 2, 200, 0] * 3).hex() + "'"
    if isinstance(column.type, String):
        return f"'!' || substr({name}, 2)"
    if isinstance(column.type, Float):
        return f"{name} * 1.0000000000000002"
    if column.type.python_type is bool:
        return f"NOT {name}"
    return f"{name} + 512"


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_damaged_column_is_named_by_start(copy: Path, table: Table, column: Column[Any]) -> None:
    change = f"UPDATE {table.name} SET {column.name} = {flipped(column, 'sqlite')}"
    first = table.primary_key.columns[0]
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
    where = rows_of(table)[0][first.name]
    literal = f"x'{where.hex()}'" if isinstance(where, bytes) else repr(where)
    damage_sqlite(copy, f"{change} WHERE {first.name} = {literal}", table.name)
    with pytest.raises(DamagedMetadata) as refused:
        asyncio.run(sqlite_metadata(str(copy)).open())
    assert f"is damaged (1 row does not match its checksum: {table.name} of " in str(refused.value)
    assert "kafkawire restore --from-log" in str(refused.value)
    with pytest.raises(DamagedMetadata, match=f"checksum: {table.name} of"):
        PageCheck(str(copy)).run()
    with pytest.raises(DamagedMetadata, match=f"checksum: {table.name} of"):
        copies.check(str(copy))


@pytest.mark.real
@pytest.mark.slow
async def test_damaged_columns_are_named_in_postgres(postgres_url: str) -> None:
    url = await new_database(postgres_url)
    database = Database(url)
    await database.open()
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        for table in CHECKED:
            await connection.execute(table.insert(), rows_of(table))
    for table in CHECKED:
        for column in table.columns:
            if column.computed is None:
                async with engine.connect() as connection:
                    await connection.execute(text("SET session_replication_role = replica"))
                    found = await connection.run_sync(_found_in_postgres, table, column)
                    await connection.rollback()
                assert f"1 row does not match its checksum: {table.name} of " in found, column
    async with engine.begin() as connection:
        change = "UPDATE topics SET deleted_ms = deleted_ms + 1 WHERE deleted_ms IS NOT NULL"
        await connection.run_sync(damage_postgres, change, "topics")
    await engine.dispose()
    # A statement that changes another column of the row, and a start.
    with pytest.raises(DamagedMetadata, match=r"checksum: topics of name 0"):
        await database.run(lambda session: session.run("UPDATE topics SET version = 9"))
    await database.close()
    with pytest.raises(DamagedMetadata, match=r"checksum: topics of name 0"):
        await SqlMetadata(url).open()


def _found_in_postgres(connection: Any, table: Table, column: Column[Any]) -> str:
    first = table.primary_key.columns[0].name
    change = f"UPDATE {table.name} SET {column.name} = {flipped(column, 'postgresql')}"
    target = f"(SELECT {first} FROM {table.name} ORDER BY {first} LIMIT 1)"
    damage_postgres(connection, f"{change} WHERE {first} = {target}", table.name)
    return damage.find(EngineSession(connection).rows)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_row_is_neither_changed_in_part_nor_deleted(copy: Path, name: str) -> None:
    last = [column for column in tables.metadata.tables[name].columns if column.computed is None][
        -1
    ]
    first = next(iter(tables.metadata.tables[name].primary_key)).name
    where = f"WHERE {first} = (SELECT min({first}) FROM {name})"
    change = f"UPDATE {name} SET {last.name} = {flipped(last, 'sqlite')} {where}"
    damage_sqlite(copy, change, name)
    with closing(sqlite3.connect(copy)) as connection:
        for statement in (f"UPDATE {name} SET {first} = {first}", f"DELETE FROM {name}"):
            if name in WRITTEN_WHOLE and "UPDATE" in statement:
                continue
            with pytest.raises(sqlite3.IntegrityError, match=f"a row of {name} does not match"):
                connection.execute(statement)


READS: dict[str, Callable[[SqlMetadata, SqlStorage], Any]] = {
    "topics": lambda metadata, _: metadata.changes_since(0),
    "partitions": lambda metadata, _: metadata.changes_since(0),
    "lead_groups": lambda metadata, _: metadata.changes_since(0),
    "cluster": lambda metadata, _: metadata.lease_producer_ids(1),
    "brokers": lambda metadata, _: metadata.changes_since(0),
    "partition_offset_checkpoints": lambda _, storage: storage.load_partitions([1]),
    "offset_mappings": lambda _, storage: storage.mappings([(1, 0, 2**62)]),
    "tiering_offsets": lambda _, storage: storage.load_partitions([1]),
    "segments": lambda _, storage: storage.segments_by_id([1]),
    "remote_objects": lambda _, storage: storage.objects_by_uuid([bytes([1, 2, 200, 0]) * 4]),
    "tiers": lambda _, storage: storage.tiers(),
    "checkpoints": lambda _, storage: storage.load_log_position(1),
}


@pytest.mark.parametrize("name", READS)
async def test_row_that_is_damaged_after_start_is_named_when_read(copy: Path, name: str) -> None:
    metadata = sqlite_metadata(str(copy))
    with closing(sqlite3.connect(copy)) as connection:  # what a broker can read
        for statement in (
            "UPDATE brokers SET listeners = '{}'",
            "DELETE FROM features",
            "DELETE FROM configs",
            "DELETE FROM cluster WHERE id = 2",
            "UPDATE lead_groups SET leader = 1",
            "UPDATE partitions SET lead_group = 1",
            "UPDATE topics SET deleted_ms = NULL",
            "UPDATE partition_offset_checkpoints SET leader_epochs = x'01', producers = x'01'",
        ):
            connection.execute(statement)
        connection.commit()
    await metadata.open()
    column = {"topics": "created_ms", "partitions": "epoch_base", "brokers": "registered_ms"}.get(
        name, [c.name for c in tables.metadata.tables[name].columns if c.computed is None][-1]
    )
    first = tables.metadata.tables[name].primary_key.columns[0].name
    where = f"WHERE {first} = (SELECT min({first}) FROM {name})"
    change = flipped(tables.metadata.tables[name].columns[column], "sqlite")
    damage_sqlite(copy, f"UPDATE {name} SET {column} = {change} {where}", name)
    with pytest.raises(DamagedMetadata, match=f"1 row does not match its checksum: {name} of "):
        await READS[name](metadata, SqlStorage(metadata, 1, lambda: 0))
    await metadata.close()


REFERRED = [
    (table, key)
    for table in CHECKED
    # A set: in one order, as each process of pytest-xdist collects the same tests.
    for key in sorted(table.foreign_keys, key=lambda key: key.parent.name)
]


@pytest.mark.parametrize(
    ("table", "key"), REFERRED, ids=[f"{table.name}.{key.parent.name}" for table, key in REFERRED]
)
async def test_row_that_is_gone_is_named(copy: Path, table: Table, key: ForeignKey) -> None:
    """An older page of a database has no newer rows: a topic without its row would be deleted."""
    to = key.column
    with closing(sqlite3.connect(copy)) as connection:  # which keeps no foreign keys
        query = f"SELECT {key.parent.name} FROM {table.name} ORDER BY 1 DESC LIMIT 1"
        ((value,),) = connection.execute(query)
        connection.execute(f"DELETE FROM {to.table.name} WHERE {to.name} = ?", (value,))
        connection.commit()
    text = uuid_text(value) if isinstance(value, bytes) else value
    said = f"{to.table.name} has no row of {to.name} {text}, which {table.name} refers to"
    with pytest.raises(DamagedMetadata, match=said) as refused:
        await sqlite_metadata(str(copy)).open()
    assert "`kafkawire restore --from-log`" in str(refused.value)


async def test_checkpoint_is_not_dropped_for_a_damaged_deletion_time(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    metadata = sqlite_metadata(str(path))
    await metadata.open()
    await metadata.register_broker(1, {}, None)
    ((partition,),) = [i.partitions for i in await metadata.create_topics([NewTopic("a", [1])])]
    damage_sqlite(path, "UPDATE topics SET deleted_ms = 512", "topics")
    storage = SqlStorage(metadata, 1, lambda: 0)
    with pytest.raises(DamagedMetadata, match=r"1 row does not match its checksum: topics of a\b"):
        await storage.save_checkpoint(
            Checkpoint(1, 5, [PartitionCheckpoint(partition.number, 7, 0)])
        )
    await metadata.close()


async def test_damage_names_topic_and_partition(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    metadata = sqlite_metadata(str(path))
    await metadata.open()
    await metadata.register_broker(1, {}, None)
    topic = NewTopic("paid", [1, 1], configs={"retention.ms": "5"})
    ((*_, second),) = [info.partitions for info in await metadata.create_topics([topic])]
    await metadata.close()
    damage_sqlite(path, "UPDATE configs SET value = '4'", "configs")
    change = f"UPDATE partitions SET epoch_base = 4 WHERE number = {second.number}"
    damage_sqlite(path, change, "partitions")
    with pytest.raises(DamagedMetadata) as refused:
        await sqlite_metadata(str(path)).open()
    assert "2 rows do not match their checksums: configs of paid (resource_type 2, resource " in (
        str(refused.value)
    )
    assert ", name retention.ms), partitions of paid-1 (number 2)): " in str(refused.value)


@pytest.fixture
def migrated(tmp_path: Path) -> tuple[Path, dict[str, list[Row]]]:
    """A database of the revision without checksums with two rows in each table, and these rows."""
    path = tmp_path / "metadata.db"
    engine = create_engine(f"sqlite:///{path}")
    rows: dict[str, list[Row]] = {}
    with engine.begin() as connection:
        migrate.upgrade(connection, "0012")
        for table in CHECKED:
            names = [column.name for column in table.columns if column.computed is None]
            marks = ", ".join(f":{name}" for name in names)
            insert = text(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})")
            connection.execute(insert, rows_of(table))
            query = text(f"SELECT {', '.join(names)} FROM {table.name} ORDER BY 1")
            rows[table.name] = [tuple(row) for row in connection.execute(query)]
        connection.execute(text("UPDATE sqlite_sequence SET seq = 77 WHERE name = 'segments'"))
    engine.dispose()
    return path, rows


async def test_migration_keeps_rows_and_gives_them_checksums(
    migrated: tuple[Path, dict[str, list[Row]]],
) -> None:
    path, rows = migrated
    database = Database(f"sqlite:///{path}")
    await database.open()
    await database.close()
    damage.check_file(str(path))
    with closing(sqlite3.connect(path)) as connection:
        for table in CHECKED:
            names = ", ".join(c.name for c in table.columns if c.computed is None)
            query = f"SELECT {names} FROM {table.name} ORDER BY 1"
            assert connection.execute(query).fetchall() == rows[table.name]
        sequence = "SELECT seq FROM sqlite_sequence WHERE name = 'segments'"
        assert connection.execute(sequence).fetchall() == [(77,)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
