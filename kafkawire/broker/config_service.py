"""Changes to the settings of topics, brokers, groups and client metrics at run time.

A change is validated, stored in one SQL transaction, entered in the catalog, and applied by
modifying the config objects in place: a component that holds one (a partition, the server) uses it
for the next record. broker.overrides (pure) computes the new stored settings. Part of the topic
service, whose lock it shares; called by the alter handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkawire.broker import loggers
from kafkawire.broker.change_log import BROKER, ChangeLog
from kafkawire.broker.new_topics import name_fault
from kafkawire.broker.overrides import (
    MAX_GROUPS,
    MAX_SUBSCRIPTIONS,
    AlterConfigOp,
    Layers,
    Op,
    ResourceType,
    broker_overrides,
    check_wishes,
    client_metrics_overrides,
    find_changes,
    group_overrides,
    layers_of,
    prepare_filter,
    topic_overrides,
)
from kafkawire.broker.read_only import ReadOnly, check_writable
from kafkawire.codec.configs.group_config import list_beyond
from kafkawire.codec.configs.settings import BROKER_CONFIGS, BrokerConfig, check_broker
from kafkawire.codec.configs.view_rules import VIEW_FILTER
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.log.io import slices
from kafkawire.log_lines import reason_of, shorten_for_log
from kafkawire.metadata.catalog import ALL_BROKERS, Catalog, ConfigChange

if TYPE_CHECKING:
    from kafkawire.broker.following.lock import CatalogLock
    from kafkawire.broker.parts import BrokerParts

logger = logging.getLogger(__name__)

# Expected failures of a transaction or a commit; any other exception is a bug and reported as one.
FAILURES = (KafkaError, OSError)

MAX_CLAMPED_LINES = 20
"""Settings of groups beyond the bounds that have a log line each at a start; the cause is one
changed bound."""
MAX_WISHES = 1_200
"""Maximum number of settings of one resource in a request: all that exist, and unknown ones that
the broker stores."""


def as_kafka_error(failure: Exception) -> KafkaError:
    """Return one of FAILURES as the Kafka error for the client."""
    return (
        failure
        if isinstance(failure, KafkaError)
        else KafkaError(code_of(failure), reason_of(failure))
    )


@dataclass(slots=True)
class Resource:
    """The requested settings of one resource. `replace`: settings that are not in `wishes` are
    reset to the default (AlterConfigs)."""

    type: int
    name: str
    wishes: list[AlterConfigOp]
    replace: bool = False


def warn_of_clamped(catalog: Catalog, config: BrokerConfig) -> None:
    """Log which stored settings of groups are beyond the broker's bounds, as they were set when it
    had other bounds (Kafka: GroupConfig.evaluate)."""
    clamped = [
        (group, name, own[name], value)
        for group, own in catalog.group_overrides.items()
        for name, value in list_beyond(own, config.number)
    ]
    for group, name, text, value in clamped[:MAX_CLAMPED_LINES]:
        logger.warning(
            "group %s: its %s=%s is beyond the bounds of this broker, so %d is used",
            shorten_for_log(group), name, text, value,
        )  # fmt: skip
    if len(clamped) > MAX_CLAMPED_LINES:
        more = len(clamped) - MAX_CLAMPED_LINES
        logger.warning("%d more settings of groups are beyond the bounds of this broker", more)


def _has_room(
    resource: Resource, known: Collection[str], new: set[tuple[int, str]], limit: int
) -> bool:
    """Return whether one more resource can get settings, and add it to `new`."""
    new.add((resource.type, resource.name))
    return len(known) + sum(kind == resource.type for kind, _ in new) <= limit


def _check_subscription(settings: Mapping[str, str]) -> None:
    from kafkawire.telemetry.subscriptions import parse_subscription

    parse_subscription(settings)


class ConfigService:
    def __init__(self, broker: BrokerParts, lock: CatalogLock, log: ChangeLog) -> None:
        self._broker = broker
        self._lock = lock
        self._log = log
        self._read_only = ReadOnly(broker.config, broker.log.commit_log)

    def layers(self) -> Layers:
        """Return the broker's current settings by layer."""
        broker = self._broker
        return layers_of(broker.catalog, broker.node_id, broker.static)

    async def alter(
        self, resources: Sequence[Resource], validate_only: bool, sender: str = BROKER
    ) -> list[KafkaError | None]:
        """Change settings; return an error or None for each resource, in order. All valid changes
        are stored in one transaction. `sender`: who asked, for the log."""
        give_way = self._broker.env.slices.give_way
        names = ((resource.type, resource.name) for resource in resources)
        twice = await slices.duplicates(names, give_way)
        try:
            return await self._lock.change(
                lambda seen: self._alter(resources, twice, validate_only, sender, seen)
            )
        except OSError as error:  # of SQL: the changes of other brokers cannot be read
            return [as_kafka_error(error) for _ in resources]
        finally:
            await slices.empty_slowly(twice, give_way)

    async def _alter(
        self,
        resources: Sequence[Resource],
        twice: Collection[tuple[int, str]],
        validate_only: bool,
        sender: str,
        seen: int,
    ) -> list[KafkaError | None]:
        errors: list[KafkaError | None] = []
        changes: list[list[ConfigChange]] = []
        new: set[tuple[int, str]] = set()  # groups and subscriptions that will have settings
        for resource in resources:
            try:
                if (resource.type, resource.name) in twice:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
                changes.append(await self._plan(resource, validate_only, new))
                errors.append(None)
            except KafkaError as error:
                changes.append([])
                errors.append(error)
            await self._broker.env.slices.give_way()
        if validate_only or not any(changes):
            return errors
        everything = [change for of_one in changes for change in of_one]
        try:
            await self._broker.metadata.alter_configs(everything, seen)
            await self._put_in_force(everything, sender)
        except FAILURES as error:
            failed = as_kafka_error(error)
            return [failed if of_one else own for of_one, own in zip(changes, errors, strict=True)]
        return errors

    async def _plan(
        self, resource: Resource, validate_only: bool, new: set[tuple[int, str]]
    ) -> list[ConfigChange]:
        if len(resource.wishes) > MAX_WISHES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{len(resource.wishes)} settings of one resource; at most {MAX_WISHES} can "
                "be changed in one request.",
            )
        check_wishes(resource.wishes)
        if resource.type == ResourceType.TOPIC:
            for wish in resource.wishes:
                if wish.name == VIEW_FILTER and wish.value:
                    await self._broker.env.offload.submit("files", prepare_filter, wish.value)
            before, after = self._plan_topic(resource)
        elif resource.type == ResourceType.BROKER:
            before, after = self._plan_broker(resource)
        elif resource.type == ResourceType.BROKER_LOGGER and not resource.replace:
            self._check_node_id(resource.name)
            loggers.alter(resource.wishes, validate_only)
            return []
        elif resource.type == ResourceType.GROUP:
            before, after = self._plan_group(resource, new)
        elif resource.type == ResourceType.CLIENT_METRICS:
            before, after = await self._plan_subscription(resource, new)
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Unknown resource type {int(resource.type)}"
            )
        return [
            ConfigChange(resource.type, resource.name, key, value)
            for key, value in find_changes(before, after).items()
        ]

    def _plan_topic(self, resource: Resource) -> tuple[Mapping[str, str], Mapping[str, str]]:
        if not resource.name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        fault = name_fault(resource.name)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        check_writable(self._broker.config)
        topic = self._broker.catalog.by_name.get(resource.name)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"The topic '{resource.name}' does not exist.",
            )
        texts = self._broker.config.texts
        return topic.configs, topic_overrides(
            topic.configs, resource.wishes, resource.replace, texts
        )

    def _plan_broker(self, resource: Resource) -> tuple[Mapping[str, str], Mapping[str, str]]:
        whole_cluster = resource.name == ALL_BROKERS
        layers = self.layers() if whole_cluster else self._layers_of(resource.name)
        before = layers.of_cluster if whole_cluster else layers.of_broker
        after = broker_overrides(layers, resource.wishes, resource.replace, whole_cluster)
        return before, after

    def _plan_group(
        self, resource: Resource, new: set[tuple[int, str]]
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        known = self._broker.catalog.group_overrides
        before = known.get(resource.name, {})
        after = group_overrides(
            resource.name, before, resource.wishes, resource.replace, self._broker.config
        )
        if after and not before and not _has_room(resource, known, new, MAX_GROUPS):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"At most {MAX_GROUPS} groups can have settings of their own.",
            )
        return before, after

    async def _plan_subscription(
        self, resource: Resource, new: set[tuple[int, str]]
    ) -> tuple[Mapping[str, str], Mapping[str, str]]:
        known = self._broker.catalog.client_metrics
        before = known.get(resource.name, {})
        after = client_metrics_overrides(resource.name, before, resource.wishes, resource.replace)
        # In a thread: importing RE2 takes 20 ms, compiling a pattern up to 5 ms.
        await self._broker.env.offload.submit("files", _check_subscription, after)
        if after and not before and not _has_room(resource, known, new, MAX_SUBSCRIPTIONS):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"There can be at most {MAX_SUBSCRIPTIONS} client metrics subscriptions.",
            )
        return before, after

    def _layers_of(self, name: str) -> Layers:
        """Return the settings of this broker, or of one that is not alive, and cannot take the
        request itself (Kafka: a controller takes it). Raises INVALID_REQUEST."""
        catalog = self._broker.catalog
        for node in catalog.silent & catalog.brokers.keys():
            if name == str(node):
                return layers_of(catalog, node, {})
        self._check_node_id(name)
        return self.layers()

    def _check_node_id(self, name: str) -> None:
        # Compared as strings: the key of stored settings is the number in decimal.
        if name != str(self._broker.node_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self._broker.node_id}, but received {name}",
            )

    async def replace_static(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Replace settings given at start (None: back to the default) and apply those that no
        stored setting overrides. Return the overridden ones with the stored value. ConfigError
        changes nothing."""
        async with self._lock.hold():
            layers = self.layers()
            static = {**layers.static, **changes}
            kept = {name: text for name, text in static.items() if text is not None}
            check_broker(layers._replace(static=kept).merge_settings())
            self._broker.static.clear()
            self._broker.static.update(kept)
            await self.broker_changed(changes)
            stored = {**layers.of_cluster, **layers.of_broker}
            return {name: stored[name] for name in changes if name in stored}

    async def broker_changed(self, names: Iterable[str]) -> None:
        """Apply the broker's settings after those with these names have changed."""
        broker = self._broker
        broker.config.update(self.layers().merge_settings())
        self._read_only.apply_setting()
        if broker.tiering is not None:
            broker.tiering.broker_changed()
        if any(BROKER_CONFIGS[name].of_topic for name in names if name in BROKER_CONFIGS):
            await broker.log.alter_defaults()

    def _find_stored_value(self, change: ConfigChange) -> str | None:
        """Return the stored value before a change; None if there is none."""
        if change.resource_type == ResourceType.TOPIC:
            topic = self._broker.catalog.by_name.get(change.name)
            return None if topic is None else topic.configs.get(change.key)
        stored = self._broker.catalog.overrides_of(change.resource_type)
        return stored.get(change.name, {}).get(change.key)

    async def _put_in_force(self, changes: Sequence[ConfigChange], sender: str) -> None:
        broker = self._broker
        for change in changes:
            self._log.report_setting_changed(change, self._find_stored_value(change), sender)
            broker.catalog.apply_config(change)
            await broker.env.slices.give_way()
        of_brokers = [c.key for c in changes if c.resource_type == ResourceType.BROKER]
        if of_brokers:
            await self.broker_changed(of_brokers)
        named = dict.fromkeys(c.name for c in changes if c.resource_type == ResourceType.TOPIC)
        for name in named:
            topic = broker.catalog.by_name.get(name)
            if topic is not None:
                broker.log.alter_topic(topic)
            await broker.env.slices.give_way()
        if named:
            await broker.log.commit_log.wait_until_committed()


__all__ = [
    "FAILURES",
    "AlterConfigOp",
    "ConfigService",
    "Op",
    "Resource",
    "ResourceType",
    "as_kafka_error",
]
