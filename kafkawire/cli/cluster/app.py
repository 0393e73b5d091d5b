"""What can be typed about the cluster and settings: `cluster`, `configs`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import LOCAL, Json, Server

cluster_app = typer.Typer(no_args_is_help=True, help="The cluster: describe.")
configs_app = typer.Typer(no_args_is_help=True, help="Settings: describe, set, unset.")

Topic = Annotated[str | None, typer.Option("--topic", metavar="T", help="Of this topic.")]
Broker = Annotated[int | None, typer.Option("--broker", metavar="N", help="Of this broker.")]
Brokers = Annotated[bool, typer.Option("--brokers-default", help="Of all brokers.")]


@cluster_app.command("describe")
def cluster_describe(
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Read this data folder, do not ask a broker."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the cluster's id and its brokers; with --data also what is stored of each."""
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
    every: Annotated[bool, typer.Option("--all", help="Those at their default, too.")] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show settings: value, where it comes from, whether it can be changed while running."""
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
    """Change settings: all of them, or none if one is refused."""
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
    """Take settings away, so that what stands behind them holds again."""
    from kafkawire.cli.cluster.configs import change, resource_of

    change(server, resource_of(topic, broker, brokers_default), [], names, as_json)
