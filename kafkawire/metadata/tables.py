"""The tables of the metadata, for SQLite and PostgreSQL.

A change writes a few rows, because there may be a million topics. A deleted topic keeps its rows
and gets a deletion time; its name may be reused, its id and partition numbers never (numbers come
from a counter). `version` is the catalog version of a row's last change, so that another process
can query changes (`changes`); the settings of all brokers have one in `cluster`.

Every row has a checksum (`checksums`), in a column that the database computes.

Only declarations; `sql.py` has the statements. A change of a table is a new revision: a file in
migrations/versions and the number in `schema`; tests/metadata/test_migrations.py
compares.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
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
    event,
    text,
)

from kafkawire.metadata.schema import VERSION_TABLE
from kafkawire.metadata.schema.checksums import add_checksums

metadata = MetaData()

# An INTEGER PRIMARY KEY is SQLite's row id, which needs no second index.
Number = BigInteger().with_variant(Integer, "sqlite")
ALIVE = text("deleted_ms IS NULL")

cluster = Table(  # one row, id 1: the cluster id and the counters of unique numbers
    "cluster",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("cluster_id", String(22), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("next_partition", BigInteger, nullable=False),
    Column("next_producer_id", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("broker_configs_version", BigInteger, nullable=False, server_default=text("0")),
)

brokers = Table(
    "brokers",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("rack", Text),
    Column("listeners", Text, nullable=False),  # JSON: {name: [host, port]}
    Column("registered_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),  # one more each start
    Column("folder", Text),  # brokers with equal texts share a data folder
)

# Raised by each broker about every second; another broker whose row does not change is not alive.
broker_heartbeats = Table(
    "broker_heartbeats",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("heartbeats", BigInteger, nullable=False),
)

lead_groups = Table(  # partitions that are led together, so that one row changes their leader
    "lead_groups",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # class 0: the leader's node id
    Column("class", Integer, nullable=False),  # 0: in the log of one broker
    Column("leader", Integer, nullable=False),
    Column("preferred", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("version", BigInteger, nullable=False),
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
    Index("topics_alive", "name", unique=True, sqlite_where=ALIVE),
    Index("topics_version", "version"),
    sqlite_with_rowid=False,
)


@event.listens_for(topics, "before_create")
def _alive_in_postgresql(_topics: Table, connection: Connection, **_options: Any) -> None:
    """Add PostgreSQL's condition only there: naming it above would import its dialect, which delays
    a start with SQLite by 30 ms."""
    if connection.dialect.name == "postgresql":
        (alive,) = [index for index in topics.indexes if index.name == "topics_alive"]
        alive.dialect_options["postgresql"]["where"] = ALIVE


partitions = Table(
    "partitions",
    metadata,
    Column("number", Number, primary_key=True, autoincrement=False),
    Column("topic_id", LargeBinary(16), ForeignKey("topics.id"), nullable=False),
    Column("idx", Integer, nullable=False),
    Column("lead_group", Integer, nullable=False),
    Column("epoch_base", Integer, nullable=False),  # leader epoch = this + the group's epoch
    UniqueConstraint("topic_id", "idx", name="partitions_of_topic"),
)

partition_moves = Table(  # partitions that their leader hands over to another broker
    "partition_moves",
    metadata,
    Column("partition_number", Number, ForeignKey("partitions.number"), primary_key=True),
    Column("target", Integer, nullable=False),  # a node id
    Column("asked_ms", BigInteger, nullable=False),
)

configs = Table(  # dynamic settings; `resource` is a topic id, broker number or group, "" for all
    "configs",
    metadata,
    Column("resource_type", Integer, primary_key=True, autoincrement=False),
    Column("resource", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)

features = Table(  # finalized levels that were changed; others have their default
    "features",
    metadata,
    Column("name", Text, primary_key=True),
    Column("level", Integer, nullable=False),  # 0 switches it off
    Column("epoch", BigInteger, nullable=False),  # cluster.version of the change
)

# the log position up to which partition_offset_checkpoints cover a broker's journals
checkpoints = Table(
    "checkpoints",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("place", BigInteger, nullable=False),
    Column("saved_ms", BigInteger, nullable=False),
)

data_folders = Table(  # which data folder each broker writes to; see kafkawire.metadata.pairing
    "data_folders",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("metadata_id", LargeBinary(16), nullable=False),  # the folder has the same
    Column("generation", BigInteger, nullable=False),  # never below the folder's
)

object_logs = Table(  # the logs of brokers; see kafkawire.offsets.catalog.object_logs
    "object_logs",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("broker_epoch", BigInteger, primary_key=True, autoincrement=False),  # of the writer
    Column("url", Text, nullable=False),  # of the broker's folder in its tier
    Column("released", BigInteger, nullable=False),  # objects below it may be deleted
    Column("ended", BigInteger),  # the sequence number of its fence; NULL: open
    Column("changed_ms", BigInteger, nullable=False),
)

followers = Table(  # processes that keep copies of logs; see kafkawire.offsets.catalog.replica_sets
    "followers",
    metadata,
    Column("replica_id", Text, primary_key=True),  # of its folder, 32 hexadecimal digits
    Column("node_id", Integer, nullable=False),  # the broker whose machine it is on
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("secret", LargeBinary(32), nullable=False),  # who has it may connect
    Column("changed_ms", BigInteger, nullable=False),
    Column("certificate", Text, nullable=False, server_default=text("''")),  # PEM; empty: no TLS
)

replica_sets = Table(  # which followers have all that a broker has acknowledged; as above
    "replica_sets",
    metadata,
    Column("node_id", Integer, primary_key=True, autoincrement=False),
    Column("broker_epoch", BigInteger, nullable=False),  # of the process that stored it
    Column("in_sync", Text, nullable=False),  # replica ids with commas between
    Column("version", BigInteger, nullable=False),
    Column("changed_ms", BigInteger, nullable=False),
)

partition_offset_checkpoints = Table(  # the checkpoint of each partition
    "partition_offset_checkpoints",
    metadata,
    Column("partition_number", Number, ForeignKey("partitions.number"), primary_key=True),
    Column("checkpoint_offset", BigInteger, nullable=False),  # the next offset
    Column("log_start", BigInteger, nullable=False),
    Column("leader_epochs", LargeBinary, nullable=False),  # checkpoint.pack_epochs
    Column("producers", LargeBinary, nullable=False),  # checkpoint.pack_producers
    Column("updated_at", BigInteger, nullable=False),  # ms, as all times here
)

segments = Table(  # the segment files of all brokers; states in kafkawire.offsets.catalog.port
    "segments",
    metadata,
    Column("id", Number, primary_key=True),
    Column("uuid", LargeBinary(16), nullable=False, unique=True),
    Column("node_id", Integer, nullable=False),
    Column("state", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("live_bytes", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("retention_class", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("max_timestamp", BigInteger, nullable=False),
    Column("delete_after_ms", BigInteger, nullable=False),
    Column("local", Integer, nullable=False, server_default=text("1")),  # 0: it has no file
    Column("object", LargeBinary(16)),  # the uuid of its finished object
    Column("tier", Integer, nullable=False, server_default=text("0")),  # of that object
    Index("segments_state", "node_id", "state"),
    sqlite_autoincrement=True,  # an id is never reused, even if the highest one is deleted
)

offset_mappings = Table(  # the location of a partition's offsets in segments
    "offset_mappings",
    metadata,
    Column("partition_number", Number, ForeignKey("partitions.number"), primary_key=True),
    Column("base_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("segment_id", BigInteger, ForeignKey("segments.id"), nullable=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("start", BigInteger, nullable=False),  # of its batches in the file
    Column("length", BigInteger, nullable=False),
    Column("index_start", BigInteger, nullable=False),
    Column("index_length", BigInteger, nullable=False),
    Column("index_checksum", BigInteger, nullable=False),
    Column("max_timestamp", BigInteger, nullable=False),
    Column("batches", BigInteger, nullable=False),
    Column("records", BigInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),  # -1: its topic is deleted
    Column("created_at", BigInteger, nullable=False),
    Index("offset_mappings_segment", "segment_id"),
    Index("offset_mappings_due", "due_ms"),
    sqlite_with_rowid=False,  # one tree, in order of partition and offset
)

partition_metadata = Table(  # totals of a partition in segments; written with each cut
    "partition_metadata",
    metadata,
    Column("partition_number", Number, ForeignKey("partitions.number"), primary_key=True),
    Column("created_at", BigInteger, nullable=False),
    Column("last_activity_at", BigInteger, nullable=False),
    Column("record_count", BigInteger, nullable=False),
    Column("total_size", BigInteger, nullable=False),
)

remote_objects = (
    # objects of the remote tier, past and future ones included; states in
    # kafkawire.offsets.catalog.port
    Table(
        "remote_objects",
        metadata,
        Column("uuid", LargeBinary(16), primary_key=True),
        Column("segment_id", BigInteger, nullable=False),  # which may be deleted
        Column("node_id", Integer, nullable=False),
        Column("tier", Integer, nullable=False),
        Column("state", Integer, nullable=False),
        Column("size_bytes", BigInteger, nullable=False),
        Column("created_ms", BigInteger, nullable=False),
        Column("delete_after_ms", BigInteger, nullable=False),
        Column("ranges", LargeBinary, nullable=False),  # kafkawire.offsets.catalog.port.pack_ranges
        Index("remote_objects_state", "node_id", "state"),
        Index("remote_objects_segment", "segment_id"),
        sqlite_with_rowid=False,
    )
)

tiering_offsets = Table(  # the upload progress of each partition
    "tiering_offsets",
    metadata,
    Column("partition_number", Number, ForeignKey("partitions.number"), primary_key=True),
    Column("dispatch_offset", BigInteger, nullable=False),
    Column("commit_offset", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

tiers = Table(  # the tiers that objects are or were in
    "tiers",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("url", Text, nullable=False),
    Column("state", Integer, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("node_id", Integer),  # the broker that writes there
)

acls = Table(  # access rules; a name may be longer than an index of PostgreSQL allows
    "acls",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),  # SHA-256 of the other columns
    Column("resource_type", Integer, nullable=False),  # numbers as in Kafka's protocol
    Column("resource_name", Text, nullable=False),
    Column("pattern_type", Integer, nullable=False),
    Column("principal", Text, nullable=False),  # "User:alice"
    Column("host", Text, nullable=False),
    Column("operation", Integer, nullable=False),
    Column("permission", Integer, nullable=False),
)

scram_credentials = Table(  # what a broker knows of a password: nothing to log in with
    "scram_credentials",
    metadata,
    Column("user_name", Text, primary_key=True),
    Column("mechanism", Integer, primary_key=True, autoincrement=False),  # as in Kafka's protocol
    Column("salt", LargeBinary, nullable=False),
    Column("stored_key", LargeBinary, nullable=False),
    Column("server_key", LargeBinary, nullable=False),
    Column("iterations", Integer, nullable=False),
)

client_quotas = Table(
    "client_quotas",
    metadata,
    Column("entity", Text, primary_key=True),  # user, client id, ip: kafkawire.security
    Column("key", Text, primary_key=True),
    Column("value", Double, nullable=False),
)

delegation_tokens = Table(  # the token itself is nowhere: an HMAC of its id with a secret key
    "delegation_tokens",
    metadata,
    Column("token_id", Text, primary_key=True),
    Column("key_id", LargeBinary(16), nullable=False),  # fingerprint of the secret key
    Column("owner", Text, nullable=False),  # "User:alice"
    Column("requester", Text, nullable=False),
    Column("renewers", Text, nullable=False),  # JSON
    Column("issued_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("max_ms", BigInteger, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("iterations", Integer, nullable=False),
    Column("stored_key_256", LargeBinary, nullable=False),
    Column("server_key_256", LargeBinary, nullable=False),
    Column("stored_key_512", LargeBinary, nullable=False),
    Column("server_key_512", LargeBinary, nullable=False),
)

security_versions = Table(  # how often each of the tables above was changed, for other brokers
    "security_versions",
    metadata,
    Column("name", Text, primary_key=True),  # of the table
    Column("version", BigInteger, nullable=False),
)

revision = Table(  # one row, as created by Alembic
    VERSION_TABLE,
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)

add_checksums(metadata)
