"""The revision of the tables, and the tables of a new SQLite file as text.

The text is what SQLAlchemy makes of `tables.py`, written down so that a new file can be made
without importing SQLAlchemy (`quick.py`); tests/metadata/test_migrations.py fails when the two
differ and says what to write here.
"""

REVISION = "0004"  # numbers, so that older and newer compare without Alembic
VERSION_TABLE = "kafkawire_revision"  # not Alembic's name: a database may be shared with others

ORPHANED = -1
"""offset_mappings.due_ms of a deleted topic, set by the transaction that deletes it."""

SQLITE_TABLES = """
CREATE TABLE brokers (
    node_id INTEGER NOT NULL,
    rack TEXT,
    listeners TEXT NOT NULL,
    registered_ms BIGINT NOT NULL,
    PRIMARY KEY (node_id)
);
CREATE TABLE checkpoints (
    node_id INTEGER NOT NULL,
    place BIGINT NOT NULL,
    saved_ms BIGINT NOT NULL,
    PRIMARY KEY (node_id)
);
CREATE TABLE cluster (
    id INTEGER NOT NULL,
    cluster_id VARCHAR(22) NOT NULL,
    version BIGINT NOT NULL,
    next_partition BIGINT NOT NULL,
    next_producer_id BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE configs (
    resource_type INTEGER NOT NULL,
    resource VARCHAR(22) NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (resource_type, resource, name)
)
 WITHOUT ROWID;
CREATE TABLE data_folders (
    node_id INTEGER NOT NULL,
    metadata_id BLOB NOT NULL,
    generation BIGINT NOT NULL,
    PRIMARY KEY (node_id)
);
CREATE TABLE kafkawire_revision (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT kafkawire_revision_pkc PRIMARY KEY (version_num)
);
CREATE TABLE remote_objects (
    uuid BLOB NOT NULL,
    segment_id BIGINT NOT NULL,
    node_id INTEGER NOT NULL,
    tier INTEGER NOT NULL,
    state INTEGER NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    delete_after_ms BIGINT NOT NULL,
    ranges BLOB NOT NULL,
    PRIMARY KEY (uuid)
)
 WITHOUT ROWID;
CREATE INDEX remote_objects_segment ON remote_objects (segment_id);
CREATE INDEX remote_objects_state ON remote_objects (node_id, state);
CREATE TABLE segments (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    uuid BLOB NOT NULL,
    node_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    size_bytes BIGINT NOT NULL,
    live_bytes BIGINT NOT NULL,
    generation INTEGER NOT NULL,
    retention_class TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    max_timestamp BIGINT NOT NULL,
    delete_after_ms BIGINT NOT NULL,
    local INTEGER DEFAULT 1 NOT NULL,
    object BLOB,
    tier INTEGER DEFAULT 0 NOT NULL,
    UNIQUE (uuid)
);
CREATE INDEX segments_state ON segments (node_id, state);
CREATE TABLE tiers (
    id INTEGER NOT NULL,
    url TEXT NOT NULL,
    state INTEGER NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE topics (
    id BLOB NOT NULL,
    name VARCHAR(249) NOT NULL,
    internal BOOLEAN NOT NULL,
    created_ms BIGINT NOT NULL,
    deleted_ms BIGINT,
    version BIGINT NOT NULL,
    PRIMARY KEY (id)
)
 WITHOUT ROWID;
CREATE UNIQUE INDEX topics_alive ON topics (name) WHERE deleted_ms IS NULL;
CREATE INDEX topics_version ON topics (version);
CREATE TABLE partitions (
    number INTEGER NOT NULL,
    topic_id BLOB NOT NULL,
    idx INTEGER NOT NULL,
    leader INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT partitions_of_topic UNIQUE (topic_id, idx),
    FOREIGN KEY(topic_id) REFERENCES topics (id)
);
CREATE TABLE offset_mappings (
    partition_number INTEGER NOT NULL,
    base_offset BIGINT NOT NULL,
    segment_id BIGINT NOT NULL,
    end_offset BIGINT NOT NULL,
    start BIGINT NOT NULL,
    length BIGINT NOT NULL,
    index_start BIGINT NOT NULL,
    index_length BIGINT NOT NULL,
    index_checksum BIGINT NOT NULL,
    max_timestamp BIGINT NOT NULL,
    batches BIGINT NOT NULL,
    records BIGINT NOT NULL,
    due_ms BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (partition_number, base_offset),
    FOREIGN KEY(partition_number) REFERENCES partitions (number),
    FOREIGN KEY(segment_id) REFERENCES segments (id)
)
 WITHOUT ROWID;
CREATE INDEX offset_mappings_segment ON offset_mappings (segment_id);
CREATE INDEX offset_mappings_due ON offset_mappings (due_ms);
CREATE TABLE partition_metadata (
    partition_number INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    last_activity_at BIGINT NOT NULL,
    record_count BIGINT NOT NULL,
    total_size BIGINT NOT NULL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
);
CREATE TABLE partition_offset_checkpoints (
    partition_number INTEGER NOT NULL,
    checkpoint_offset BIGINT NOT NULL,
    log_start BIGINT NOT NULL,
    leader_epochs BLOB NOT NULL,
    producers BLOB NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
);
CREATE TABLE tiering_offsets (
    partition_number INTEGER NOT NULL,
    dispatch_offset BIGINT NOT NULL,
    commit_offset BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
);
"""
