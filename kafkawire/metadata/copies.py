"""Whole copies of the metadata: to an SQLite file with all tables, from either database, and from
what a restore has found.

A backup is an SQLite file with the tables of `tables.py`, which any tool can read. SQLite is copied
with its online backup, PostgreSQL in one transaction with a consistent snapshot. Blocking, for
commands.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from kafkawire.log_lines import reason_of
from kafkawire.metadata import damage, schema
from kafkawire.metadata.catalog import ALL_BROKERS, BROKER_RESOURCE, BrokerInfo, TopicInfo
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers
from kafkawire.metadata.database import Database, revision_of
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.rows import (
    Row,
    broker_row,
    config_rows,
    group_row,
    partition_rows,
    topic_row,
)
from kafkawire.metadata.schema.created import KEYS
from kafkawire.metadata.session import Session, insert
from kafkawire.metadata.sqlite import (
    create_tables,
    end_wal,
    integrity_check,
    sqlite_transaction,
    uri_of,
)
from kafkawire.metadata.store import DamagedMetadata, MetadataError

if TYPE_CHECKING:
    from sqlalchemy import Connection

PAGES = 1_000
"""Pages copied at a time: 4 MB, between which the broker may write."""
ROWS = 5_000
"""Rows read and written at a time."""

_OF_RECORDS = (
    "offset_mappings", "segments", "partition_metadata", "checkpoints",
    "remote_objects", "tiering_offsets", "tiers", "data_folders", "object_logs",
    "replica_sets",
)  # fmt: skip

T = TypeVar("T")
End = tuple[int, int, int]
"""Partition number, log start, end of the log."""


def copy_sqlite(source: str, target: str) -> None:
    """Copy an SQLite file that is in use. Raises MetadataError if it is not metadata, newer, or
    damaged."""
    _copy_file(source, target, "rw")
    check(target, source)


def read(path: str, work: Callable[[Session], T]) -> T:
    """Run `work` on the tables of an SQLite file, which is only read. One of an older revision is
    copied to a temporary folder and migrated there. Raises MetadataError if the file is not
    metadata, newer, or damaged."""
    stored = _valid_revision(path, path)
    if stored == schema.REVISION:
        with sqlite_transaction(path, "ro") as session:
            return work(session)
    if not stored.isdigit() or int(stored) > int(schema.REVISION):
        raise _of_another_version(path, stored)
    with tempfile.TemporaryDirectory(prefix="kafkawire-migrated-") as folder:  # mode 0700
        copy = f"{folder}/metadata.db"
        _copy_file(path, copy, "ro")
        asyncio.run(_run(Database(f"sqlite:///{copy}"), lambda _: None))  # migrates it
        with sqlite_transaction(copy) as session:
            return work(session)


def _copy_file(source: str, target: str, mode: str) -> None:
    try:
        uri = uri_of(source, mode)
        with (
            closing(sqlite3.connect(uri, uri=True)) as one,
            closing(sqlite3.connect(target)) as other,
        ):
            one.backup(other, pages=PAGES)
        end_wal(target)
    except sqlite3.Error as error:
        raise MetadataError(
            f"{source} cannot be copied to {target} ({reason_of(error)})"
        ) from error


def check(path: str, name: str = "") -> None:
    """Raise MetadataError unless the file is valid metadata of this program's revision."""
    name = name or path
    stored = _valid_revision(path, name)
    if stored != schema.REVISION:
        raise _of_another_version(name, stored)


def _of_another_version(name: str, stored: str) -> MetadataError:
    return MetadataError(
        f"{name} has revision {stored}, this kafkawire knows {schema.REVISION}: "
        "use the version that wrote it"
    )


def _valid_revision(path: str, name: str) -> str:
    """Return the revision of a file. Raises MetadataError if it is damaged or no metadata."""
    found = integrity_check(path)
    if found != "ok":
        raise MetadataError(f"{name} is damaged or no metadata of kafkawire ({found})")
    with sqlite_transaction(path, "ro") as session:
        stored = revision_of(session)
    if stored is None:
        raise MetadataError(f"{name} is no metadata of kafkawire (it has no schema revision)")
    if stored == schema.REVISION:  # earlier ones have no checksums
        damage.check_file(path)
    return stored


