"""Options of the commands about the cluster and its settings: `cluster`, `configs`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import LOCAL, Json, Server

cluster_app = typer.Typer(no_args_is_help=True, help="Describe the cluster.")
configs_app = typer.Typer(
    no_args_is_help=True, help="Describe, set and unset configuration settings."
)

Topic = Annotated[str | None, typer.Option("--topic", metavar="T", help="Settings of this topic.")]
Broker = Annotated[
    int | None, typer.Option("--broker", metavar="N", help="Settings of this broker.")
]
Brokers = Annotated[
    bool, typer.Option("--brokers-default", help="Cluster-wide default of all brokers.")
]


@cluster_app.command("describe")
def cluster_describe(
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Read this data folder instead of asking a broker."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the cluster ID and the brokers; with --data also their stored metadata."""
    from kafkawire.cli.cluster.describe import describe, describe_stored

    if data is None:
        describe(server, as_json)
    else:
        describe_stored(data, as_json)


@configs_app.command("describe")
def configs_describe(
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    every: Annotated[
        bool, typer.Option("--all", help="Include settings with their default value.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show settings with value, source and whether they can be changed at run time."""
    from kafkawire.cli.cluster.configs import describe, resource_of

    describe(server, resource_of(topic, broker, brokers_default), every, as_json)


@configs_app.command("set")
def configs_set(
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...")],
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Change settings: all of them, or none if one is rejected."""
    from kafkawire.cli.cluster.configs import change, resource_of

    change(server, resource_of(topic, broker, brokers_default), pairs, [], as_json)


@configs_app.command("unset")
def configs_unset(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    topic: Topic = None,
    broker: Broker = None,
    brokers_default: Brokers = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Remove settings, so that the next value in the order of precedence applies."""
    from kafkawire.cli.cluster.configs import change, resource_of

    change(server, resource_of(topic, broker, brokers_default), [], names, as_json)
