"""Settings for the rest of the broker: typed objects that change in place.

`BrokerConfig` and `TopicConfig` are created from strings by name and changed by `update`, so every
holder sees a change at once. `check_topic` and `check_broker` check whether texts are allowed,
including settings that depend on each other. `markdown_table` makes docs/configs.md. Pure: the
source of the texts (command line, SQL) and their precedence are decided elsewhere.


"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kafkawire.codec.configs.access_rules import super_users
from kafkawire.codec.configs.durability_rules import (
    BEYOND_FOLDER,
    DURABILITY,
    REPLICATED,
    S3,
    check_broker_durability,
    check_durability,
)
from kafkawire.codec.configs.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
    FinalizedFeatures,
)
from kafkawire.codec.configs.group_config import (
    GROUP_CONFIGS,
    ConsumerGroupSettings,
    ShareGroupSettings,
    StreamsGroupSettings,
    check_group_defaults,
    check_not_above,
    consumer_group_settings,
    share_group_settings,
    streams_group_settings,
)
from kafkawire.codec.configs.parse import (
    ConfigError,
    address_limits,
    append_items,
    describe_allowed,
    find,
    items_of,
    parse,
    subtract_items,
    text_of,
    validate,
    whole_number,
)
from kafkawire.codec.configs.row import (
    INT32_MAX,
    INT64_MAX,
    Config,
    ConfigType,
    Effect,
    Scope,
    Value,
)
from kafkawire.codec.configs.table import (
    BROKER_CONFIGS,
    COMPRESSION_TYPES,
    PRODUCER,
    TOPIC_CONFIGS,
)
from kafkawire.codec.configs.tier_rules import (
    COPY_LAG_BYTES,
    COPY_LAG_MS,
    ENABLE,
    TierLevel,
    check_tiering,
    local_retention,
    tiered_by_default,
    upload_limits,
)
from kafkawire.codec.configs.view_rules import check_view

__all__ = [
    "BROKER_CONFIGS",
    "GROUP_CONFIGS",
    "TOPIC_CONFIGS",
    "BrokerConfig",
    "Config",
    "ConfigError",
    "ConfigType",
    "ConsumerGroupSettings",
    "Effect",
    "Scope",
    "ShareGroupSettings",
    "TierLevel",
    "TopicConfig",
    "Value",
    "append_items",
    "broker_names",
    "check_broker",
    "check_topic",
    "describe_allowed",
    "find",
    "markdown_table",
    "parse",
    "resolve_topic",
    "subtract_items",
    "text_of",
    "topic_default",
    "validate",
]

_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", re.ASCII)


def broker_names(row: Config) -> list[str]:
    """Return the broker settings that give a topic setting its default; the first that is set
    wins."""
    return [row.broker_name, *(unit[0] for unit in row.units)] if row.broker_name else []


def topic_default(row: Config, broker: Mapping[str, str]) -> Value:
    """Default of the topic setting `row`, given the broker's settings as texts.

    Kafka's other units count too (log.retention.hours), the finest first; negative: unlimited.
    """
    if row.name == ENABLE:
        return tiered_by_default(broker)
    text = broker.get(row.broker_name)
    if text is not None:
        return validate(BROKER_CONFIGS[row.broker_name], text)
    for name, unit_ms, _ in row.units:
        if name in broker:
            count = whole_number(validate(BROKER_CONFIGS[name], broker[name]))
            return -1 if count < 0 else count * unit_ms
    return row.default


def _topic_value(row: Config, overrides: Mapping[str, str], broker: Mapping[str, str]) -> Value:
    text = overrides.get(row.name)
    return topic_default(row, broker) if text is None else validate(row, text)


def check_topic(
    overrides: Mapping[str, str],
    broker: Mapping[str, str] | None = None,
    before: Mapping[str, str] | None = None,
) -> None:
    """Raise ConfigError unless a topic may have these settings (texts by topic name); `before`: its
    current ones, None for a new topic."""
    for name in overrides:
        find(name, TOPIC_CONFIGS)
    broker = broker or {}
    values = {name: _topic_value(row, overrides, broker) for name, row in TOPIC_CONFIGS.items()}
    check_not_above(values, "min.compaction.lag.ms", "max.compaction.lag.ms")
    enabled = before is not None and _topic_value(TOPIC_CONFIGS[ENABLE], before, broker) is True
    check_tiering(values, tiered_by_default(broker), enabled)
    check_schedule(values)
    check_view(values, before)
    earlier = None
    if before is not None:
        earlier = str(_topic_value(TOPIC_CONFIGS[DURABILITY], before, broker))
    check_durability(values, broker, tiered_by_default(broker), earlier)


MAX_CLUSTER_NAME = 100
"""A name fits in a line of a table and in a label of a metric."""


def check_broker(texts: Mapping[str, str]) -> None:
    """Raise ConfigError unless a broker may have these settings (texts by broker name)."""
    for name in texts:
        find(name, BROKER_CONFIGS)
    values = {
        name: validate(row, texts[name]) if name in texts else row.default
        for name, row in BROKER_CONFIGS.items()
    }
    check_not_above(values, "group.min.session.timeout.ms", "group.max.session.timeout.ms")
    check_group_defaults(values)
    check_not_above(values, "connection.inflight.bytes", "inflight.bytes")
    check_not_above(values, "log.object.bytes", "log.unreleased.max.bytes")
    check_broker_durability(values, tiered_by_default(texts))
    super_users(str(values["super.users"]))
    limits = address_limits(str(values["max.connections.per.ip.overrides"]))
    if values["max.connections.per.ip"] == 0 and not limits:
        # As in Kafka (KafkaConfig.validateValues): no client could connect.
        why = "it may be 0 only with max.connections.per.ip.overrides, for all other addresses"
        raise ConfigError("max.connections.per.ip", 0, why)
    cluster = str(values["cluster.name"])
    if len(cluster) > MAX_CLUSTER_NAME or not cluster.isprintable():
        why = f"it must be at most {MAX_CLUSTER_NAME} printable characters"
        raise ConfigError("cluster.name", cluster, why)
    check_topic({}, texts)


def check_schedule(values: Mapping[str, Value]) -> None:
    """Raise ConfigError unless the settings of a schedule topic fit together."""
    header, topic = values["schedule.target.header"], str(values["schedule.target.topic"])
    if topic and not _TOPIC_NAME.fullmatch(topic):
        why = "it must be the name of a topic: letters, digits, '.', '_' and '-'"
        raise ConfigError("schedule.target.topic", topic, why)
    if header and topic:
        why = "schedule.target.topic is set, too, and a topic has one or the other"
        raise ConfigError("schedule.target.header", str(header), why)


NO_RECORD_BOUND = INT32_MAX - 8
"""The default of max.decompressed.message.bytes: the size of Java's largest array."""


