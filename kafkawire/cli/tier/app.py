"""What can be typed about the remote tier: `kafkawire tier ...`. Part of kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import INT32, LOCAL, Json, Server

tier_app = typer.Typer(
    no_args_is_help=True,
    help="The remote tier: status, why, cost, estimate, pause, resume, scrub, move, restore.",
)

Topic = Annotated[str | None, typer.Option("--topic", metavar="T", help="Only this topic.")]


@tier_app.command("status")
def tier_status(
    topic: Topic = None,
    every: Annotated[
        bool, typer.Option("--all", help="Partitions that never had a record, too.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show how far each partition is in the remote tier, and how the tier itself is."""
    from kafkawire.cli.tier.commands import status

    status(server, topic, every, as_json)


@tier_app.command("why")
def tier_why(
    topic: Topic = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Partitions that are uploaded whole, too; empty ones of an internal topic only "
            "with --topic.",
        ),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show what is not in the remote tier yet, and the reason of each.

    Exit code 0: nothing waits longer than tiering.max.lag.ms of its topic; 1: something does."""
    from kafkawire.cli.tier.commands import why

    why(server, topic, every, as_json)


@tier_app.command("cost")
def tier_cost(server: Server = LOCAL, as_json: Json = False) -> None:
    """Show requests, bytes and money by topic, of this month and since the start."""
    from kafkawire.cli.tier.commands import cost

    cost(server, as_json)


@tier_app.command("estimate")
def tier_estimate(
    topic: Topic = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting as it would be; several times."
        ),
    ] = [],  # noqa: B006
    rate: Annotated[
        str | None,
        typer.Option(metavar="BYTES/s", help="Of all topics, like 5MB/s; then no broker is asked."),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=INT32, help="With --rate: how many partitions.")
    ] = 1,
    reads: Annotated[
        str | None, typer.Option(metavar="BYTES/s", help="Read from the tier, like 1MB/s.")
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the PUTs a day and the cost that settings will cause, before they are applied."""
    from kafkawire.cli.tier.estimate import estimate

    estimate(server, topic, settings, rate, partitions, reads, as_json)


@tier_app.command("pause")
def tier_pause(server: Server = LOCAL, as_json: Json = False) -> None:
    """Upload and delete nothing until `resume`; reads go on. Survives a restart."""
    from kafkawire.cli.tier.commands import pause

    pause(server, True, as_json)


@tier_app.command("resume")
def tier_resume(server: Server = LOCAL, as_json: Json = False) -> None:
    """Go on after `pause`."""
    from kafkawire.cli.tier.commands import pause

    pause(server, False, as_json)


@tier_app.command("scrub")
def tier_scrub(
    repair: Annotated[
        bool, typer.Option("--repair", help="Delete orphans and heal what can be healed.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every object and check its checksums.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option(
            "--skip-lost", help="With --repair: leave out batches that no copy has any more."
        ),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Compare the bucket with what the broker knows. Exit code 0: they agree, 1: they do not.

    With --skip-lost consumers go over what is lost, and pipeline audit explains it."""
    from kafkawire.cli.output import fail
    from kafkawire.cli.tier.jobs import scrub

    if skip_lost and not repair:
        fail("--skip-lost changes data, so it needs --repair too", 2)
    scrub(server, repair, deep, skip_lost, as_json)


@tier_app.command("move")
def tier_move(
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="s3://BUCKET/PREFIX or a folder.")
    ] = "",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Leave out batches that no copy has any more.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Move everything to another bucket or provider, while the broker runs.

    Copied, checked in every byte and switched object by object; new uploads go to the new tier at
    once. The move goes on by itself when the broker was restarted: run this again to watch it."""
    from kafkawire.cli.tier.jobs import move

    move(server, to, skip_lost, as_json)


@tier_app.command("restore")
def tier_restore(
    tier: Annotated[
        str,
        typer.Option(
            "--tier", envvar="KAFKAWIRE_TIER", metavar="URL", help="s3://BUCKET/PREFIX or a folder."
        ),
    ],
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="An empty or new folder.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be restored.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every object and check its checksums first.")
    ] = False,
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="SQL database for metadata. [SQLite in the folder]")
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a data folder from a bucket: topics, settings, groups, offsets and data.

    The broker that wrote there must be gone for good. Records stay in the bucket and are read from
    there. What is doubtful or lost is shown before anything is written."""
    from kafkawire.cli.tier.restore import restore

    restore(tier, data, metadata, dry_run, yes, deep, as_json)
