"""The `kafkawire` command line: commands and options with their help; other modules do the work.

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
    """Command group in which Ctrl-C ends any command without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


app = typer.Typer(
    name="kafkawire",
    cls=CommandGroup,
    help="A message broker that works with unchanged Kafka clients.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
topics_app = typer.Typer(no_args_is_help=True, help="List, describe, create and delete topics.")
groups_app = typer.Typer(
    no_args_is_help=True, help="List, describe and delete groups, reset their offsets."
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
        typer.Option(metavar="[NAME://]HOST:PORT", help="Address to listen on; may be repeated."),
    ] = [],  # noqa: B006  (typer copies it)
    advertise: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME://]HOST:PORT", help="Address returned to clients of listener NAME."
        ),
    ] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data folder. [default: kafkawire-data]")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Metadata database. [default: SQLite in the data folder]"),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Remote tier: s3://BUCKET/PREFIX or a folder. [default: none]"
        ),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Broker setting (see docs/configs.md); may be repeated.",
        ),
    ] = [],  # noqa: B006
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration file in TOML.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text or json. [default: text]")
    ] = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print each setting, its value and its source, then exit."
        ),
    ] = False,
) -> None:
    """Start a broker.

    Values come from the command line, the environment (KAFKAWIRE_LISTEN, KAFKAWIRE_DATA, ...,
    KAFKAWIRE_SET_NUM_PARTITIONS), the TOML file or the default, in this order of precedence.
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
    file: Annotated[str, typer.Argument(metavar="FILE", help="Journal, segment or manifest file.")],
    records: Annotated[bool, typer.Option("--records", help="Show each record or entry.")] = False,
    as_json: Json = False,
) -> None:
    """Show the contents of a journal (frame by frame), a segment or a manifest file."""
    from kafkawire.cli.dump.journal import run

    run(file, records, as_json)


@app.command()
def fsck(
    data: Annotated[str, typer.Option(metavar="DIR", help="Data folder of a stopped broker.")],
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="Metadata database, if outside the data folder.")
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair damage without losing acknowledged records.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="With --repair: skip records of which no copy is left."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that journals, segments, metadata and offsets agree. Exit code 0: clean, 1: not."""
    from kafkawire.cli.fsck import run
    from kafkawire.cli.output import fail

    if skip_lost and not repair:
        fail("--skip-lost changes data: use it together with --repair", 2)
    run(data, metadata, repair, skip_lost, as_json)


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    from kafkawire.cli.version import run

    run(as_json)


@topics_app.command("list")
def topics_list(
    server: Server = LOCAL,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
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
    """Show partitions, leaders, offsets and topic-level settings."""
    from kafkawire.cli.topics import describe_topics

    describe_topics(server, names, as_json)


@topics_app.command("create")
def topics_create(
    names: Topics,
    partitions: Annotated[
        int,
        typer.Option(
            min=-1, max=INT32, help="Number of partitions; -1: the broker's num.partitions."
        ),
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(min=-1, max=INT16, help="Number of replicas; -1: the broker's default.")
    ] = -1,
    settings: Annotated[
        list[str],
        typer.Option("--config", metavar="NAME=VALUE", help="Topic setting; may be repeated."),
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
    state: Annotated[list[str], typer.Option(help="List only groups in this state.")] = [],  # noqa: B006
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
    """Show members, committed offsets and lag of groups."""
    from kafkawire.cli.groups.commands import describe_groups

    describe_groups(server, names, as_json)


@groups_app.command("delete")
def groups_delete(
    names: Groups,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Delete empty groups and their committed offsets."""
    from kafkawire.cli.groups.commands import delete_groups

    delete_groups(server, names, as_json)


@groups_app.command("reset-offsets")
def groups_reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str],
        typer.Option(metavar="TOPIC[:0,1,...]", help="Partitions to reset; may be repeated."),
    ] = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics with committed offsets.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Reset to the log start offset.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Reset to the log end offset.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option(min=0, max=INT64, help="Reset to this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(help="Reset to the first record at this time or later (ISO 8601)."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(min=-INT64, max=INT64, help="Shift by this many offsets; may be negative."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Commit the new offsets, or only show them.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Reset the committed offsets of a group without active members.

    Without --execute the new offsets are only shown, as in Kafka's own tool."""
    from kafkawire.cli.groups.reset_offsets import ResetTarget, reset_offsets

    target = ResetTarget(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    reset_offsets(server, group, topic, all_topics, target, execute, as_json)
