"""The `kafkawire` command: what can be typed, with its help; the work is in the other modules.

Each command imports its module when it runs. Plain help without rich markup: it loads faster and
can be piped. Called by kafkawire.cli.main, which reads the plain form of `serve` itself.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kafkawire.cli import INTERRUPTED
from kafkawire.cli.cluster.app import cluster_app, configs_app
from kafkawire.cli.cluster.metadata_app import metadata_app
from kafkawire.cli.offsets.app import backup, consume, offsets_app, restore
from kafkawire.cli.parameters import INT16, INT32, INT64, LOCAL, Groups, Json, Server, Topics
from kafkawire.cli.pipeline.app import pipeline_app
from kafkawire.cli.tier.app import tier_app


class CommandGroup(TyperGroup):
    """The commands; Ctrl-C ends any of them without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


app = typer.Typer(
    name="kafkawire",
    cls=CommandGroup,
    help="A broker that Kafka's clients use unchanged.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
topics_app = typer.Typer(no_args_is_help=True, help="Topics: list, describe, create, delete.")
groups_app = typer.Typer(
    no_args_is_help=True, help="Groups: list, describe, delete, reset-offsets."
)
app.add_typer(topics_app, name="topics")
app.add_typer(groups_app, name="groups")
app.add_typer(offsets_app, name="offsets")
app.add_typer(cluster_app, name="cluster")
app.add_typer(configs_app, name="configs")
app.add_typer(metadata_app, name="metadata")
app.add_typer(tier_app, name="tier")
app.add_typer(pipeline_app, name="pipeline")
app.command()(consume)
app.command()(backup)
app.command()(restore)


@app.command()
def serve(
    listen: Annotated[
        list[str],
        typer.Option(metavar="[NAME://]HOST:PORT", help="Listen here; several times for several."),
    ] = [],  # noqa: B006  (typer copies it)
    advertise: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME://]HOST:PORT", help="What clients of the listener NAME are told."
        ),
    ] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data folder. [kafkawire-data]")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="URL", help="SQL database for metadata. [SQLite in the data folder]"),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The remote tier: s3://BUCKET/PREFIX or a folder. [none]"),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="A broker setting (docs/configs.md)."),
    ] = [],  # noqa: B006
    config: Annotated[str | None, typer.Option(metavar="FILE", help="A TOML file.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning, error. [info]")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text or json. [text]")
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print each setting, its value and where it comes from."
        ),
    ] = False,
) -> None:
    """Start a broker.

    A value is taken from the command line, else from the environment (KAFKAWIRE_LISTEN,
    KAFKAWIRE_DATA, ..., KAFKAWIRE_SET_NUM_PARTITIONS), else from the TOML file, else the default.
    """
    from kafkawire.cli.serve import Given, run

    options: dict[str, list[str]] = {"listen": listen, "advertise": advertise}
    once = {"data": data, "metadata": metadata, "tier": tier}
    once |= {"log-level": log_level, "log-format": log_format}
    options |= {name: [value] for name, value in once.items() if value is not None}
    options = {name: values for name, values in options.items() if values}
    raise SystemExit(run(Given(options, settings, config, show_config), os.environ))


@app.command()
def dump(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A journal, a segment or a manifest.")
    ],
    records: Annotated[bool, typer.Option("--records", help="Each record or entry, too.")] = False,
    as_json: Json = False,
) -> None:
    """Show what is in a journal, frame by frame, in a segment, or in a file of a manifest."""
    from kafkawire.cli.dump.journal import run

    run(file, records, as_json)


@app.command()
def fsck(
    data: Annotated[str, typer.Option(metavar="DIR", help="Data folder of a stopped broker.")],
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="SQL database, if it is not in the data folder.")
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be without losing acked records.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="With --repair: give up what no copy has any more."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check journals, segments, rows and offsets against each other. Exit code 0: clean, 1: not."""
    from kafkawire.cli.fsck import run
    from kafkawire.cli.output import fail

    if skip_lost and not repair:
        fail("--skip-lost changes data, so it needs --repair too", 2)
    run(data, metadata, repair, skip_lost, as_json)


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    from kafkawire.cli.version import run

    run(as_json)


@topics_app.command("list")
def topics_list(
    server: Server = LOCAL,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    as_json: Json = False,
) -> None:
    """List topics with their number of partitions."""
    from kafkawire.cli.topics import list_topics

    list_topics(server, internal, as_json)


@topics_app.command("describe")
def topics_describe(
    names: Topics,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show partitions, leaders, offsets and the settings a topic has of its own."""
    from kafkawire.cli.topics import describe_topics

    describe_topics(server, names, as_json)


@topics_app.command("create")
def topics_create(
    names: Topics,
    partitions: Annotated[
        int, typer.Option(min=-1, max=INT32, help="-1: as the broker's num.partitions.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(min=-1, max=INT16, help="-1: as the broker has it.")
    ] = -1,
    settings: Annotated[
        list[str], typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic.")
    ] = [],  # noqa: B006
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Create topics."""
    from kafkawire.cli.topics import create_topics

    create_topics(server, names, partitions, replication_factor, settings, as_json)


@topics_app.command("delete")
def topics_delete(
    names: Topics,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Delete topics and all their records."""
    from kafkawire.cli.topics import delete_topics

    delete_topics(server, names, as_json)


@groups_app.command("list")
def groups_list(
    server: Server = LOCAL,
    state: Annotated[list[str], typer.Option(help="Only groups in this state.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """List groups with state and type."""
    from kafkawire.cli.groups.commands import list_groups

    list_groups(server, state, as_json)


@groups_app.command("describe")
def groups_describe(
    names: Groups,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the members of groups, their committed offsets and how far behind they are."""
    from kafkawire.cli.groups.commands import describe_groups

    describe_groups(server, names, as_json)


@groups_app.command("delete")
def groups_delete(
    names: Groups,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Delete empty groups with their committed offsets."""
    from kafkawire.cli.groups.commands import delete_groups

    delete_groups(server, names, as_json)


@groups_app.command("reset-offsets")
def groups_reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str],
        typer.Option(metavar="TOPIC[:0,1,...]", help="Which partitions; several times."),
    ] = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All the group has offsets of.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log end.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, max=INT64, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="To the first record from then on (ISO 8601; UTC if bare).")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(min=-INT64, max=INT64, help="By so many records; may be < 0.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Commit the offsets, or only show them.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Move the committed offsets of a group without members. Only shows them unless --execute is
    given, as Kafka's own tool does."""
    from kafkawire.cli.groups.reset_offsets import ResetTarget, reset_offsets

    target = ResetTarget(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    reset_offsets(server, group, topic, all_topics, target, execute, as_json)
