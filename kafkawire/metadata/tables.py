"""The tables of the metadata, for SQLite and PostgreSQL.

A change is a few rows, never a rewrite of a whole: the tables are made for a million topics. A
deleted topic keeps its rows and gets a time; its name may be used again, its id and partition
numbers never (the numbers come from a counter that only rises). `topics.version` is the catalog
version of a topic's last change, so that another process can ask for what is new.

Only shapes here; statements are in `sql.py`. A change of a table is a new revision: a file in
migrations/versions and the number and text in `schema.py`; tests/test_migrations.py compares.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from kafkawire.metadata.schema import VERSION_TABLE

metadata = MetaData()

# As INTEGER PRIMARY KEY a number is SQLite's own row id: no second index for it.
Number = BigInteger().with_variant(Integer, "sqlite")
ALIVE = text("deleted_ms IS NULL")

cluster = Table(  # one row, id 1: names the cluster and counts what is never given twice
    "cluster",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("cluster_id", String(22), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("next_partition", BigInteger, nullable=False),
    Column("next_producer_id", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

brokers = Table(
    "brokers",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("rack", Text),
    Column("listeners", Text, nullable=False),  # JSON: {name: [host, port]}
    Column("registered_ms", BigInteger, nullable=False),
)

topics = Table(
    "topics",
    metadata,
    Column("id", LargeBinary(16), primary_key=True),
    Column("name", String(249), nullable=False),
    Column("internal", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("deleted_ms", BigInteger),
    Column("version", BigInteger, nullable=False),
    Index("topics_alive", "name", unique=True, sqlite_where=ALIVE, postgresql_where=ALIVE),
    Index("topics_version", "version"),
    sqlite_with_rowid=False,
)

partitions = Table(
    "partitions",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("topic_id", LargeBinary(16), ForeignKey("topics.id"), nullable=False),
    Column("idx", Integer, nullable=False),
    Column("leader", Integer, nullable=False),
    Column("leader_epoch", Integer, nullable=False),
    UniqueConstraint("topic_id", "idx", name="partitions_of_topic"),
)

configs = Table(  # dynamic settings; `resource` is a topic id, a broker number, or "" for all
    "configs",
    metadata,
    Column("resource_type", Integer, primary_key=True, autoincrement=False),
    Column("resource", String(22), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)

checkpoints = Table(  # how far the journals of a broker are covered by partition_checkpoints
    "checkpoints",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("place", BigInteger, nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
)

partition_checkpoints = Table(
    "partition_checkpoints",
    metadata,
    Column("number", Number, ForeignKey("partitions.number"), primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("log_start", BigInteger, nullable=False),
    Column("leader_epochs", LargeBinary, nullable=False),  # checkpoint.pack_epochs
    Column("producers", LargeBinary, nullable=False),  # checkpoint.pack_producers
)

revision = Table(  # one row; as Alembic would make it
    VERSION_TABLE,
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
