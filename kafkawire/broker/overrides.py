"""Settings in layers, and the effect of a change request on one layer.

A broker setting has up to four values: set for this broker at run time, for all brokers at run
time, on the command line, and the default; the first one present is used. A topic's own value takes
precedence, under the topic's name of the setting. Pure: broker.config_service stores and applies
settings, and codec.configs defines which values are valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import NamedTuple

from kafkawire.broker.new_topics import duplicates
from kafkawire.codec.configs.client_metrics_rows import CLIENT_METRICS_CONFIGS
from kafkawire.codec.configs.durability_rules import new_topic_durability
from kafkawire.codec.configs.group_config import check_group
from kafkawire.codec.configs.listeners import is_of_listener
from kafkawire.codec.configs.pending import PENDING, pending_row
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
    BrokerConfig,
    Config,
    ConfigError,
    append_items,
    check_broker,
    check_topic,
    subtract_items,
    text_of,
    topic_default,
    validate,
)
from kafkawire.codec.configs.unsupported import (
    MAX_FOREIGN_CONFIGS,
    PER_LISTENER,
    STATIC,
    foreign_row,
    per_broker,
)
from kafkawire.codec.configs.view_rules import VIEW_FILTER
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.catalog import ALL_BROKERS, Catalog

MAX_VALUE_BYTES = 32_767
"""Maximum length of a value, as in Kafka (ConfigurationControlManager)."""
MAX_SUBSCRIPTIONS = 100
"""Client metrics subscriptions: each is compared with each client that asks, up to 0.1 ms."""
MAX_GROUPS = 10_000
"""Groups with settings of their own: a change of one makes each other broker read all of them."""
MAX_NAME_BYTES = 2_000
"""Maximum length of the id of a group with settings, and of the name of a subscription: an index of
PostgreSQL has entries of at most 2,700 bytes, and the name of the setting is in them, too."""


class ResourceType(IntEnum):
    """Types of configuration resources (Kafka: ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Op(IntEnum):
    """Operations on one setting (Kafka: AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlterConfigOp(NamedTuple):
    """One operation of a request: the setting, the operation, the value (None only with DELETE)."""

    name: str
    op: Op
    value: str | None


class Layers(NamedTuple):
    """The values of the broker settings by layer; the first layer takes precedence."""

    of_broker: Mapping[str, str]
    of_cluster: Mapping[str, str]
    static: Mapping[str, str]

    def merge_settings(self) -> dict[str, str]:
        """The settings of the whole broker, for BrokerConfig.update. Single listeners have others;
        clients or another version may have stored unknown ones."""
        dynamic = {**self.of_cluster, **self.of_broker}
        texts = {**self.static, **dynamic}
        return {name: text for name, text in texts.items() if name in BROKER_CONFIGS}


def layers_of(catalog: Catalog, node_id: int, static: Mapping[str, str]) -> Layers:
    """Return the layers of the settings of broker `node_id`, as stored in `catalog`."""
    stored = catalog.broker_overrides
    return Layers(stored.get(str(node_id), {}), stored.get(ALL_BROKERS, {}), static)


def check_wishes(wishes: Sequence[AlterConfigOp]) -> None:
    """Check a request independently of the resource type (Kafka: ConfigAdminManager.preprocess)."""
    if duplicates(wish.name for wish in wishes):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    null = [wish.name for wish in wishes if wish.value is None and wish.op is not Op.DELETE]
    if null:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(null)}"
        )


def new_topic_overrides(
    configs: Sequence[tuple[str, str | None]], broker: Mapping[str, str]
) -> dict[str, str]:
    """Return the validated settings of a new topic, with the durability that it gets from the
    broker's default."""
    null = [name for name, value in configs if value is None]
    if null:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Null value not supported for topic configs: {','.join(null)}",
        )
    overrides = {name: value for name, value in configs if value is not None}
    overrides.update(new_topic_durability(overrides, broker))
    if overrides:  # the broker's defaults are already validated
        _checked_topic(overrides, broker)
    return overrides


