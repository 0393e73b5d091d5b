"""`kafkawire configs`: settings of topics, brokers and groups, shown and changed, at any Kafka
broker.

Shows each setting with value, source, and whether it can be changed at run time (dynamic) or only
at start-up (static).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import connect_cluster, print_results
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import INT32, LOCAL, Json, Server, Wide, not_empty
from kafkawire.cli.shared.tables import TableColumn
from kafkawire.cli.shared.units import split_setting
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

Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", callback=not_empty, help="Settings of this topic."),
]
Broker = Annotated[
    int | None,
    typer.Option("--broker", metavar="N", min=0, max=INT32, help="Settings of this broker."),
]
Brokers = Annotated[
    bool, typer.Option("--brokers-default", help="Cluster-wide default of all brokers.")
]


Group = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="GROUP", callback=not_empty,
        help="Settings of this group, which need not exist yet.",
    ),
]  # fmt: skip


def resource_of(
    topic: str | None, broker: int | None, defaults: bool, group: str | None = None
) -> Resource:
    """The named resource; ends the command with an error unless exactly one is named."""
    if (topic is not None) + (broker is not None) + defaults + (group is not None) != 1:
        fail("give exactly one of --topic T, --broker N, --brokers-default and --group G", 2)
    if topic is not None:
        return TOPIC, topic
    if group is not None:
        return GROUP, group
    return BROKER, "" if broker is None else str(broker)


def describe(
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    group: Group = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include settings with their default value.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show settings with value, source and whether they can be changed at run time.

    Examples:
      kafkawire configs describe --topic orders
      kafkawire configs describe --broker 1 --all
    """
    resource = resource_of(topic, broker, brokers_default, group)
    with connect_cluster(server) as cluster:
        rows = [row for row in settings(cluster, resource) if every or row["source"] != "default"]
        columns = ("name", TableColumn("value", keep=True), "source", "change")
        print_results(rows, columns, f"settings of {_name(resource)}", as_json, wide)


def change(
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...")],
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    group: Group = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Change settings: all of them, or none if one is rejected.

    Examples:
      kafkawire configs set retention.ms=1h --topic orders
      kafkawire configs set log.retention.ms=1d --brokers-default
      kafkawire configs set consumer.session.timeout.ms=50s --group billing
    """
    resource = resource_of(topic, broker, brokers_default, group)
    try:
        changes = [(*split_setting("NAME=VALUE", pair), SET) for pair in pairs]
    except OptionError as error:
        fail(error, 2)
    _apply(server, resource, changes, as_json)


def remove(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", callback=not_empty)],
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    group: Group = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Remove settings, so that the next value in the order of precedence applies.

    Examples:
      kafkawire configs unset retention.ms --topic orders
    """
    resource = resource_of(topic, broker, brokers_default, group)
    _apply(server, resource, [(name, None, DELETE) for name in names], as_json)


def _apply(server: str, resource: Resource, changes: Sequence[Change], as_json: bool) -> None:
    """Make all the changes, or none with exit code 1."""
    with connect_cluster(server) as cluster:
        alter(cluster, resource, changes)
        done = [{"name": name, "value": value} for name, value, _ in changes]
        if as_json:
            print_json(done)
        else:
            for row in done:
                value = row["value"]
                what = f"{row['name']} removed" if value is None else f"{row['name']}={value}"
                print(f"{_name(resource)}: {what}")


def settings(cluster: Cluster, resource: Resource) -> list[dict[str, Any]]:
    """Return all settings of a resource, by name. ClientError."""
    from kafkawire.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResource,
    )

    kind, name = resource
    wanted = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    asked = DescribeConfigsRequest(resources=[wanted])
    (result,) = _request(cluster, resource, 32, asked).results
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


def alter(cluster: Cluster, resource: Resource, changes: Sequence[Change]) -> None:
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
    answer = _request(cluster, resource, ALTER, IncrementalAlterConfigsRequest(resources=[one]))
    (result,) = answer.responses
    check(_name(resource), result.error_code, result.error_message)


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


def _name(resource: Resource) -> str:
    kind, name = resource
    if kind in (TOPIC, GROUP):
        return f"{'topic' if kind == TOPIC else 'group'} {name}"
    return f"broker {name}" if name else "all brokers"
