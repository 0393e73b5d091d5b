"""Settings of topics, brokers and groups: described and changed, at any Kafka broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkawire.client.cluster import Cluster, find_registered_brokers
from kafkawire.client.errors import ClientError, check

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kafka's ConfigResource.Type."""
ALTER = 44
"""The API key of IncrementalAlterConfigs."""
SET, DELETE = 0, 1
"""Kafka's AlterConfigOp.OpType (KIP-339)."""
DEFAULT = 5
SOURCES = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "static",
    DEFAULT: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
"""Kafka's ConfigEntry.ConfigSource, as one word each."""

Resource = tuple[int, str]
Change = tuple[str, str | None, int]
"""Name, value, and SET or DELETE."""


def settings(
    cluster: Cluster, resource: Resource, names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return all settings of a resource, or those with these names, by name. ClientError."""
    from kafkawire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )

    kind, name = resource
    wanted = DescribeConfigsResource(
        resource_type=kind,
        resource_name=name,
        configuration_keys=None if names is None else list(names),
    )
    asked = DescribeConfigsRequest(resources=[wanted])
    (result,) = _request(cluster, resource, 32, asked).results
    check(resource_name(resource), result.error_code, result.error_message)
    return [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive else entry.value,
            "source": SOURCES.get(entry.config_source, str(entry.config_source)),
            "change": "static" if entry.read_only else "dynamic",
            "sensitive": entry.is_sensitive,
        }
        for entry in sorted(result.configs, key=lambda entry: entry.name)
    ]


def broker_settings(
    cluster: Cluster, names: Sequence[str] | None = None, node: int | None = None
) -> dict[str, str | None]:
    """Return settings of a broker, by name; `names`: None for all; `node`: None for the first.
    ClientError."""
    node = cluster.nodes()[0] if node is None else node
    return {row["name"]: row["value"] for row in settings(cluster, (BROKER, str(node)), names)}


def alter(
    cluster: Cluster,
    resource: Resource,
    changes: Sequence[Change],
    *,
    validate_only: bool = False,
) -> None:
    """Make all changes of a resource's settings, or none. ClientError."""
    from kafkawire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    configs = [
        AlterableConfig(name=name, value=value, config_operation=operation)
        for name, value, operation in changes
    ]
    kind, name = resource
    one = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    asked = IncrementalAlterConfigsRequest([one], validate_only)
    answer = _request(cluster, resource, ALTER, asked)
    (result,) = answer.responses
    check(resource_name(resource), result.error_code, result.error_message)


def _request(cluster: Cluster, resource: Resource, key: int, message: object) -> Any:
    """Send the request to the right broker: only a broker itself knows its settings."""
    kind, name = resource
    if kind != BROKER or not name:
        return cluster.request(key, message)
    if int(name) in cluster.nodes():
        return cluster.node(int(name)).request(key, message)
    if key == ALTER and int(name) in find_registered_brokers(cluster.first):
        return cluster.request(key, message)  # one that is not alive cannot take it
    raise ClientError(f"there is no broker {name}: the cluster has brokers {cluster.nodes()}")


def resource_name(resource: Resource) -> str:
    """Return a resource as text, such as `topic orders`."""
    kind, name = resource
    if kind in (TOPIC, GROUP):
        return f"{'topic' if kind == TOPIC else 'group'} {name}"
    return f"broker {name}" if name else "all brokers"
