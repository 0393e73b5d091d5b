"""`kafkawire configs`: settings of topics, brokers and groups, shown and changed, at any Kafka
broker.

Shows each setting with value, source, and whether it can be changed at run time (dynamic) or only
at start-up (static).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, print_results
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import INT32, LOCAL, Json, Server, Wide, not_empty
from kafkawire.cli.shared.tables import TableColumn
from kafkawire.client.cluster import Cluster, find_registered_brokers
from kafkawire.client.configs import (
    BROKER,
    DELETE,
    GROUP,
    SET,
    SOURCES,
    TOPIC,
    Change,
    Resource,
    alter,
    resource_name,
    settings,
)
from kafkawire.client.errors import ClientError, check
from kafkawire.client.notation import OptionError, split_setting
from kafkawire.plural import count

PENDING = "pending."
"""Before the name of a setting that is stored and has no effect yet."""
DESCRIBE_QUORUM = 55
NOT_REACHED = "cannot be reached"
NOT_ALIVE = "not alive: applies them when it starts"
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
    applied: Annotated[
        bool,
        typer.Option("--applied", help="Which broker has applied which version of all settings."),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show settings with value, source and whether they can be changed at run time.

    Examples:
      kafkawire configs describe --topic orders
      kafkawire configs describe --broker 1 --all
      kafkawire configs describe --applied
    """
    if applied:
        if every or (topic, broker, brokers_default, group) != (None, None, False, None):
            fail("--applied is about all brokers: give no other option with it", 2)
        with connect_cluster(server) as cluster:
            print_results(list_applied(cluster), APPLIED, "applied versions", as_json, wide)
        return
    resource = resource_of(topic, broker, brokers_default, group)
    with connect_cluster(server) as cluster:
        rows = [row for row in settings(cluster, resource) if every or row["source"] != "default"]
        columns = ("name", TableColumn("value", keep=True), "source", "change")
        print_results(rows, columns, f"settings of {resource_name(resource)}", as_json, wide)


def change(
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...")],
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    group: Group = None,
    later: Annotated[
        bool, typer.Option("--later", help="Only store them, until `kafkawire configs apply`.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Change settings: all of them, or none if one is rejected.

    Examples:
      kafkawire configs set retention.ms=1h --topic orders
      kafkawire configs set log.retention.ms=1d --brokers-default
      kafkawire configs set consumer.session.timeout.ms=50s --group billing
      kafkawire configs set log.retention.ms=1d --brokers-default --later
    """
    resource = resource_of(topic, broker, brokers_default, group)
    if later and resource[0] != BROKER:
        fail("--later is for settings of brokers: --broker N or --brokers-default", 2)
    try:
        named = [split_setting("NAME=VALUE", pair) for pair in pairs]
    except OptionError as error:
        fail(error, 2)
    prefix = PENDING if later else ""
    _change(server, resource, [(prefix + name, value, SET) for name, value in named], as_json)


def apply(
    broker: Broker = None,
    brokers_default: Brokers = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Let the settings take effect that were stored with --later: all at once, or none.

    Examples:
      kafkawire configs apply --brokers-default
    """
    if (broker is not None) + brokers_default != 1:
        fail("give exactly one of --broker N and --brokers-default", 2)
    resource = resource_of(None, broker, brokers_default)
    level = SOURCES[3] if brokers_default else SOURCES[2]
    with connect_cluster(server) as cluster:
        stored = [row for row in settings(cluster, resource) if row["source"] == level]
        pending = {
            row["name"].removeprefix(PENDING): row["value"]
            for row in stored
            if row["name"].startswith(PENDING)
        }
        hidden = [name for name, value in pending.items() if value is None]
        if hidden:
            fail(f"the broker does not know the settings: {', '.join(hidden)}")
        changes: list[Change] = [(name, value, SET) for name, value in pending.items()]
        if changes:
            alter(cluster, resource, [*changes, *((PENDING + n, None, DELETE) for n in pending)])
    _print_changes(resource, changes, as_json)
    if not changes and not as_json:
        print(f"{resource_name(resource)}: no setting waits")


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
    _change(server, resource, [(name, None, DELETE) for name in names], as_json)


def _change(server: str, resource: Resource, changes: Sequence[Change], as_json: bool) -> None:
    """Make all the changes, or none with exit code 1."""
    with connect_cluster(server) as cluster:
        alter(cluster, resource, changes)
    _print_changes(resource, changes, as_json)


def _print_changes(resource: Resource, changes: Sequence[Change], as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "value": value} for name, value, _ in changes])
        return
    for name, value, _ in changes:
        what = f"{name} removed" if value is None else f"{name}={value}"
        print(f"{resource_name(resource)}: {what}")


APPLIED = ("broker", "version", "state", TableColumn("own", "own settings"))


def list_applied(cluster: Cluster) -> list[dict[str, Any]]:
    """Return for each broker the version of the metadata that it has applied, and the settings of
    its own, which take precedence over those of all brokers. ClientError."""
    rows: list[dict[str, Any]] = []
    for node, alive in sorted(find_registered_brokers(cluster.first).items()):
        row: dict[str, Any] = {"broker": node, "version": None, "own": []}
        row["state"] = NOT_REACHED if alive else NOT_ALIVE
        if alive:
            with contextlib.suppress(ClientError):
                row["version"] = _applied_version(cluster, node)
                known = settings(cluster, (BROKER, str(node)))
                row["own"] = [each["name"] for each in known if each["source"] == SOURCES[2]]
        rows.append(row)
    newest = max((row["version"] for row in rows if row["version"] is not None), default=0)
    for row in rows:
        if row["version"] is not None:
            late = newest - row["version"]
            row["state"] = f"{count(late, 'change')} behind" if late else "applied"
    return rows


def _applied_version(cluster: Cluster, node: int) -> int:
    """Return the version of the metadata that a broker has applied, as it says itself."""
    from kafkawire.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData

    asked = DescribeQuorumRequest([TopicData("__cluster_metadata", [PartitionData(0)])])
    answer = cluster.node(node).request(DESCRIBE_QUORUM, asked)
    check("DescribeQuorum", answer.error_code, answer.error_message)
    partition = answer.topics[0].partitions[0]
    check("DescribeQuorum", partition.error_code, partition.error_message)
    states = (*partition.current_voters, *partition.observers)
    return int(next(each.log_end_offset for each in states if each.replica_id == node))
