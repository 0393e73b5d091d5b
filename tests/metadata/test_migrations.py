"""The tables of old, new, damaged and foreign databases."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from kafkawire.codec.types import uuid_text
from kafkawire.metadata import migrate, tables
from kafkawire.metadata import schema as schema_text
from kafkawire.metadata.catalog import NewTopic
from kafkawire.metadata.database import Database
from kafkawire.metadata.generated import random_id
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import MetadataError
from tests.kit.damaged_rows import damage_sqlite
from tests.kit.postgres import new_database

NEXT_STEP = f'''"""A step of the future."""

import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{schema_text.REVISION}"


def upgrade() -> None:
    """Adds a column."""
    op.add_column("topics", sa.Column("colour", sa.Text))
'''


def schema(connection: Connection) -> dict[str, object]:
    """The whole schema of a database."""
    found = inspect(connection)
    described: dict[str, object] = {
        name: (
            [{**column, "type": repr(column["type"])} for column in found.get_columns(name)],
            found.get_pk_constraint(name),
            found.get_foreign_keys(name),
            sorted(_index(index) for index in found.get_indexes(name)),
            found.get_unique_constraints(name),
        )
        for name in sorted(found.get_table_names())
    }
    if (
        connection.dialect.name == "sqlite"
    ):  # also options that SQLAlchemy does not reflect: WITHOUT ROWID
        rows = connection.execute(text("SELECT name, sql FROM sqlite_master ORDER BY name")).all()
        plain = [(name, (sql or "").replace('"', "")) for name, sql in rows]  # renamed: in quotes
        described["sql"] = [(name, " ".join(sql.split())) for name, sql in plain]
    else:
        query = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
        described["triggers"] = connection.execute(text(query)).all()
        query = "SELECT prosrc FROM pg_proc WHERE proname = 'intact' ORDER BY 1"
        described["functions"] = connection.execute(text(query)).all()
    return described


def _index(index: Mapping[str, Any]) -> list[tuple[str, str]]:
    options = {key: str(value) for key, value in index.get("dialect_options", {}).items()}
    return sorted((key, str(value)) for key, value in {**index, "dialect_options": options}.items())


async def made_by(url: str, make: Callable[[Connection], None]) -> dict[str, object]:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(make)
        described = await connection.run_sync(schema)
        version = await connection.execute(tables.revision.select())
        assert version.scalar() in (None, schema_text.REVISION)
    await engine.dispose()
    return described


async def both_ways_agree(fresh: str, stepped: str) -> None:
    made = await made_by(fresh, tables.metadata.create_all)
    assert set(tables.metadata.tables) == set(made) - {"sql", "triggers", "functions"}
    assert await made_by(stepped, migrate.upgrade) == made


async def test_migrations_give_current_tables(tmp_path: Path) -> None:
    base = f"sqlite+aiosqlite:///{tmp_path}"
    await both_ways_agree(f"{base}/fresh.db", f"{base}/stepped.db")


async def test_new_file_has_the_declared_tables(tmp_path: Path) -> None:
    """A new file is created without SQLAlchemy."""
    await some_topics(tmp_path)
    url = f"sqlite+aiosqlite:///{tmp_path}"
    declared = await made_by(f"{url}/declared.db", tables.metadata.create_all)
    assert await made_by(f"{url}/metadata.db", lambda _: None) == declared


@pytest.mark.real
async def test_migrations_give_current_tables_in_postgres(postgres_url: str) -> None:
    fresh, stepped = [
        (await new_database(postgres_url)).replace("postgresql://", "postgresql+asyncpg://")
        for _ in range(2)
    ]
    await both_ways_agree(fresh, stepped)


async def some_topics(path: Path) -> None:
    store = open_metadata("", str(path))
    await store.open()
    await store.create_topics([NewTopic("a", [1, 1])])
    await store.close()


async def test_old_database_is_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await some_topics(tmp_path)
    steps = tmp_path / "migrations"
    shutil.copytree(migrate.STEPS, steps)
    (steps / "versions" / "9999_colour.py").write_text(NEXT_STEP)
    monkeypatch.setattr(schema_text, "REVISION", "9999")
    upgrade = migrate.upgrade
    monkeypatch.setattr(migrate, "upgrade", lambda c: upgrade(c, steps=steps))
    for _ in range(2):  # the second time there is nothing to do
        store = open_metadata("", str(tmp_path))
        assert list((await store.open()).by_name) == ["a"]
        await store.close()
    with sqlite3.connect(tmp_path / "metadata.db") as connection:
        assert connection.execute("SELECT name, colour FROM topics").fetchall() == [("a", None)]
        stamp = f"SELECT version_num FROM {schema_text.VERSION_TABLE}"
        assert connection.execute(stamp).fetchall() == [("9999",)]
    connection.close()


async def test_failed_migration_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_topics(tmp_path)
    before = (tmp_path / "metadata.db").read_bytes()
    steps = tmp_path / "migrations"
    shutil.copytree(migrate.STEPS, steps)
    failing = NEXT_STEP + '    op.execute("SELECT nonsense")\n'
    (steps / "versions" / "9999_colour.py").write_text(failing)
    monkeypatch.setattr(schema_text, "REVISION", "9999")
    upgrade = migrate.upgrade
    monkeypatch.setattr(migrate, "upgrade", lambda c: upgrade(c, steps=steps))
    with pytest.raises(MetadataError, match=r"metadata.db failed .*nonsense"):
        await open_metadata("", str(tmp_path)).open()
    assert (tmp_path / "metadata.db").read_bytes() == before


def stamped(path: Path, version: str) -> None:
    with sqlite3.connect(path / "metadata.db") as connection:
        connection.execute(f"UPDATE {schema_text.VERSION_TABLE} SET version_num = ?", (version,))
    connection.close()


async def refusal(url: str, folder: Path) -> str:
    with pytest.raises(MetadataError) as caught:
        await open_metadata(url, str(folder)).open()
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_newer_database_is_refused_in_one_sentence(tmp_path: Path) -> None:
    await some_topics(tmp_path)
    stamped(tmp_path, "10417")
    assert await refusal("", tmp_path) == (
        f"{tmp_path}/metadata.db was written by a newer kafkawire (revision 10417, this one knows "
        f"{schema_text.REVISION}): use that version. If there was none, the revision is damaged: "
        "restore it from a copy, or rebuild it with `kafkawire restore --from-log`"
    )
    stamped(tmp_path, "spam")
    assert "no revision this kafkawire knows: 'spam'" in await refusal("", tmp_path)


@pytest.mark.parametrize("version", ["0012", "0011", "0003"])
async def test_older_revision_than_that_of_the_tables_is_damage(
    tmp_path: Path, version: str
) -> None:
    """One flipped bit of 0013: the steps after it would be applied again."""
    await some_topics(tmp_path)
    stamped(tmp_path, version)
    before = (tmp_path / "metadata.db").read_bytes()
    said = await refusal("", tmp_path)
    assert f"is damaged (it is not of revision {version}" in said
    assert "kafkawire restore --from-log" in said
    assert (tmp_path / "metadata.db").read_bytes() == before


@pytest.mark.parametrize("size_bytes", [50, 5000])
async def test_damaged_file_is_named_in_one_sentence(tmp_path: Path, size_bytes: int) -> None:
    (tmp_path / "metadata.db").write_bytes(b"\x07" * size_bytes)
    sentence = await refusal("", tmp_path)
    assert sentence.startswith(f"{tmp_path}/metadata.db is damaged or no metadata of kafkawire")


async def test_damage_inside_file_is_named_when_read(tmp_path: Path) -> None:
    await some_topics(tmp_path)
    path = tmp_path / "metadata.db"
    whole = bytearray(path.read_bytes())
    page = int.from_bytes(whole[16:18], "big")
    assert len(whole) > 5 * page
    whole[page:] = b"\xff" * (len(whole) - page)
    path.write_bytes(whole)
    assert "damaged" in await refusal("", tmp_path)


async def test_unopenable_database_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert "file/data cannot be made" in await refusal("", tmp_path / "file" / "data")
    (tmp_path / "data" / "metadata.db").mkdir(parents=True)
    assert "metadata.db cannot be opened" in await refusal("", tmp_path / "data")
    url = "postgresql://someone:secret@127.0.0.1:1/none"
    sentence = await refusal(url, tmp_path)
    assert "postgresql://someone:***@127.0.0.1:1/none cannot be opened" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize("url", ["nonsense", "mysql://h/d", "://"])
async def test_unsupported_url_is_refused(url: str, tmp_path: Path) -> None:
    assert repr(url) in await refusal(url, tmp_path)


async def test_sqlite_settings_make_commits_durable(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/metadata.db")
    await database.open()
    for pragma, value in [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)]:
        found = await database.run(lambda session: session.rows(f"PRAGMA {pragma}"))  # noqa: B023
        assert (pragma, found) == (pragma, [(value,)])
    await database.close()


def test_topic_ids_do_not_begin_with_dash() -> None:
    ids = {random_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert {uuid_text(each)[0] for each in ids}.isdisjoint("-")
    assert {uuid.UUID(bytes=each).version for each in ids} == {4}


@pytest.mark.slow
def test_start_imports_neither_alembic_nor_sqlalchemy(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from kafkawire.metadata.sql import open_metadata\n"
        "from kafkawire.offsets.catalog.sql.storage import SqlStorage\n"
        "async def start():\n"
        f"    store = open_metadata('', {str(tmp_path)!r})\n"
        "    await store.open()\n"
        "    await store.register_broker(1, {'P': ('h', 1)}, None)\n"
        "    storage = SqlStorage(store, 1, lambda: 0)\n"
        "    await storage.load_log_position(1)\n"
        "    await storage.load_partitions([1, 2])\n"
        "    late = 'alembic', 'sqlalchemy', 'asyncpg'\n"
        "    print([name for name in late if name in sys.modules])\n"
        "    await store.close()\n"
        "asyncio.run(start())"
    )
    for _ in range(2):  # a new file, and an existing one
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


async def test_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a?b#c%20 d"
    await some_topics(folder)
    assert (folder / "metadata.db").is_file()
    assert os.listdir(tmp_path) == [folder.name]


async def test_leaders_and_epochs_survive_migration_to_lead_groups(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    topic = b"t" * 16
    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: migrate.upgrade(sync, "0007"))
        for statement in (
            "INSERT INTO cluster VALUES (1, 'c', 5, 10, 0, 0)",
            "INSERT INTO brokers VALUES (1, NULL, '{}', 0), (7, NULL, '{}', 0)",
        ):
            await connection.execute(text(statement))
        insert = text("INSERT INTO topics VALUES (:id, 't', 0, 0, NULL, 5)")
        await connection.execute(insert, {"id": topic})
        for number, leader, epoch in ((1, 1, 0), (2, 2, 4), (3, 1, 9)):
            row = {"n": number, "id": topic, "idx": number - 1, "leader": leader, "e": epoch}
            insert = text("INSERT INTO partitions VALUES (:n, :id, :idx, :leader, :e)")
            await connection.execute(insert, row)
    await engine.dispose()
    store = open_metadata("", str(tmp_path))
    catalog = await store.open()
    led = [(p.leader, p.leader_epoch) for p in catalog.by_name["t"].partitions]
    assert led == [(1, 0), (2, 4), (1, 9)]
    assert sorted(group.id for group in catalog.groups()) == [1, 2, 7]  # 2 is not registered
    await store.close()


def _settings_before_0014(connection: Connection) -> None:
    migrate.upgrade(connection, "0013")
    columns = "id, cluster_id, version, next_partition, next_producer_id, created_ms"
    connection.execute(text(f"INSERT INTO cluster ({columns}) VALUES (1, 'c', 5, 10, 0, 0)"))
    insert = "INSERT INTO configs (resource_type, resource, name, value) VALUES (4, '1', 'a', 'b')"
    connection.execute(text(insert))


async def test_settings_survive_migration_to_names_of_any_length(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'metadata.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(_settings_before_0014)
    await engine.dispose()
    store = open_metadata("", str(tmp_path))
    assert (await store.open()).broker_overrides == {"1": {"a": "b"}}
    await store.close()


@pytest.mark.real
async def test_settings_survive_migration_in_postgres(postgres_url: str) -> None:
    url = (await new_database(postgres_url)).replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(_settings_before_0014)
        await connection.run_sync(migrate.upgrade)
        found = await connection.execute(text("SELECT value, configs.intact FROM configs"))
        assert found.all() == [("b", True)]
    await engine.dispose()


async def test_damaged_settings_are_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with engine.begin() as connection:
        await connection.run_sync(_settings_before_0014)
    await engine.dispose()
    damage_sqlite(path, "UPDATE configs SET value = 'c'", "configs")
    store = open_metadata("", str(tmp_path))
    with pytest.raises(MetadataError):
        await store.open()