@dataclass(slots=True, init=False)
class TopicConfig:
    """The settings of one topic that the log reads. Times in ms, sizes in bytes."""

    max_message_bytes: int
    max_record_bytes: int  # of a record in a compressed batch; NO_RECORD_BOUND: as many as fit
    timestamp_type: int  # 0 CreateTime, 1 LogAppendTime: the bit of the batch attributes
    before_max_ms: int  # INT64_MAX: no bound
    after_max_ms: int
    cleanup_compact: bool
    cleanup_delete: bool
    compression: int  # -1: as the producer sent it; else the codec number of a batch
    compression_level: int | None  # None: the codec's own
    retention_ms: int  # -1: unlimited
    retention_bytes: int  # -1: no limit
    min_insync_replicas: int
    segment_bytes: int
    segment_ms: int  # of a compacted topic never above max.compaction.lag.ms
    file_delete_delay_ms: int  # the topic's own; -1: the broker's
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int  # INT64_MAX: no bound
    min_cleanable_dirty_ratio: float
    tiered: bool  # remote.storage.enable, and the broker has a tier
    copies: bool  # tiered, and remote.log.copy.disable is false
    tier_deletes: bool  # remote.log.delete.on.disable
    local_retention_ms: int  # -1: unlimited; never above retention_ms
    local_retention_bytes: int  # -1: no limit; never above retention_bytes
    tier_level: TierLevel
    tier_lag_ms: int
    tier_min_bytes: int
    schedule_topic: str  # the fixed target of a schedule topic, "": none
    schedule_header: str  # the header that names the target, "": none
    dead_letters: bool  # share groups may write their dead letters here
    in_objects: bool  # durability=s3: committed once stored in log objects
    replicated: bool  # durability=replicated: committed once in-sync followers have it
    movable: bool  # between machines: its acknowledged records are not only in one data folder
    schedules: bool  # whether it is a schedule topic: one of the two is set

    def __init__(
        self, overrides: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> None:
        self.update(overrides or {}, broker or {})

    def update(self, overrides: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """Take the settings of the topic and the broker's as texts; changes all or raises."""
        for name in overrides:
            find(name, TOPIC_CONFIGS)
        values = {
            attribute: _topic_value(row, overrides, broker) for attribute, row in _TOPIC_READS
        }
        policy = items_of(_topic_value(TOPIC_CONFIGS["cleanup.policy"], overrides, broker))
        codec = str(_topic_value(TOPIC_CONFIGS["compression.type"], overrides, broker))
        by_codec = TOPIC_CONFIGS.get(f"compression.{codec}.level")
        level = None if by_codec is None else _topic_value(by_codec, overrides, broker)
        level_name = str(_topic_value(TOPIC_CONFIGS["tieredStorageLevel"], overrides, broker))
        values["tier_level"] = TierLevel.from_name(level_name)
        values["compression_level"] = None if level == -1 else level
        values["timestamp_type"] = int(values["timestamp_type"] == "LogAppendTime")
        durability = values["in_objects"]
        values["in_objects"], values["replicated"] = durability == S3, durability == REPLICATED
        values["movable"] = durability in BEYOND_FOLDER
        for attribute, value in values.items():
            setattr(self, attribute, value)  # the row has checked the type
        self.schedules = bool(self.schedule_topic or self.schedule_header)
        if self.schedules and "message.timestamp.after.max.ms" not in overrides:
            self.after_max_ms = INT64_MAX  # timestamps are due times
        if "file.delete.delay.ms" not in overrides:
            self.file_delete_delay_ms = -1
        self.cleanup_compact = "compact" in policy
        self.cleanup_delete = "delete" in policy
        if self.cleanup_compact:
            self.segment_ms = min(self.segment_ms, self.max_compaction_lag_ms)
        self.tiered = self.tiered and tiered_by_default(broker)
        self.copies = self.tiered and not self.copies  # as read: remote.log.copy.disable
        total_ms, total_bytes = self.retention_ms, self.retention_bytes
        if not self.cleanup_delete:  # retention.* has no effect, so nothing follows from it
            total_ms = total_bytes = -1
        self.local_retention_ms = local_retention(self.local_retention_ms, total_ms)
        self.local_retention_bytes = local_retention(self.local_retention_bytes, total_bytes)
        if COPY_LAG_MS in overrides or TOPIC_CONFIGS[COPY_LAG_MS].broker_name in broker:
            self._wait_for_copy_lag(overrides, broker)
        self.compression = -1 if codec == PRODUCER else COMPRESSION_TYPES.index(codec)

    def _wait_for_copy_lag(self, overrides: Mapping[str, str], broker: Mapping[str, str]) -> None:
        if self.in_objects:  # its log objects, which have a bound, go once it is uploaded
            return
        lag_ms, lag_bytes = (
            whole_number(_topic_value(TOPIC_CONFIGS[name], overrides, broker))
            for name in (COPY_LAG_MS, COPY_LAG_BYTES)
        )
        self.tier_lag_ms, self.tier_min_bytes = upload_limits(
            self.tier_lag_ms, self.tier_min_bytes, (lag_ms, lag_bytes),
            (self.local_retention_ms, self.local_retention_bytes),
        )  # fmt: skip


# What TopicConfig reads as it is; a start makes one for each topic, so it reads no more.
_TOPIC_READS = tuple(
    (attribute, TOPIC_CONFIGS[name])
    for attribute, name in (
        ("max_message_bytes", "max.message.bytes"),
        ("max_record_bytes", "max.decompressed.message.bytes"),
        ("timestamp_type", "message.timestamp.type"),
        ("before_max_ms", "message.timestamp.before.max.ms"),
        ("after_max_ms", "message.timestamp.after.max.ms"),
        ("retention_ms", "retention.ms"),
        ("retention_bytes", "retention.bytes"),
        ("min_insync_replicas", "min.insync.replicas"),
        ("segment_bytes", "segment.bytes"),
        ("segment_ms", "segment.ms"),
        ("delete_retention_ms", "delete.retention.ms"),
        ("file_delete_delay_ms", "file.delete.delay.ms"),
        ("min_compaction_lag_ms", "min.compaction.lag.ms"),
        ("max_compaction_lag_ms", "max.compaction.lag.ms"),
        ("min_cleanable_dirty_ratio", "min.cleanable.dirty.ratio"),
        ("tiered", ENABLE),
        ("copies", "remote.log.copy.disable"),
        ("tier_deletes", "remote.log.delete.on.disable"),
        ("local_retention_ms", "local.retention.ms"),
        ("local_retention_bytes", "local.retention.bytes"),
        ("tier_lag_ms", "tiering.max.lag.ms"),
        ("tier_min_bytes", "tiering.min.object.bytes"),
        ("schedule_topic", "schedule.target.topic"),
        ("schedule_header", "schedule.target.header"),
        ("dead_letters", "errors.deadletterqueue.group.enable"),
        ("in_objects", DURABILITY),
    )
)


def resolve_topic(overrides: Mapping[str, str], broker: Mapping[str, str]) -> TopicConfig:
    """Return the typed settings of a topic from its own texts and those of the broker."""
    return TopicConfig(overrides, broker)


@dataclass(slots=True, init=False, repr=False)  # there is a secret
class BrokerConfig:
    """The settings of the broker, one attribute per row: dots are underscores.

    The defaults of topic settings are not here: `texts` gives them to `resolve_topic`.
    """

    node_id: int
    broker_rack: str | None
    replica_selector_class: str | None
    lease_ms: int
    broker_decommissioning: bool
    broker_draining: bool
    broker_returning: bool
    broker_stopping: bool
    controlled_shutdown_enable: bool
    cluster_takeover_enable: bool
    cluster_takeover_ports: str
    cluster_return_delay_ms: int
    cluster_name: str
    broker_read_only: bool
    broker_read_only_commits: bool
    auto_create_topics_enable: bool
    delete_topic_enable: bool
    num_partitions: int
    default_replication_factor: int
    durability: str
    replication_listener: str
    replication_advertised_listener: str
    replication_security_protocol: str
    replica_group_size: int
    replica_lag_time_max_ms: int
    min_insync_replicas: int  # of topics without the setting
    max_request_partition_size_limit: int
    metadata_cache_bytes: int
    flush: str
    flush_os_ms: int
    commit_delay_ms: int
    record_validation: str
    journal_bytes: int
    journal_entries: int
    journal_roll_ms: int
    recycle_bytes: int
    partitions_loaded_max: int
    hot_bytes: int
    uncommitted_max_bytes: int
    slow_write_ms: int
    busy_disk_ms: int
    cut_interval_ms: int
    worker_bytes_per_second: int
    segment_dead_max_ms: int
    file_delete_delay_ms: int  # of the broker: segments are shared
    log_cleaner_enable: bool
    log_cleaner_threads: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_io_buffer_load_factor: float
    log_cleaner_io_buffer_size: int
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_backoff_ms: int
    disk_warn_percent: int
    disk_delete_percent: int
    disk_refuse_percent: int
    offset_storage: str
    plugin_hooks: list[str]
    log_flush_offset_checkpoint_interval_ms: int
    log_retention_check_interval_ms: int
    producer_id_expiration_ms: int
    producer_id_expiration_check_interval_ms: int
    socket_request_max_bytes: int
    socket_listen_backlog_size: int
    fetch_max_bytes: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_connection_creation_rate: int
    connections_max_idle_ms: int
    connection_inflight_bytes: int
    inflight_bytes: int
    inflight_answer_bytes: int
    parked_fetches_max: int
    max_incremental_fetch_session_cache_slots: int
    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    metrics_listener: str
    telemetry_max_bytes: int
    metrics_tls: bool
    metrics_token_file: str
    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_consumer_session_timeout_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_heartbeat_interval_ms: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_assignment_interval_ms: int
    group_consumer_min_assignment_interval_ms: int
    group_consumer_max_assignment_interval_ms: int
    group_consumer_max_size: int
    group_consumer_assignors: list[str]
    group_consumer_migration_policy: str
    group_consumer_regex_refresh_interval_ms: int
    group_share_session_timeout_ms: int
    group_share_min_session_timeout_ms: int
    group_share_max_session_timeout_ms: int
    group_share_heartbeat_interval_ms: int
    group_share_min_heartbeat_interval_ms: int
    group_share_max_heartbeat_interval_ms: int
    group_share_assignment_interval_ms: int
    group_share_min_assignment_interval_ms: int
    group_share_max_assignment_interval_ms: int
    group_share_record_lock_duration_ms: int
    group_share_min_record_lock_duration_ms: int
    group_share_max_record_lock_duration_ms: int
    group_share_delivery_count_limit: int
    group_share_min_delivery_count_limit: int
    group_share_max_delivery_count_limit: int
    group_share_partition_max_record_locks: int
    group_share_min_partition_max_record_locks: int
    group_share_max_partition_max_record_locks: int
    group_share_max_size: int
    group_share_assignors: list[str]
    group_share_max_share_sessions: int
    group_share_initialize_retry_interval_ms: int
    group_streams_session_timeout_ms: int
    group_streams_min_session_timeout_ms: int
    group_streams_max_session_timeout_ms: int
    group_streams_heartbeat_interval_ms: int
    group_streams_min_heartbeat_interval_ms: int
    group_streams_max_heartbeat_interval_ms: int
    group_streams_assignment_interval_ms: int
    group_streams_min_assignment_interval_ms: int
    group_streams_max_assignment_interval_ms: int
    group_streams_num_standby_replicas: int
    group_streams_max_standby_replicas: int
    group_streams_initial_rebalance_delay_ms: int
    group_streams_task_offset_interval_ms: int
    group_streams_min_task_offset_interval_ms: int
    group_streams_num_warmup_replicas: int
    group_streams_max_warmup_replicas: int
    group_streams_acceptable_recovery_lag: int
    group_streams_rack_aware_assignment_tags: list[str]
    group_streams_max_size: int
    group_streams_assignors: list[str]
    errors_deadletterqueue_auto_create_topics_enable: bool
    errors_deadletterqueue_topic_name_prefix: str
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_prune_interval_ms: int
    share_coordinator_cold_partition_snapshot_interval_ms: int
    offset_metadata_max_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_two_phase_commit_enable: bool
    transaction_partition_verification_enable: bool
    add_partitions_to_txn_retry_backoff_ms: int
    add_partitions_to_txn_retry_backoff_max_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    local_manifest_enable: bool
    backup_url: str
    backup_interval_ms: int
    backup_keep: int
    sasl_enabled_mechanisms: list[str]
    sasl_plain_users_file: str
    sasl_server_max_receive_size: int
    connections_max_reauth_ms: int
    connection_failed_authentication_delay_ms: int
    sasl_login_timeout_ms: int
    sasl_login_max_connections: int
    sasl_login_max_connections_per_ip: int
    sasl_deleted_users_disconnect: bool
    sasl_oauthbearer_jwks_endpoint_url: str
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int
    sasl_oauthbearer_expected_audience: list[str]
    sasl_oauthbearer_expected_issuer: str
    sasl_oauthbearer_required_scopes: list[str]
    sasl_oauthbearer_scope_claim_name: str
    sasl_oauthbearer_sub_claim_name: str
    sasl_oauthbearer_clock_skew_seconds: int
    delegation_token_secret_key: str
    delegation_token_max_lifetime_ms: int
    delegation_token_expiry_time_ms: int
    delegation_token_expiry_check_interval_ms: int
    inter_broker_listener_name: str
    inter_broker_client_config: str
    authorizer: str
    authorizer_class_name: str
    super_users: str
    allow_everyone_if_no_acl_found: bool
    audit_log: str
    tier_url: str
    log_object_linger_ms: int
    log_object_bytes: int
    log_unreleased_max_bytes: int
    tier_cache_bytes: int
    tier_part_bytes: int
    tier_upload_buffer_bytes: int
    tier_upload_threads: int
    tier_read_threads: int
    tier_s3_storage_class: str
    tier_delete_delay_ms: int
    tier_manifest_fold: int
    tier_retry_max_ms: int
    tier_hedge_percentile: int
    tier_paused: bool
    tier_fenced_action: str
    tier_missing_action: str
    tier_prices: str
    tier_budget_month: float
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_fetch_max_wait_ms: int
    remote_list_offsets_request_timeout_ms: int
    plaintext_allowed_addresses: str
    ssl_keystore_location: str
    ssl_key_location: str
    ssl_truststore_location: str
    ssl_keystore_type: str
    ssl_truststore_type: str
    ssl_client_auth: str
    ssl_enabled_protocols: list[str]
    ssl_principal_mapping_rules: str
    texts: dict[str, str]  # what is set, by broker name: the `broker` of resolve_topic
    _features: FinalizedFeatures
    _groups: Mapping[str, Mapping[str, str]]  # settings of groups, by group id

    @property
    def has_authorizer(self) -> bool:
        """Whether access rules are enforced."""
        return self.authorizer == "acl" or bool(self.authorizer_class_name)

    @property
    def transaction_version(self) -> int:
        """The finalized level of the feature transaction.version."""
        return self._features.level(TRANSACTION_VERSION)

    @property
    def group_version(self) -> int:
        """The finalized level of the feature group.version: 0 without the consumer group
        protocol."""
        return self._features.level(GROUP_VERSION)

    def consumer_group_settings(self, group_id: str) -> ConsumerGroupSettings:
        """Return the effective settings of a group of KIP-848: its own within the broker's bounds,
        or the broker's. Hot."""
        own = self._groups.get(group_id)
        if own is not None:
            return consumer_group_settings(own, self.number)
        return ConsumerGroupSettings(
            self.group_consumer_session_timeout_ms,
            self.group_consumer_heartbeat_interval_ms,
            self.group_consumer_assignment_interval_ms,
        )

    @property
    def share_version(self) -> int:
        """The finalized level of the feature share.version: 0 without share groups, 2 with dead
        letters."""
        return self._features.level(SHARE_VERSION)

    def share_group_settings(self, group_id: str) -> ShareGroupSettings:
        """Return the effective settings of a share group, like `consumer_group_settings`. Hot."""
        own = self._groups.get(group_id)
        if own is not None:
            return share_group_settings(own, self.number)
        return ShareGroupSettings(
            self.group_share_session_timeout_ms,
            self.group_share_heartbeat_interval_ms,
            self.group_share_assignment_interval_ms,
            self.group_share_record_lock_duration_ms,
            self.group_share_delivery_count_limit,
            self.group_share_partition_max_record_locks,
        )

    @property
    def streams_version(self) -> int:
        """The finalized level of the feature streams.version: 0 without streams groups."""
        return self._features.level(STREAMS_VERSION)

    def streams_group_settings(self, group_id: str) -> StreamsGroupSettings:
        """Return the effective settings of a streams group, like `consumer_group_settings`. Hot."""
        own = self._groups.get(group_id)
        if own is not None:
            return streams_group_settings(
                own, self.number, self.group_streams_rack_aware_assignment_tags
            )
        return StreamsGroupSettings(
            self.group_streams_session_timeout_ms,
            self.group_streams_heartbeat_interval_ms,
            self.group_streams_assignment_interval_ms,
            self.group_streams_num_standby_replicas,
            self.group_streams_initial_rebalance_delay_ms,
            self.group_streams_task_offset_interval_ms,
            self.group_streams_num_warmup_replicas,
            self.group_streams_acceptable_recovery_lag,
            self.group_streams_rack_aware_assignment_tags,
        )

    def number(self, name: str) -> int:
        """Return the value of a setting that is a whole number, by its name."""
        return whole_number(getattr(self, BROKER_CONFIGS[name].attribute))

    def __init__(
        self,
        texts: Mapping[str, str] | None = None,
        features: FinalizedFeatures | None = None,
        groups: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._features = features or FinalizedFeatures()
        self._groups = {} if groups is None else groups
        self.update(texts or {})

    def update(self, texts: Mapping[str, str]) -> None:
        """Take all settings that are set (static and dynamic merged); changes all or raises."""
        check_broker(texts)
        self.texts = dict(texts)
        for name, row in BROKER_CONFIGS.items():
            if not row.of_topic:
                text = texts.get(name)
                setattr(self, row.attribute, row.default if text is None else validate(row, text))
        self.file_delete_delay_ms = whole_number(
            _topic_value(TOPIC_CONFIGS["file.delete.delay.ms"], {}, texts)
        )
        self.min_insync_replicas = whole_number(
            _topic_value(TOPIC_CONFIGS["min.insync.replicas"], {}, texts)
        )


def markdown_table() -> str:
    """Return the tables of docs/configs.md."""
    lines = ["## Broker", "", *_HEADER]
    own = [row for row in BROKER_CONFIGS.values() if not row.of_topic]
    lines += [_line(row) for row in own]
    lines += ["", "## Topic", "", *_HEADER]
    lines += [_line(row) for row in TOPIC_CONFIGS.values()]
    lines += ["", "## Group", "", *_HEADER]
    lines += [_line(row) for row in GROUP_CONFIGS.values()]
    return "\n".join(lines) + "\n"


_HEADER = [
    "| name | type | default | allowed | dynamic | obeyed | what it does |",
    "|---|---|---|---|---|---|---|",
]


def _line(row: Config) -> str:
    about = row.about
    if row.broker_name:
        about += f" Broker: `{'`, `'.join(broker_names(row))}`."
    default = text_of(row.default)
    cells = (
        f"`{row.name}`",
        row.type.name.lower(),
        f"`{default}`" if default else "none" if default is None else "empty",
        describe_allowed(row),
        "yes" if row.dynamic else "no",
        row.effect.value,
        about,
    )
    return "| " + " | ".join(cells) + " |"
