"""The tables that `tables` declares, for modules without SQLAlchemy.

Made by `make docs`.
"""

# ruff: noqa: E501
# fmt: off

KEYS: dict[str, tuple[str, ...]] = {
    "acls": ('digest',),
    "broker_heartbeats": ('node_id',),
    "brokers": ('node_id',),
    "checkpoints": ('node_id',),
    "client_quotas": ('entity', 'key'),
    "cluster": ('id',),
    "configs": ('resource_type', 'resource', 'name'),
    "data_folders": ('node_id',),
    "delegation_tokens": ('token_id',),
    "features": ('name',),
    "followers": ('replica_id',),
    "kafkawire_revision": ('version_num',),
    "lead_groups": ('id',),
    "object_logs": ('node_id', 'broker_epoch'),
    "remote_objects": ('uuid',),
    "replica_sets": ('node_id',),
    "scram_credentials": ('user_name', 'mechanism'),
    "security_versions": ('name',),
    "segments": ('id',),
    "tiers": ('id',),
    "topics": ('id',),
    "partitions": ('number',),
    "offset_mappings": ('partition_number', 'base_offset'),
    "partition_metadata": ('partition_number',),
    "partition_moves": ('partition_number',),
    "partition_offset_checkpoints": ('partition_number',),
    "tiering_offsets": ('partition_number',),
}
"""The primary key of each table; a table comes after those that it refers to."""

REFERENCES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "partitions": (('topic_id', 'topics', 'id'),),
    "offset_mappings": (('partition_number', 'partitions', 'number'), ('segment_id', 'segments', 'id')),
    "partition_metadata": (('partition_number', 'partitions', 'number'),),
    "partition_moves": (('partition_number', 'partitions', 'number'),),
    "partition_offset_checkpoints": (('partition_number', 'partitions', 'number'),),
    "tiering_offsets": (('partition_number', 'partitions', 'number'),),
}
"""Foreign keys of tables: column, table, column there."""