def new_sqlite(path: str) -> None:
    """Create a file with empty tables and no revision row, which is copied."""
    with sqlite_transaction(path, "rwc") as session:
        create_tables(session)


def counts(path: str) -> dict[str, int]:
    """Return the number of rows of each table."""
    with sqlite_transaction(path, "ro") as session:
        return {name: session.rows(f"SELECT count(*) FROM {name}")[0][0] for name in KEYS}


def contents(path: str) -> tuple[str, list[tuple[str, int, int]]]:
    """Return the cluster id, and name, index and number of each partition of a live topic."""
    with sqlite_transaction(path, "ro") as session:
        ((cluster_id,),) = session.rows("SELECT cluster_id FROM cluster")
        rows = session.rows(
            "SELECT t.name, p.idx, p.number FROM partitions p JOIN topics t ON t.id = p.topic_id"
            " WHERE t.deleted_ms IS NULL"
        )
    return cluster_id, [(name, index, number) for name, index, number in rows]


def enter_ends(path: str, ends: Iterable[End]) -> None:
    """Store log ends that are higher than the checkpoints."""
    rows = [
        (number, end, start, pack_epochs([]), pack_producers([])) for number, start, end in ends
    ]
    with sqlite_transaction(path) as session:
        session.many(
            "INSERT INTO partition_offset_checkpoints (partition_number, checkpoint_offset,"
            " log_start, leader_epochs, producers, updated_at) VALUES (?, ?, ?, ?, ?, 0)"
            " ON CONFLICT (partition_number) DO UPDATE SET"
            " checkpoint_offset = max(checkpoint_offset, excluded.checkpoint_offset),"
            " log_start = max(log_start, excluded.log_start)",
            rows,
        )


def remove_records(path: str) -> None:
    """Convert the tables to those of brokers without records: logs begin at their previous end, in
    the next leader epoch, so no offset is assigned twice and clients detect it; there are no
    segments. Objects in a remote tier are forgotten but not deleted, because the source of the copy
    may need them."""
    with sqlite_transaction(path) as session:
        for table in _OF_RECORDS:
            session.run(f"DELETE FROM {table}")
        session.run("UPDATE lead_groups SET epoch = epoch + 1")
        found = session.rows(
            "SELECT p.epoch_base + g.epoch, c.checkpoint_offset, p.number FROM partitions p"
            " JOIN lead_groups g ON g.id = p.lead_group"
            " JOIN partition_offset_checkpoints c ON c.partition_number = p.number"
        )
        session.many(
            "UPDATE partition_offset_checkpoints SET log_start = checkpoint_offset,"
            " leader_epochs = ?, producers = ? WHERE partition_number = ?",
            [
                (pack_epochs([(epoch, end)]), pack_producers([]), number)
                for epoch, end, number in found
            ],
        )


def export(url: str, target: str) -> None:
    """Copy a consistent snapshot of all tables of a PostgreSQL database into a new SQLite file."""
    from kafkawire.metadata.engines import connection_of

    new_sqlite(target)
    with _engine_connection(target, "rw") as copy:

        def read(source: Session) -> None:
            source.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            if found := damage.find(source.rows):
                raise DamagedMetadata(database.name, found, ours=True)
            _copy_tables(connection_of(source), copy)

        database = Database(url)
        asyncio.run(_run(database, read))
    check(target, url)


def fill(url: str, source: str) -> None:
    """Copy all rows of an SQLite file into a PostgreSQL database, in one transaction. Raises
    MetadataError if the database has metadata already."""
    from kafkawire.metadata.engines import connection_of

    with _engine_connection(source, "ro") as copy:

        def write(target: Session) -> None:
            if target.rows("SELECT 1 FROM cluster"):
                raise MetadataError(f"{database.name} is not empty: restore into a new database")
            target.run(f"DELETE FROM {schema.VERSION_TABLE}")  # the copied rows replace it
            _copy_tables(copy, connection_of(target))
            target.rows(
                "SELECT setval(pg_get_serial_sequence('segments', 'id'),"
                " (SELECT coalesce(max(id), 0) + 1 FROM segments), false)"
            )

        database = Database(url)
        asyncio.run(_run(database, write))


