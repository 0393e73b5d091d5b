"""`kafkawire configs`: settings of topics and brokers, shown and changed, against any Kafka broker.

Shows each setting with value, source, and whether it can be changed at run time (dynamic) or only
at start-up (static). Called by kafkawire.cli.cluster.app.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafkawire.cli.options import OptionError, split_pair
from kafkawire.cli.outcomes import command, print_results
from kafkawire.cli.output import fail, print_json
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError, check

TOPIC, BROKER = 2, 4
"""Kafka's ConfigResource.Type."""
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
"""Kafka's ConfigEntry.ConfigSource, in a word."""

Resource = tuple[int, str]


def resource_of(topic: str | None, broker: int | None, defaults: bool) -> Resource:
    """The named resource; ends the command with an error unless exactly one is named."""
    if (topic is not None) + (broker is not None) + defaults != 1:
        fail("give exactly one of --topic T, --broker N and --brokers-default", 2)
    if topic is not None:
        return TOPIC, topic
    return BROKER, "" if broker is None else str(broker)


def describe(server: str, resource: Resource, every: bool, as_json: bool) -> None:
    """Show the settings without a default value, or `every` setting."""

    def work(cluster: Cluster) -> bool:
        rows = [row for row in _rows(cluster, resource) if every or row["source"] != "default"]
        columns = ("name", "value", "source", "change")
        print_results(rows, columns, f"settings of {_name(resource)}", as_json)
        return True

    command(server, work)


def change(
    server: str, resource: Resource, pairs: Sequence[str], names: Sequence[str], as_json: bool
) -> None:
    """Set the `pairs` NAME=VALUE and remove the `names`: all of them, or none with exit code 1."""
    try:
        wanted = [(*split_pair("NAME=VALUE", pair), SET) for pair in pairs]
    except OptionError as error:
        fail(error, 2)
    changes = [*wanted, *((name, None, DELETE) for name in names)]

    def work(cluster: Cluster) -> bool:
        _alter(cluster, resource, changes)
        done = [{"name": name, "value": value} for name, value, _ in changes]
        if as_json:
            print_json(done)
        else:
            for row in done:
                value = row["value"]
                what = f"{row['name']} removed" if value is None else f"{row['name']}={value}"
                print(f"{_name(resource)}: {what}")
        return True

    command(server, work)


def _rows(cluster: Cluster, resource: Resource) -> list[dict[str, Any]]:
    from kafkawire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )

    kind, name = resource
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    asked = DescribeConfigsRequest(resources=[wanted])
    (result,) = _asked(cluster, resource, 32, asked).results
    check(_name(resource), result.error_code, result.error_message)
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


def _alter(
    cluster: Cluster, resource: Resource, changes: Sequence[tuple[str, str | None, int]]
) -> None:
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
    answer = _asked(cluster, resource, 44, IncrementalAlterConfigsRequest(resources=[one]))
    (result,) = answer.responses
    check(_name(resource), result.error_code, result.error_message)


def _asked(cluster: Cluster, resource: Resource, key: int, message: object) -> Any:
    """Send the request to a broker that can answer: only a broker itself knows its settings."""
    kind, name = resource
    if kind != BROKER or not name:
        return cluster.request(key, message)
    if int(name) not in cluster.nodes():
        raise ClientError(f"there is no broker {name}: the cluster has brokers {cluster.nodes()}")
    return cluster.node(int(name)).request(key, message)


def _name(resource: Resource) -> str:
    kind, name = resource
    if kind == TOPIC:
        return f"topic {name}"
    return f"broker {name}" if name else "all brokers"