SQLITE: dict[str, tuple[str, ...]] = {
    "acls": (
    """CREATE TABLE acls (
    digest BLOB NOT NULL,
    resource_type INTEGER NOT NULL,
    resource_name TEXT NOT NULL,
    pattern_type INTEGER NOT NULL,
    principal TEXT NOT NULL,
    host TEXT NOT NULL,
    operation INTEGER NOT NULL,
    permission INTEGER NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(digest)='blob')*33554467+(resource_type<'')+(resource_type&4294967295)*33570305+(resource_type>>32&4294967295)*33617819+(typeof(resource_name)='text')*33697009+(pattern_type<'')+(pattern_type&4294967295)*33807875+(pattern_type>>32&4294967295)*33950417+(typeof(principal)='text')*34124635+(typeof(host)='text')*34330529+(operation<'')+(operation&4294967295)*34568099+(operation>>32&4294967295)*34837345+(permission<'')+(permission&4294967295)*35138267+(permission>>32&4294967295)*35470865)||digest||resource_name||principal||host AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(digest)='blob')*33554467+(resource_type<'')+(resource_type&4294967295)*33570305+(resource_type>>32&4294967295)*33617819+(typeof(resource_name)='text')*33697009+(pattern_type<'')+(pattern_type&4294967295)*33807875+(pattern_type>>32&4294967295)*33950417+(typeof(principal)='text')*34124635+(typeof(host)='text')*34330529+(operation<'')+(operation&4294967295)*34568099+(operation>>32&4294967295)*34837345+(permission<'')+(permission&4294967295)*35138267+(permission>>32&4294967295)*35470865)||digest||resource_name||principal||host AS BLOB))) VIRTUAL,
    PRIMARY KEY (digest)
    )""",
    """CREATE TRIGGER acls_delete BEFORE DELETE ON acls WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of acls does not match its checksum'); END""",
    """CREATE TRIGGER acls_update BEFORE UPDATE ON acls WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of acls does not match its checksum'); END""",
    ),
    "broker_heartbeats": (
    """CREATE TABLE broker_heartbeats (
    node_id INTEGER NOT NULL,
    heartbeats BIGINT NOT NULL,
    PRIMARY KEY (node_id)
    )""",
    ),
    "brokers": (
    """CREATE TABLE brokers (
    node_id INTEGER NOT NULL,
    rack TEXT,
    listeners TEXT NOT NULL,
    registered_ms BIGINT NOT NULL,
    version BIGINT DEFAULT 0 NOT NULL,
    epoch BIGINT DEFAULT 0 NOT NULL,
    folder TEXT,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(typeof(rack)='text')*33617819+(typeof(listeners)='text')*33697009+(registered_ms<'')+(registered_ms&4294967295)*33807875+(registered_ms>>32&4294967295)*33950417+(version<'')+(version&4294967295)*34124635+(version>>32&4294967295)*34330529+(epoch<'')+(epoch&4294967295)*34568099+(epoch>>32&4294967295)*34837345+(typeof(folder)='text')*35138267)||ifnull(rack,'')||listeners||ifnull(folder,'') AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(typeof(rack)='text')*33617819+(typeof(listeners)='text')*33697009+(registered_ms<'')+(registered_ms&4294967295)*33807875+(registered_ms>>32&4294967295)*33950417+(version<'')+(version&4294967295)*34124635+(version>>32&4294967295)*34330529+(epoch<'')+(epoch&4294967295)*34568099+(epoch>>32&4294967295)*34837345+(typeof(folder)='text')*35138267)||ifnull(rack,'')||listeners||ifnull(folder,'') AS BLOB))) VIRTUAL,
    PRIMARY KEY (node_id)
    )""",
    """CREATE TRIGGER brokers_delete BEFORE DELETE ON brokers WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of brokers does not match its checksum'); END""",
    """CREATE TRIGGER brokers_update BEFORE UPDATE ON brokers WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of brokers does not match its checksum'); END""",
    ),
    "checkpoints": (
    """CREATE TABLE checkpoints (
    node_id INTEGER NOT NULL,
    place BIGINT NOT NULL,
    saved_ms BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS ((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(place<'')+(place&4294967295)*33617819+(place>>32&4294967295)*33697009+(saved_ms<'')+(saved_ms&4294967295)*33807875+(saved_ms>>32&4294967295)*33950417) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS ((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(place<'')+(place&4294967295)*33617819+(place>>32&4294967295)*33697009+(saved_ms<'')+(saved_ms&4294967295)*33807875+(saved_ms>>32&4294967295)*33950417)) VIRTUAL,
    PRIMARY KEY (node_id)
    )""",
    """CREATE TRIGGER checkpoints_delete BEFORE DELETE ON checkpoints WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of checkpoints does not match its checksum'); END""",
    """CREATE TRIGGER checkpoints_update BEFORE UPDATE ON checkpoints WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of checkpoints does not match its checksum'); END""",
    ),
    "client_quotas": (
    """CREATE TABLE client_quotas (
    entity TEXT NOT NULL,
    "key" TEXT NOT NULL,
    value DOUBLE NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(entity)='text')*33554467+(typeof(key)='text')*33570305+(value<'')+(CAST(value AS INTEGER)&4294967295)*33617819+(CAST(value AS INTEGER)>>32&4294967295)*33697009+(CAST((value-CAST(value AS INTEGER))*4294967296.0*1073741824.0 AS INTEGER)&4294967295)*33807875+(CAST((value-CAST(value AS INTEGER))*4294967296.0*1073741824.0 AS INTEGER)>>32&4294967295)*33950417)||entity||key AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(entity)='text')*33554467+(typeof(key)='text')*33570305+(value<'')+(CAST(value AS INTEGER)&4294967295)*33617819+(CAST(value AS INTEGER)>>32&4294967295)*33697009+(CAST((value-CAST(value AS INTEGER))*4294967296.0*1073741824.0 AS INTEGER)&4294967295)*33807875+(CAST((value-CAST(value AS INTEGER))*4294967296.0*1073741824.0 AS INTEGER)>>32&4294967295)*33950417)||entity||key AS BLOB))) VIRTUAL,
    PRIMARY KEY (entity, "key")
    )""",
    """CREATE TRIGGER client_quotas_delete BEFORE DELETE ON client_quotas WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of client_quotas does not match its checksum'); END""",
    """CREATE TRIGGER client_quotas_update BEFORE UPDATE ON client_quotas WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of client_quotas does not match its checksum'); END""",
    ),
    "cluster": (
    """CREATE TABLE cluster (
    id INTEGER NOT NULL,
    cluster_id VARCHAR(22) NOT NULL,
    version BIGINT NOT NULL,
    next_partition BIGINT NOT NULL,
    next_producer_id BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    broker_configs_version BIGINT DEFAULT 0 NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(typeof(cluster_id)='text')*33617819+(version<'')+(version&4294967295)*33697009+(version>>32&4294967295)*33807875+(next_partition<'')+(next_partition&4294967295)*33950417+(next_partition>>32&4294967295)*34124635+(next_producer_id<'')+(next_producer_id&4294967295)*34330529+(next_producer_id>>32&4294967295)*34568099+(created_ms<'')+(created_ms&4294967295)*34837345+(created_ms>>32&4294967295)*35138267+(broker_configs_version<'')+(broker_configs_version&4294967295)*35470865+(broker_configs_version>>32&4294967295)*35835139)||cluster_id AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(typeof(cluster_id)='text')*33617819+(version<'')+(version&4294967295)*33697009+(version>>32&4294967295)*33807875+(next_partition<'')+(next_partition&4294967295)*33950417+(next_partition>>32&4294967295)*34124635+(next_producer_id<'')+(next_producer_id&4294967295)*34330529+(next_producer_id>>32&4294967295)*34568099+(created_ms<'')+(created_ms&4294967295)*34837345+(created_ms>>32&4294967295)*35138267+(broker_configs_version<'')+(broker_configs_version&4294967295)*35470865+(broker_configs_version>>32&4294967295)*35835139)||cluster_id AS BLOB))) VIRTUAL,
    PRIMARY KEY (id)
    )""",
    """CREATE TRIGGER cluster_delete BEFORE DELETE ON cluster WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of cluster does not match its checksum'); END""",
    """CREATE TRIGGER cluster_update BEFORE UPDATE ON cluster WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of cluster does not match its checksum'); END""",
    ),
    "configs": (
    """CREATE TABLE configs (
    resource_type INTEGER NOT NULL,
    resource TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((resource_type<'')+(resource_type&4294967295)*33554467+(resource_type>>32&4294967295)*33570305+(typeof(resource)='text')*33617819+(typeof(name)='text')*33697009+(typeof(value)='text')*33807875)||resource||name||value AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((resource_type<'')+(resource_type&4294967295)*33554467+(resource_type>>32&4294967295)*33570305+(typeof(resource)='text')*33617819+(typeof(name)='text')*33697009+(typeof(value)='text')*33807875)||resource||name||value AS BLOB))) VIRTUAL,
    PRIMARY KEY (resource_type, resource, name)
    )
    WITHOUT ROWID
    """,
    """CREATE TRIGGER configs_delete BEFORE DELETE ON configs WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of configs does not match its checksum'); END""",
    """CREATE TRIGGER configs_update BEFORE UPDATE ON configs WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of configs does not match its checksum'); END""",
    ),
    "data_folders": (
    """CREATE TABLE data_folders (
    node_id INTEGER NOT NULL,
    metadata_id BLOB NOT NULL,
    generation BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(typeof(metadata_id)='blob')*33617819+(generation<'')+(generation&4294967295)*33697009+(generation>>32&4294967295)*33807875)||metadata_id AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(typeof(metadata_id)='blob')*33617819+(generation<'')+(generation&4294967295)*33697009+(generation>>32&4294967295)*33807875)||metadata_id AS BLOB))) VIRTUAL,
    PRIMARY KEY (node_id)
    )""",
    """CREATE TRIGGER data_folders_delete BEFORE DELETE ON data_folders WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of data_folders does not match its checksum'); END""",
    """CREATE TRIGGER data_folders_update BEFORE UPDATE ON data_folders WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of data_folders does not match its checksum'); END""",
    ),
    "delegation_tokens": (
    """CREATE TABLE delegation_tokens (
    token_id TEXT NOT NULL,
    key_id BLOB NOT NULL,
    owner TEXT NOT NULL,
    requester TEXT NOT NULL,
    renewers TEXT NOT NULL,
    issued_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL,
    max_ms BIGINT NOT NULL,
    salt BLOB NOT NULL,
    iterations INTEGER NOT NULL,
    stored_key_256 BLOB NOT NULL,
    server_key_256 BLOB NOT NULL,
    stored_key_512 BLOB NOT NULL,
    server_key_512 BLOB NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(token_id)='text')*33554467+(typeof(key_id)='blob')*33570305+(typeof(owner)='text')*33617819+(typeof(requester)='text')*33697009+(typeof(renewers)='text')*33807875+(issued_ms<'')+(issued_ms&4294967295)*33950417+(issued_ms>>32&4294967295)*34124635+(expires_ms<'')+(expires_ms&4294967295)*34330529+(expires_ms>>32&4294967295)*34568099+(max_ms<'')+(max_ms&4294967295)*34837345+(max_ms>>32&4294967295)*35138267+(typeof(salt)='blob')*35470865+(iterations<'')+(iterations&4294967295)*35835139+(iterations>>32&4294967295)*36231089+(typeof(stored_key_256)='blob')*36658715+(typeof(server_key_256)='blob')*37118017+(typeof(stored_key_512)='blob')*37608995+(typeof(server_key_512)='blob')*38131649)||token_id||key_id||owner||requester||renewers||salt||stored_key_256||server_key_256||stored_key_512||server_key_512 AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(token_id)='text')*33554467+(typeof(key_id)='blob')*33570305+(typeof(owner)='text')*33617819+(typeof(requester)='text')*33697009+(typeof(renewers)='text')*33807875+(issued_ms<'')+(issued_ms&4294967295)*33950417+(issued_ms>>32&4294967295)*34124635+(expires_ms<'')+(expires_ms&4294967295)*34330529+(expires_ms>>32&4294967295)*34568099+(max_ms<'')+(max_ms&4294967295)*34837345+(max_ms>>32&4294967295)*35138267+(typeof(salt)='blob')*35470865+(iterations<'')+(iterations&4294967295)*35835139+(iterations>>32&4294967295)*36231089+(typeof(stored_key_256)='blob')*36658715+(typeof(server_key_256)='blob')*37118017+(typeof(stored_key_512)='blob')*37608995+(typeof(server_key_512)='blob')*38131649)||token_id||key_id||owner||requester||renewers||salt||stored_key_256||server_key_256||stored_key_512||server_key_512 AS BLOB))) VIRTUAL,
    PRIMARY KEY (token_id)
    )""",
    """CREATE TRIGGER delegation_tokens_delete BEFORE DELETE ON delegation_tokens WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of delegation_tokens does not match its checksum'); END""",
    """CREATE TRIGGER delegation_tokens_update BEFORE UPDATE ON delegation_tokens WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of delegation_tokens does not match its checksum'); END""",
    ),
    "features": (
    """CREATE TABLE features (
    name TEXT NOT NULL,
    level INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(name)='text')*33554467+(level<'')+(level&4294967295)*33570305+(level>>32&4294967295)*33617819+(epoch<'')+(epoch&4294967295)*33697009+(epoch>>32&4294967295)*33807875)||name AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(name)='text')*33554467+(level<'')+(level&4294967295)*33570305+(level>>32&4294967295)*33617819+(epoch<'')+(epoch&4294967295)*33697009+(epoch>>32&4294967295)*33807875)||name AS BLOB))) VIRTUAL,
    PRIMARY KEY (name)
    )""",
    """CREATE TRIGGER features_delete BEFORE DELETE ON features WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of features does not match its checksum'); END""",
    """CREATE TRIGGER features_update BEFORE UPDATE ON features WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of features does not match its checksum'); END""",
    ),
    "followers": (
    """CREATE TABLE followers (
    replica_id TEXT NOT NULL,
    node_id INTEGER NOT NULL,
    host TEXT NOT NULL,
    port INTEGER NOT NULL,
    secret BLOB NOT NULL,
    changed_ms BIGINT NOT NULL,
    certificate TEXT DEFAULT '' NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(replica_id)='text')*33554467+(node_id<'')+(node_id&4294967295)*33570305+(node_id>>32&4294967295)*33617819+(typeof(host)='text')*33697009+(port<'')+(port&4294967295)*33807875+(port>>32&4294967295)*33950417+(typeof(secret)='blob')*34124635+(changed_ms<'')+(changed_ms&4294967295)*34330529+(changed_ms>>32&4294967295)*34568099+(typeof(certificate)='text')*34837345)||replica_id||host||secret||certificate AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(replica_id)='text')*33554467+(node_id<'')+(node_id&4294967295)*33570305+(node_id>>32&4294967295)*33617819+(typeof(host)='text')*33697009+(port<'')+(port&4294967295)*33807875+(port>>32&4294967295)*33950417+(typeof(secret)='blob')*34124635+(changed_ms<'')+(changed_ms&4294967295)*34330529+(changed_ms>>32&4294967295)*34568099+(typeof(certificate)='text')*34837345)||replica_id||host||secret||certificate AS BLOB))) VIRTUAL,
    PRIMARY KEY (replica_id)
    )""",
    """CREATE TRIGGER followers_delete BEFORE DELETE ON followers WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of followers does not match its checksum'); END""",
    """CREATE TRIGGER followers_update BEFORE UPDATE ON followers WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of followers does not match its checksum'); END""",
    ),
    "kafkawire_revision": (
    """CREATE TABLE kafkawire_revision (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT kafkawire_revision_pkc PRIMARY KEY (version_num)
    )""",
    ),
    "lead_groups": (
    """CREATE TABLE lead_groups (
    id INTEGER NOT NULL,
    class INTEGER NOT NULL,
    leader INTEGER NOT NULL,
    preferred INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    version BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS ((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(class<'')+(class&4294967295)*33617819+(class>>32&4294967295)*33697009+(leader<'')+(leader&4294967295)*33807875+(leader>>32&4294967295)*33950417+(preferred<'')+(preferred&4294967295)*34124635+(preferred>>32&4294967295)*34330529+(epoch<'')+(epoch&4294967295)*34568099+(epoch>>32&4294967295)*34837345+(version<'')+(version&4294967295)*35138267+(version>>32&4294967295)*35470865) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS ((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(class<'')+(class&4294967295)*33617819+(class>>32&4294967295)*33697009+(leader<'')+(leader&4294967295)*33807875+(leader>>32&4294967295)*33950417+(preferred<'')+(preferred&4294967295)*34124635+(preferred>>32&4294967295)*34330529+(epoch<'')+(epoch&4294967295)*34568099+(epoch>>32&4294967295)*34837345+(version<'')+(version&4294967295)*35138267+(version>>32&4294967295)*35470865)) VIRTUAL,
    PRIMARY KEY (id)
    )""",
    """CREATE TRIGGER lead_groups_delete BEFORE DELETE ON lead_groups WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of lead_groups does not match its checksum'); END""",
    """CREATE TRIGGER lead_groups_update BEFORE UPDATE ON lead_groups WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of lead_groups does not match its checksum'); END""",
    ),
    "object_logs": (
    """CREATE TABLE object_logs (
    node_id INTEGER NOT NULL,
    broker_epoch BIGINT NOT NULL,
    url TEXT NOT NULL,
    released BIGINT NOT NULL,
    ended BIGINT,
    changed_ms BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(broker_epoch<'')+(broker_epoch&4294967295)*33617819+(broker_epoch>>32&4294967295)*33697009+(typeof(url)='text')*33807875+(released<'')+(released&4294967295)*33950417+(released>>32&4294967295)*34124635+(ifnull(ended,-6148914691236517206)<'')+(ifnull(ended,-6148914691236517206)&4294967295)*34330529+(ifnull(ended,-6148914691236517206)>>32&4294967295)*34568099+(changed_ms<'')+(changed_ms&4294967295)*34837345+(changed_ms>>32&4294967295)*35138267)||url AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(broker_epoch<'')+(broker_epoch&4294967295)*33617819+(broker_epoch>>32&4294967295)*33697009+(typeof(url)='text')*33807875+(released<'')+(released&4294967295)*33950417+(released>>32&4294967295)*34124635+(ifnull(ended,-6148914691236517206)<'')+(ifnull(ended,-6148914691236517206)&4294967295)*34330529+(ifnull(ended,-6148914691236517206)>>32&4294967295)*34568099+(changed_ms<'')+(changed_ms&4294967295)*34837345+(changed_ms>>32&4294967295)*35138267)||url AS BLOB))) VIRTUAL,
    PRIMARY KEY (node_id, broker_epoch)
    )""",
    """CREATE TRIGGER object_logs_delete BEFORE DELETE ON object_logs WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of object_logs does not match its checksum'); END""",
    """CREATE TRIGGER object_logs_update BEFORE UPDATE ON object_logs WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of object_logs does not match its checksum'); END""",
    ),
    "remote_objects": (
    """CREATE TABLE remote_objects (
    uuid BLOB NOT NULL,
    segment_id BIGINT NOT NULL,
    node_id INTEGER NOT NULL,
    tier INTEGER NOT NULL,
    state INTEGER NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    delete_after_ms BIGINT NOT NULL,
    ranges BLOB NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(uuid)='blob')*33554467+(segment_id<'')+(segment_id&4294967295)*33570305+(segment_id>>32&4294967295)*33617819+(node_id<'')+(node_id&4294967295)*33697009+(node_id>>32&4294967295)*33807875+(tier<'')+(tier&4294967295)*33950417+(tier>>32&4294967295)*34124635+(state<'')+(state&4294967295)*34330529+(state>>32&4294967295)*34568099+(size_bytes<'')+(size_bytes&4294967295)*34837345+(size_bytes>>32&4294967295)*35138267+(created_ms<'')+(created_ms&4294967295)*35470865+(created_ms>>32&4294967295)*35835139+(delete_after_ms<'')+(delete_after_ms&4294967295)*36231089+(delete_after_ms>>32&4294967295)*36658715+(typeof(ranges)='blob')*37118017)||uuid||ranges AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(uuid)='blob')*33554467+(segment_id<'')+(segment_id&4294967295)*33570305+(segment_id>>32&4294967295)*33617819+(node_id<'')+(node_id&4294967295)*33697009+(node_id>>32&4294967295)*33807875+(tier<'')+(tier&4294967295)*33950417+(tier>>32&4294967295)*34124635+(state<'')+(state&4294967295)*34330529+(state>>32&4294967295)*34568099+(size_bytes<'')+(size_bytes&4294967295)*34837345+(size_bytes>>32&4294967295)*35138267+(created_ms<'')+(created_ms&4294967295)*35470865+(created_ms>>32&4294967295)*35835139+(delete_after_ms<'')+(delete_after_ms&4294967295)*36231089+(delete_after_ms>>32&4294967295)*36658715+(typeof(ranges)='blob')*37118017)||uuid||ranges AS BLOB))) VIRTUAL,
    PRIMARY KEY (uuid)
    )
    WITHOUT ROWID
    """,
    """CREATE TRIGGER remote_objects_delete BEFORE DELETE ON remote_objects WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of remote_objects does not match its checksum'); END""",
    """CREATE INDEX remote_objects_segment ON remote_objects (segment_id)""",
    """CREATE INDEX remote_objects_state ON remote_objects (node_id, state)""",
    """CREATE TRIGGER remote_objects_update BEFORE UPDATE ON remote_objects WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of remote_objects does not match its checksum'); END""",
    ),
    "replica_sets": (
    """CREATE TABLE replica_sets (
    node_id INTEGER NOT NULL,
    broker_epoch BIGINT NOT NULL,
    in_sync TEXT NOT NULL,
    version BIGINT NOT NULL,
    changed_ms BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(broker_epoch<'')+(broker_epoch&4294967295)*33617819+(broker_epoch>>32&4294967295)*33697009+(typeof(in_sync)='text')*33807875+(version<'')+(version&4294967295)*33950417+(version>>32&4294967295)*34124635+(changed_ms<'')+(changed_ms&4294967295)*34330529+(changed_ms>>32&4294967295)*34568099)||in_sync AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((node_id<'')+(node_id&4294967295)*33554467+(node_id>>32&4294967295)*33570305+(broker_epoch<'')+(broker_epoch&4294967295)*33617819+(broker_epoch>>32&4294967295)*33697009+(typeof(in_sync)='text')*33807875+(version<'')+(version&4294967295)*33950417+(version>>32&4294967295)*34124635+(changed_ms<'')+(changed_ms&4294967295)*34330529+(changed_ms>>32&4294967295)*34568099)||in_sync AS BLOB))) VIRTUAL,
    PRIMARY KEY (node_id)
    )""",
    """CREATE TRIGGER replica_sets_delete BEFORE DELETE ON replica_sets WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of replica_sets does not match its checksum'); END""",
    """CREATE TRIGGER replica_sets_update BEFORE UPDATE ON replica_sets WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of replica_sets does not match its checksum'); END""",
    ),
    "scram_credentials": (
    """CREATE TABLE scram_credentials (
    user_name TEXT NOT NULL,
    mechanism INTEGER NOT NULL,
    salt BLOB NOT NULL,
    stored_key BLOB NOT NULL,
    server_key BLOB NOT NULL,
    iterations INTEGER NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(user_name)='text')*33554467+(mechanism<'')+(mechanism&4294967295)*33570305+(mechanism>>32&4294967295)*33617819+(typeof(salt)='blob')*33697009+(typeof(stored_key)='blob')*33807875+(typeof(server_key)='blob')*33950417+(iterations<'')+(iterations&4294967295)*34124635+(iterations>>32&4294967295)*34330529)||user_name||salt||stored_key||server_key AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(user_name)='text')*33554467+(mechanism<'')+(mechanism&4294967295)*33570305+(mechanism>>32&4294967295)*33617819+(typeof(salt)='blob')*33697009+(typeof(stored_key)='blob')*33807875+(typeof(server_key)='blob')*33950417+(iterations<'')+(iterations&4294967295)*34124635+(iterations>>32&4294967295)*34330529)||user_name||salt||stored_key||server_key AS BLOB))) VIRTUAL,
    PRIMARY KEY (user_name, mechanism)
    )""",
    """CREATE TRIGGER scram_credentials_delete BEFORE DELETE ON scram_credentials WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of scram_credentials does not match its checksum'); END""",
    """CREATE TRIGGER scram_credentials_update BEFORE UPDATE ON scram_credentials WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of scram_credentials does not match its checksum'); END""",
    ),
    "security_versions": (
    """CREATE TABLE security_versions (
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(name)='text')*33554467+(version<'')+(version&4294967295)*33570305+(version>>32&4294967295)*33617819)||name AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(name)='text')*33554467+(version<'')+(version&4294967295)*33570305+(version>>32&4294967295)*33617819)||name AS BLOB))) VIRTUAL,
    PRIMARY KEY (name)
    )""",
    """CREATE TRIGGER security_versions_delete BEFORE DELETE ON security_versions WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of security_versions does not match its checksum'); END""",
    """CREATE TRIGGER security_versions_update BEFORE UPDATE ON security_versions WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of security_versions does not match its checksum'); END""",
    ),
    "segments": (
    """CREATE TABLE segments (
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
    checksum BIGINT GENERATED ALWAYS AS (CAST(((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(typeof(uuid)='blob')*33617819+(node_id<'')+(node_id&4294967295)*33697009+(node_id>>32&4294967295)*33807875+(state<'')+(state&4294967295)*33950417+(state>>32&4294967295)*34124635+(size_bytes<'')+(size_bytes&4294967295)*34330529+(size_bytes>>32&4294967295)*34568099+(live_bytes<'')+(live_bytes&4294967295)*34837345+(live_bytes>>32&4294967295)*35138267+(generation<'')+(generation&4294967295)*35470865+(generation>>32&4294967295)*35835139+(typeof(retention_class)='text')*36231089+(created_ms<'')+(created_ms&4294967295)*36658715+(created_ms>>32&4294967295)*37118017+(max_timestamp<'')+(max_timestamp&4294967295)*37608995+(max_timestamp>>32&4294967295)*38131649+(delete_after_ms<'')+(delete_after_ms&4294967295)*38685979+(delete_after_ms>>32&4294967295)*39271985+(local<'')+(local&4294967295)*39889667+(local>>32&4294967295)*40539025+(typeof(object)='blob')*41220059+(tier<'')+(tier&4294967295)*41932769+(tier>>32&4294967295)*42677155)||uuid||retention_class||ifnull(object,'') AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(typeof(uuid)='blob')*33617819+(node_id<'')+(node_id&4294967295)*33697009+(node_id>>32&4294967295)*33807875+(state<'')+(state&4294967295)*33950417+(state>>32&4294967295)*34124635+(size_bytes<'')+(size_bytes&4294967295)*34330529+(size_bytes>>32&4294967295)*34568099+(live_bytes<'')+(live_bytes&4294967295)*34837345+(live_bytes>>32&4294967295)*35138267+(generation<'')+(generation&4294967295)*35470865+(generation>>32&4294967295)*35835139+(typeof(retention_class)='text')*36231089+(created_ms<'')+(created_ms&4294967295)*36658715+(created_ms>>32&4294967295)*37118017+(max_timestamp<'')+(max_timestamp&4294967295)*37608995+(max_timestamp>>32&4294967295)*38131649+(delete_after_ms<'')+(delete_after_ms&4294967295)*38685979+(delete_after_ms>>32&4294967295)*39271985+(local<'')+(local&4294967295)*39889667+(local>>32&4294967295)*40539025+(typeof(object)='blob')*41220059+(tier<'')+(tier&4294967295)*41932769+(tier>>32&4294967295)*42677155)||uuid||retention_class||ifnull(object,'') AS BLOB))) VIRTUAL,
    UNIQUE (uuid)
    )""",
    """CREATE TRIGGER segments_delete BEFORE DELETE ON segments WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of segments does not match its checksum'); END""",
    """CREATE INDEX segments_state ON segments (node_id, state)""",
    """CREATE TRIGGER segments_update BEFORE UPDATE ON segments WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of segments does not match its checksum'); END""",
    ),
    "tiers": (
    """CREATE TABLE tiers (
    id INTEGER NOT NULL,
    url TEXT NOT NULL,
    state INTEGER NOT NULL,
    created_ms BIGINT NOT NULL,
    node_id INTEGER,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(typeof(url)='text')*33617819+(state<'')+(state&4294967295)*33697009+(state>>32&4294967295)*33807875+(created_ms<'')+(created_ms&4294967295)*33950417+(created_ms>>32&4294967295)*34124635+(ifnull(node_id,-6148914691236517206)<'')+(ifnull(node_id,-6148914691236517206)&4294967295)*34330529+(ifnull(node_id,-6148914691236517206)>>32&4294967295)*34568099)||url AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((id<'')+(id&4294967295)*33554467+(id>>32&4294967295)*33570305+(typeof(url)='text')*33617819+(state<'')+(state&4294967295)*33697009+(state>>32&4294967295)*33807875+(created_ms<'')+(created_ms&4294967295)*33950417+(created_ms>>32&4294967295)*34124635+(ifnull(node_id,-6148914691236517206)<'')+(ifnull(node_id,-6148914691236517206)&4294967295)*34330529+(ifnull(node_id,-6148914691236517206)>>32&4294967295)*34568099)||url AS BLOB))) VIRTUAL,
    PRIMARY KEY (id)
    )""",
    """CREATE TRIGGER tiers_delete BEFORE DELETE ON tiers WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of tiers does not match its checksum'); END""",
    """CREATE TRIGGER tiers_update BEFORE UPDATE ON tiers WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of tiers does not match its checksum'); END""",
    ),
    "topics": (
    """CREATE TABLE topics (
    id BLOB NOT NULL,
    name VARCHAR(249) NOT NULL,
    internal BOOLEAN NOT NULL,
    created_ms BIGINT NOT NULL,
    deleted_ms BIGINT,
    version BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((typeof(id)='blob')*33554467+(typeof(name)='text')*33570305+(internal<'')+(internal&4294967295)*33617819+(internal>>32&4294967295)*33697009+(created_ms<'')+(created_ms&4294967295)*33807875+(created_ms>>32&4294967295)*33950417+(ifnull(deleted_ms,-6148914691236517206)<'')+(ifnull(deleted_ms,-6148914691236517206)&4294967295)*34124635+(ifnull(deleted_ms,-6148914691236517206)>>32&4294967295)*34330529+(version<'')+(version&4294967295)*34568099+(version>>32&4294967295)*34837345)||id||name AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((typeof(id)='blob')*33554467+(typeof(name)='text')*33570305+(internal<'')+(internal&4294967295)*33617819+(internal>>32&4294967295)*33697009+(created_ms<'')+(created_ms&4294967295)*33807875+(created_ms>>32&4294967295)*33950417+(ifnull(deleted_ms,-6148914691236517206)<'')+(ifnull(deleted_ms,-6148914691236517206)&4294967295)*34124635+(ifnull(deleted_ms,-6148914691236517206)>>32&4294967295)*34330529+(version<'')+(version&4294967295)*34568099+(version>>32&4294967295)*34837345)||id||name AS BLOB))) VIRTUAL,
    PRIMARY KEY (id)
    )
    WITHOUT ROWID
    """,
    """CREATE UNIQUE INDEX topics_alive ON topics (name) WHERE deleted_ms IS NULL""",
    """CREATE TRIGGER topics_delete BEFORE DELETE ON topics WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of topics does not match its checksum'); END""",
    """CREATE TRIGGER topics_update BEFORE UPDATE ON topics WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of topics does not match its checksum'); END""",
    """CREATE INDEX topics_version ON topics (version)""",
    ),
    "partitions": (
    """CREATE TABLE partitions (
    number INTEGER NOT NULL,
    topic_id BLOB NOT NULL,
    idx INTEGER NOT NULL,
    lead_group INTEGER NOT NULL,
    epoch_base INTEGER NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((number<'')+(number&4294967295)*33554467+(number>>32&4294967295)*33570305+(typeof(topic_id)='blob')*33617819+(idx<'')+(idx&4294967295)*33697009+(idx>>32&4294967295)*33807875+(lead_group<'')+(lead_group&4294967295)*33950417+(lead_group>>32&4294967295)*34124635+(epoch_base<'')+(epoch_base&4294967295)*34330529+(epoch_base>>32&4294967295)*34568099)||topic_id AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((number<'')+(number&4294967295)*33554467+(number>>32&4294967295)*33570305+(typeof(topic_id)='blob')*33617819+(idx<'')+(idx&4294967295)*33697009+(idx>>32&4294967295)*33807875+(lead_group<'')+(lead_group&4294967295)*33950417+(lead_group>>32&4294967295)*34124635+(epoch_base<'')+(epoch_base&4294967295)*34330529+(epoch_base>>32&4294967295)*34568099)||topic_id AS BLOB))) VIRTUAL,
    PRIMARY KEY (number),
    CONSTRAINT partitions_of_topic UNIQUE (topic_id, idx),
    FOREIGN KEY(topic_id) REFERENCES topics (id)
    )""",
    """CREATE TRIGGER partitions_delete BEFORE DELETE ON partitions WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partitions does not match its checksum'); END""",
    """CREATE TRIGGER partitions_update BEFORE UPDATE ON partitions WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partitions does not match its checksum'); END""",
    ),
    "offset_mappings": (
    """CREATE TABLE offset_mappings (
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
    checksum BIGINT GENERATED ALWAYS AS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(base_offset<'')+(base_offset&4294967295)*33617819+(base_offset>>32&4294967295)*33697009+(segment_id<'')+(segment_id&4294967295)*33807875+(segment_id>>32&4294967295)*33950417+(end_offset<'')+(end_offset&4294967295)*34124635+(end_offset>>32&4294967295)*34330529+(start<'')+(start&4294967295)*34568099+(start>>32&4294967295)*34837345+(length<'')+(length&4294967295)*35138267+(length>>32&4294967295)*35470865+(index_start<'')+(index_start&4294967295)*35835139+(index_start>>32&4294967295)*36231089+(index_length<'')+(index_length&4294967295)*36658715+(index_length>>32&4294967295)*37118017+(index_checksum<'')+(index_checksum&4294967295)*37608995+(index_checksum>>32&4294967295)*38131649+(max_timestamp<'')+(max_timestamp&4294967295)*38685979+(max_timestamp>>32&4294967295)*39271985+(batches<'')+(batches&4294967295)*39889667+(batches>>32&4294967295)*40539025+(records<'')+(records&4294967295)*41220059+(records>>32&4294967295)*41932769+(due_ms<'')+(due_ms&4294967295)*42677155+(due_ms>>32&4294967295)*43453217+(created_at<'')+(created_at&4294967295)*44260955+(created_at>>32&4294967295)*45100369) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(base_offset<'')+(base_offset&4294967295)*33617819+(base_offset>>32&4294967295)*33697009+(segment_id<'')+(segment_id&4294967295)*33807875+(segment_id>>32&4294967295)*33950417+(end_offset<'')+(end_offset&4294967295)*34124635+(end_offset>>32&4294967295)*34330529+(start<'')+(start&4294967295)*34568099+(start>>32&4294967295)*34837345+(length<'')+(length&4294967295)*35138267+(length>>32&4294967295)*35470865+(index_start<'')+(index_start&4294967295)*35835139+(index_start>>32&4294967295)*36231089+(index_length<'')+(index_length&4294967295)*36658715+(index_length>>32&4294967295)*37118017+(index_checksum<'')+(index_checksum&4294967295)*37608995+(index_checksum>>32&4294967295)*38131649+(max_timestamp<'')+(max_timestamp&4294967295)*38685979+(max_timestamp>>32&4294967295)*39271985+(batches<'')+(batches&4294967295)*39889667+(batches>>32&4294967295)*40539025+(records<'')+(records&4294967295)*41220059+(records>>32&4294967295)*41932769+(due_ms<'')+(due_ms&4294967295)*42677155+(due_ms>>32&4294967295)*43453217+(created_at<'')+(created_at&4294967295)*44260955+(created_at>>32&4294967295)*45100369)) VIRTUAL,
    PRIMARY KEY (partition_number, base_offset),
    FOREIGN KEY(partition_number) REFERENCES partitions (number),
    FOREIGN KEY(segment_id) REFERENCES segments (id)
    )
    WITHOUT ROWID
    """,
    """CREATE TRIGGER offset_mappings_delete BEFORE DELETE ON offset_mappings WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of offset_mappings does not match its checksum'); END""",
    """CREATE INDEX offset_mappings_due ON offset_mappings (due_ms)""",
    """CREATE INDEX offset_mappings_segment ON offset_mappings (segment_id)""",
    """CREATE TRIGGER offset_mappings_update BEFORE UPDATE ON offset_mappings WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of offset_mappings does not match its checksum'); END""",
    ),
    "partition_metadata": (
    """CREATE TABLE partition_metadata (
    partition_number INTEGER NOT NULL,
    created_at BIGINT NOT NULL,
    last_activity_at BIGINT NOT NULL,
    record_count BIGINT NOT NULL,
    total_size BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(created_at<'')+(created_at&4294967295)*33617819+(created_at>>32&4294967295)*33697009+(last_activity_at<'')+(last_activity_at&4294967295)*33807875+(last_activity_at>>32&4294967295)*33950417+(record_count<'')+(record_count&4294967295)*34124635+(record_count>>32&4294967295)*34330529+(total_size<'')+(total_size&4294967295)*34568099+(total_size>>32&4294967295)*34837345) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(created_at<'')+(created_at&4294967295)*33617819+(created_at>>32&4294967295)*33697009+(last_activity_at<'')+(last_activity_at&4294967295)*33807875+(last_activity_at>>32&4294967295)*33950417+(record_count<'')+(record_count&4294967295)*34124635+(record_count>>32&4294967295)*34330529+(total_size<'')+(total_size&4294967295)*34568099+(total_size>>32&4294967295)*34837345)) VIRTUAL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
    )""",
    """CREATE TRIGGER partition_metadata_delete BEFORE DELETE ON partition_metadata WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partition_metadata does not match its checksum'); END""",
    """CREATE TRIGGER partition_metadata_update BEFORE UPDATE ON partition_metadata WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partition_metadata does not match its checksum'); END""",
    ),
    "partition_moves": (
    """CREATE TABLE partition_moves (
    partition_number INTEGER NOT NULL,
    target INTEGER NOT NULL,
    asked_ms BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(target<'')+(target&4294967295)*33617819+(target>>32&4294967295)*33697009+(asked_ms<'')+(asked_ms&4294967295)*33807875+(asked_ms>>32&4294967295)*33950417) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(target<'')+(target&4294967295)*33617819+(target>>32&4294967295)*33697009+(asked_ms<'')+(asked_ms&4294967295)*33807875+(asked_ms>>32&4294967295)*33950417)) VIRTUAL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
    )""",
    """CREATE TRIGGER partition_moves_delete BEFORE DELETE ON partition_moves WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partition_moves does not match its checksum'); END""",
    """CREATE TRIGGER partition_moves_update BEFORE UPDATE ON partition_moves WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partition_moves does not match its checksum'); END""",
    ),
    "partition_offset_checkpoints": (
    """CREATE TABLE partition_offset_checkpoints (
    partition_number INTEGER NOT NULL,
    checkpoint_offset BIGINT NOT NULL,
    log_start BIGINT NOT NULL,
    leader_epochs BLOB NOT NULL,
    producers BLOB NOT NULL,
    updated_at BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS (CAST(((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(checkpoint_offset<'')+(checkpoint_offset&4294967295)*33617819+(checkpoint_offset>>32&4294967295)*33697009+(log_start<'')+(log_start&4294967295)*33807875+(log_start>>32&4294967295)*33950417+(typeof(leader_epochs)='blob')*34124635+(typeof(producers)='blob')*34330529+(updated_at<'')+(updated_at&4294967295)*34568099+(updated_at>>32&4294967295)*34837345)||leader_epochs||producers AS BLOB)) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS (CAST(((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(checkpoint_offset<'')+(checkpoint_offset&4294967295)*33617819+(checkpoint_offset>>32&4294967295)*33697009+(log_start<'')+(log_start&4294967295)*33807875+(log_start>>32&4294967295)*33950417+(typeof(leader_epochs)='blob')*34124635+(typeof(producers)='blob')*34330529+(updated_at<'')+(updated_at&4294967295)*34568099+(updated_at>>32&4294967295)*34837345)||leader_epochs||producers AS BLOB))) VIRTUAL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
    )""",
    """CREATE TRIGGER partition_offset_checkpoints_delete BEFORE DELETE ON partition_offset_checkpoints WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of partition_offset_checkpoints does not match its checksum'); END""",
    ),
    "tiering_offsets": (
    """CREATE TABLE tiering_offsets (
    partition_number INTEGER NOT NULL,
    dispatch_offset BIGINT NOT NULL,
    commit_offset BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    checksum BIGINT GENERATED ALWAYS AS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(dispatch_offset<'')+(dispatch_offset&4294967295)*33617819+(dispatch_offset>>32&4294967295)*33697009+(commit_offset<'')+(commit_offset&4294967295)*33807875+(commit_offset>>32&4294967295)*33950417+(updated_at<'')+(updated_at&4294967295)*34124635+(updated_at>>32&4294967295)*34330529) STORED, intact BOOLEAN GENERATED ALWAYS AS (checksum IS ((partition_number<'')+(partition_number&4294967295)*33554467+(partition_number>>32&4294967295)*33570305+(dispatch_offset<'')+(dispatch_offset&4294967295)*33617819+(dispatch_offset>>32&4294967295)*33697009+(commit_offset<'')+(commit_offset&4294967295)*33807875+(commit_offset>>32&4294967295)*33950417+(updated_at<'')+(updated_at&4294967295)*34124635+(updated_at>>32&4294967295)*34330529)) VIRTUAL,
    PRIMARY KEY (partition_number),
    FOREIGN KEY(partition_number) REFERENCES partitions (number)
    )""",
    """CREATE TRIGGER tiering_offsets_delete BEFORE DELETE ON tiering_offsets WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of tiering_offsets does not match its checksum'); END""",
    """CREATE TRIGGER tiering_offsets_update BEFORE UPDATE ON tiering_offsets WHEN NOT OLD.intact BEGIN SELECT RAISE(ABORT, 'a row of tiering_offsets does not match its checksum'); END""",
    ),
}
"""Statements that create each table in SQLite, with its indexes and triggers."""
