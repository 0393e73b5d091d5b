"""DescribeConfigs: the settings of topics and brokers, with where each value comes from."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain

from kafkawire.broker.loggers import levels
from kafkawire.broker.new_topics import name_fault
from kafkawire.broker.overrides import Layers, ResourceType
from kafkawire.broker.resources import (
    ConfigEntry,
    ConfigSource,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    list_as_kafka,
    topic_entries,
)
from kafkawire.codec.configs.settings import ConfigType
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import UNAUTHORIZED, RequestContext
from kafkawire.handlers.slices import encode_list_in_slices
from kafkawire.log_lines import address_of
from kafkawire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from kafkawire.security.acls import model as acls
from kafkawire.security.acls.model import Operation

TWICE = "Each resource must appear at most once."


async def describe_configs(ctx: RequestContext, req: DescribeConfigsRequest) -> list[Buffer]:
    """DescribeConfigs v1-4.

    v1 sources and synonyms; v3 types and documentation; v4 flexible. Resources: topics, this
    broker, the cluster's default (broker ""), loggers of this broker, groups and client metrics
    subscriptions, which need not exist. A repeated resource is rejected with INVALID_REQUEST. Not
    done: other brokers' settings (send the request to them).
    """
    topics = (each for each in req.resources if each.resource_type == ResourceType.TOPIC)
    await ctx.find_topics(each.resource_name for each in topics)
    layers = list_as_kafka(ctx.broker.topics.configs.layers())
    seen: set[tuple[int, str]] = set()
    checked: list[tuple[DescribeConfigsResource, KafkaError | None]] = []
    denied: list[tuple[DescribeConfigsResource, KafkaError | None]] = []
    for resource in req.resources:
        key = resource.resource_type, resource.resource_name
        if key in seen:  # repeated settings would fill the memory
            checked.append((resource, KafkaError(ErrorCode.INVALID_REQUEST, TWICE)))
        elif (code := config_refusal(ctx, Operation.DESCRIBE_CONFIGS, *key)) is not None:
            denied.append((resource, KafkaError(code)))
        else:
            checked.append((resource, None))
        seen.add(key)
        await ctx.give_way()
    results = (
        _result(ctx, resource, layers, req) if error is None else _refuse_resource(resource, error)
        for resource, error in chain(checked, denied)
    )
    try:
        return await encode_list_in_slices(
            ctx.broker.env,
            DescribeConfigsResponse(),
            ctx.version,
            DescribeConfigsResult,
            results,
            len(req.resources),
        )
    finally:
        await ctx.empty_slowly(seen, checked, denied)


def config_refusal(
    ctx: RequestContext, operation: Operation, kind: int, name: str
) -> ErrorCode | None:
    """Return the error of a client that may not see or change the settings of a resource."""
    if kind == ResourceType.TOPIC:
        resource, name = acls.ResourceKind.TOPIC, name
    elif kind == ResourceType.GROUP:
        resource, name = acls.ResourceKind.GROUP, name
    elif kind in frozenset(ResourceType):
        resource, name = acls.ResourceKind.CLUSTER, acls.CLUSTER_NAME
    else:
        return None  # an unknown kind has an error of its own
    return None if ctx.may(operation, resource, name) else UNAUTHORIZED[resource]


def _result(
    ctx: RequestContext,
    resource: DescribeConfigsResource,
    layers: Layers,
    req: DescribeConfigsRequest,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    # Kafka takes an empty list of keys for "all", like null.
    names = set(resource.configuration_keys or ()) or None
    try:
        entries = _entries(ctx, resource, layers, names)
    except KafkaError as error:
        return _refuse_resource(resource, error)
    result.configs = [
        _describe_entry(entry, req.include_synonyms, req.include_documentation) for entry in entries
    ]
    return result


def _refuse_resource(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=error.code,
        error_message=error.message or error.code.sentence,
    )


def _entries(
    ctx: RequestContext,
    resource: DescribeConfigsResource,
    layers: Layers,
    names: Collection[str] | None,
) -> list[ConfigEntry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.TOPIC:
        return _topic(ctx, name, layers, names)
    if kind == ResourceType.BROKER:
        if not name:
            return cluster_entries(layers, names)
        _check_broker_id(ctx, name, "or empty string, ")
        return broker_entries(layers, names, _collect_fixed_settings(ctx))
    if kind == ResourceType.BROKER_LOGGER:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_broker_id(ctx, name, "")
        return _loggers(names)
    if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        if not name:
            what = "Group" if kind == ResourceType.GROUP else "Client metrics subscription"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} name must not be empty")
        if kind == ResourceType.GROUP:
            return group_entries(ctx.broker.catalog.group_overrides.get(name, {}), layers, names)
        return client_metrics_entries(ctx.broker.catalog.client_metrics.get(name, {}), names)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _collect_fixed_settings(ctx: RequestContext) -> dict[str, str]:
    """Settings fixed at broker start, under Kafka's names."""
    addresses = ctx.broker.listeners.items()
    return {
        "advertised.listeners": ",".join(
            f"{name}://{address_of(host, port)}" for name, (host, port) in addresses
        ),
        "broker.id": str(ctx.broker.node_id),
        "log.dirs": ctx.broker.folder,
    }


def _topic(
    ctx: RequestContext, name: str, layers: Layers, names: Collection[str] | None
) -> list[ConfigEntry]:
    fault = name_fault(name)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    topic = ctx.broker.catalog.by_name.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic_entries(topic.configs, layers, names)


def _check_broker_id(ctx: RequestContext, name: str, also: str) -> None:
    expected = ctx.broker.node_id
    if not re.fullmatch(r"-?[0-9]{1,10}", name):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if int(name) != expected:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {expected} {also}but received {name}",
        )


def _loggers(names: Collection[str] | None) -> list[ConfigEntry]:
    return [
        ConfigEntry(
            name, level, ConfigSource.DYNAMIC_BROKER_LOGGER, False, False, ConfigType.STRING,
            "The least serious messages of this logger that are written.", [],
        )
        for name, level in levels().items()
        if names is None or name in names
    ]  # fmt: skip


def _describe_entry(
    entry: ConfigEntry, synonyms: bool, documentation: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.text,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=text, source=source)
            for name, text, source in (entry.synonyms if synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.about if documentation else None,
    )