def topic_overrides(
    current: Mapping[str, str],
    wishes: Sequence[AlterConfigOp],
    replace: bool,
    broker: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of a topic after `wishes`; `replace` (AlterConfigs) discards
    `current`."""
    defaults = {name: _text(topic_default(row, broker)) for name, row in TOPIC_CONFIGS.items()}
    after = _after({} if replace else current, wishes, TOPIC_CONFIGS, defaults)
    _checked_topic(after, broker, current)
    return after


def broker_overrides(
    layers: Layers, wishes: Sequence[AlterConfigOp], replace: bool, whole_cluster: bool
) -> dict[str, str]:
    """Return one run-time layer of the broker settings after `wishes`: that of this broker, or that
    of the whole cluster. Invalid values are INVALID_REQUEST for brokers (KAFKA-13609)."""
    names = [wish.name.removeprefix(PENDING) for wish in wishes if wish.op is not Op.DELETE]
    _check_dynamic(names, whole_cluster)
    current = layers.of_cluster if whole_cluster else layers.of_broker
    table = {wish.name: _broker_row(wish.name) for wish in wishes}
    defaults = {name: _text(row.default) for name, row in table.items()}
    after = _after({} if replace else current, wishes, table, defaults)
    if whole_cluster:
        layers = layers._replace(of_cluster=after)
    else:
        layers = layers._replace(of_broker=after)
    try:
        for name in table.keys() & after.keys():
            validate(table[name], after[name])
        effective = layers.merge_settings()
        check_broker(effective)
        pending = {
            name.removeprefix(PENDING): text for name, text in after.items() if pending_row(name)
        }
        if pending:
            check_broker({**effective, **pending})
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    if sum(name not in BROKER_CONFIGS for name in after) > MAX_FOREIGN_CONFIGS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"At most {MAX_FOREIGN_CONFIGS} settings unknown to this broker can be stored.",
        )
    return after


def _broker_row(name: str) -> Config:
    return BROKER_CONFIGS.get(name) or pending_row(name) or foreign_row(name)


def group_overrides(
    group_id: str,
    current: Mapping[str, str],
    wishes: Sequence[AlterConfigOp],
    replace: bool,
    broker: BrokerConfig,
) -> dict[str, str]:
    """Return the settings of a group after `wishes`, for which `current` is discarded if
    `replace`. The group need not exist."""
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    if len(group_id.encode()) > MAX_NAME_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A group with settings can have an id of at most {MAX_NAME_BYTES} bytes.",
        )
    defaults = {name: _text(row.default) for name, row in GROUP_CONFIGS.items()}
    after = _after({} if replace else current, wishes, GROUP_CONFIGS, defaults)
    # Those of a newer version stay as they are.
    known = {name: text for name, text in after.items() if name in GROUP_CONFIGS}
    try:
        check_group(known, broker.number)
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return after


def client_metrics_overrides(
    name: str, current: Mapping[str, str], wishes: Sequence[AlterConfigOp], replace: bool
) -> dict[str, str]:
    """Return the settings of a client metrics subscription after `wishes`; `replace` discards
    `current`. Their values are not checked. The errors are Kafka's (ClientMetricsConfigs.validate);
    its lists can only be replaced."""
    after = {} if replace else dict(current)
    for key, op, value in wishes:
        if op in (Op.APPEND, Op.SUBTRACT):
            text = f"Can't {op.name} to key {key} because its type is not LIST."
            raise KafkaError(ErrorCode.INVALID_CONFIG, text)
        if op is Op.DELETE or value is None:
            after.pop(key, None)
        else:
            _check_length(key, value)
            after[key] = value
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    if len(name.encode()) > MAX_NAME_BYTES:
        text = f"A subscription can have a name of at most {MAX_NAME_BYTES} bytes."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    for key in after:
        if key not in CLIENT_METRICS_CONFIGS:
            text = f"Unknown client metrics configuration: {key}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    return after


def _check_dynamic(names: Sequence[str], whole_cluster: bool) -> None:
    """Refuse what cannot change while a broker runs (Kafka: DynamicBrokerConfig.validateConfigs).
    Unknown names are accepted, as in Kafka."""
    static = [
        name
        for name in names
        if (
            not BROKER_CONFIGS[name].dynamic
            if name in BROKER_CONFIGS
            else name in STATIC or is_of_listener(name)
        )
    ]
    refusals = [
        (static, "Cannot update these configs dynamically"),
        (
            [name for name in names if name in PER_LISTENER],
            "These security configs can be dynamically updated only per-listener using the "
            "listener prefix",
        ),
        (
            [name for name in names if whole_cluster and per_broker(name)],
            "Cannot update these configs at default cluster level, broker id must be specified",
        ),
    ]
    for refused, why in refusals:
        if refused:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{why}: {', '.join(refused)}")


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes from `before` to `after`; None removes a setting."""
    changes: dict[str, str | None] = {name: None for name in before if name not in after}
    changes.update((name, text) for name, text in after.items() if before.get(name) != text)
    return changes


def _checked_topic(
    overrides: Mapping[str, str],
    broker: Mapping[str, str],
    before: Mapping[str, str] | None = None,
) -> None:
    try:
        check_topic(overrides, broker, before)
        if overrides.get(VIEW_FILTER):
            _check_filter(overrides[VIEW_FILTER])
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def prepare_filter(text: str) -> None:
    """Parse the filter of a view in a thread, so that its check on the event loop finds it."""
    with suppress(ConfigError):
        _check_filter(text)


def _check_filter(text: str) -> None:
    # Few topics are views: a start imports no parser for others.
    from kafkawire.codec.view_filter import FilterError, parse_filter

    try:
        parse_filter(text)
    except FilterError as wrong:
        raise ConfigError(VIEW_FILTER, text, str(wrong)) from None


def _after(
    current: Mapping[str, str],
    wishes: Sequence[AlterConfigOp],
    table: Mapping[str, Config],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    after = dict(current)
    for name, op, value in wishes:
        if op is Op.DELETE or value is None:
            after.pop(name, None)  # also a setting of an older version
            continue
        row = table.get(name)
        if row is None:
            of_topic, of_group = table is TOPIC_CONFIGS, table is GROUP_CONFIGS
            kind = "topic " if of_topic else "group " if of_group else ""  # as in Kafka
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown {kind}config name: {name}")
        try:
            if op is Op.APPEND:
                value = append_items(row, after.get(name, defaults[name]), value)
            elif op is Op.SUBTRACT:
                value = subtract_items(row, after.get(name, defaults[name]), value)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        _check_length(name, value)
        after[name] = value
    return after


def _check_length(name: str, value: str) -> None:
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"The value of {name} has more than {MAX_VALUE_BYTES} bytes"
        )


def _text(value: bool | int | float | str | list[str] | None) -> str:
    return text_of(value) or ""