async def _run(database: Database, work: Callable[[Session], None]) -> None:
    await database.open()
    try:
        await database.run(work)
    finally:
        await database.close()


@contextmanager
def _engine_connection(path: str, mode: str) -> Iterator[Connection]:
    """Run a transaction on an SQLite file through SQLAlchemy, which converts values between the
    two databases. Raises MetadataError."""
    from kafkawire.metadata.engines import EngineDriver, file_engine

    engine = file_engine(path, mode)
    try:
        with engine.begin() as connection:
            yield connection
    except EngineDriver.errors as error:
        raise EngineDriver(engine).failure(path, error) from error


def _copy_tables(source: Connection, target: Connection) -> None:
    """Copy all rows, ROWS at a time, parents before children."""
    from sqlalchemy import insert, select

    from kafkawire.metadata.tables import metadata

    for table in metadata.sorted_tables:
        written = [column for column in table.columns if column.computed is None]
        found = source.execute(select(*written).execution_options(yield_per=ROWS))
        for part in found.mappings().partitions():
            target.execute(insert(table), [dict(row) for row in part])


def enter_catalog(
    session: Session,
    node_id: int,
    topics: Sequence[TopicInfo],
    next_partition: int,
    next_producer_id: int,
    now_ms: int,
    cluster_id: str = "",
    broker_configs: Mapping[str, str] | None = None,
    deleted: Sequence[TopicInfo] = (),
) -> None:
    """Insert a whole catalog into empty tables, for a restore from the log or from a remote tier: a
    broker and all leaders, topics with partitions and settings, and the next numbers.
    The brokers register their addresses when they start. The cluster gets the id `cluster_id`, if
    given, and these dynamic settings of all brokers. `deleted` topics are inserted as deleted,
    because their partition numbers may be in the log. Raises MetadataError if the tables have
    topics."""
    if session.rows("SELECT 1 FROM topics LIMIT 1"):
        raise MetadataError("the metadata holds topics: restore into an empty database")
    leaders = {node_id, *(p.leader for info in [*topics, *deleted] for p in info.partitions)}
    those = [BrokerInfo(node, {}, None) for node in sorted(leaders)]
    _insert(session, "brokers", [broker_row(each, now_ms, 1) for each in those])
    _insert(session, "topics", [_topic_row(info, now_ms) for info in topics])
    gone = [{**_topic_row(info, now_ms), "deleted_ms": now_ms} for info in deleted]
    _insert(session, "topics", gone)
    every = [*topics, *deleted]
    groups = {leader: local_group(leader) for leader in leaders}
    _insert(session, "lead_groups", [group_row(group, 1) for group in groups.values()])
    partitions = [row for info in every for row in partition_rows(info.id, info.partitions, groups)]
    _insert(session, "partitions", partitions)
    _insert(session, "configs", [row for info in topics for row in config_rows(info)])
    settings = (broker_configs or {}).items()
    _insert(session, "configs", [_broker_setting(name, value) for name, value in settings])
    if cluster_id:
        session.run("UPDATE cluster SET cluster_id = ?", (cluster_id,))
    session.run(
        "UPDATE cluster SET version = 1, next_partition = ?, next_producer_id = ?",
        (next_partition, next_producer_id),
    )


def _broker_setting(name: str, value: str) -> Row:
    return {
        "resource_type": BROKER_RESOURCE,
        "resource": ALL_BROKERS,
        "name": name,
        "value": value,
    }


def _topic_row(info: TopicInfo, now_ms: int) -> Row:
    """Return the row of a topic; without a known creation time it is now."""
    row = topic_row(info, 1)
    row["created_ms"] = info.created_ms or now_ms
    return row


def _insert(session: Session, table: str, rows: Sequence[Row]) -> None:
    if rows:
        columns = ", ".join(rows[0])
        values = [tuple(row.values()) for row in rows]
        insert(session, f"INSERT INTO {table} ({columns})", values)
