"""Options of the commands about the remote tier: `kafkawire tier ...`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import INT32, LOCAL, Json, Server

tier_app = typer.Typer(
    no_args_is_help=True,
    help="Show, control, check, move and restore the remote tier.",
)

Topic = Annotated[str | None, typer.Option("--topic", metavar="T", help="Show only this topic.")]


@tier_app.command("status")
def tier_status(
    topic: Topic = None,
    every: Annotated[
        bool, typer.Option("--all", help="Include partitions that never had a record.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show upload progress of each partition and the state of the remote tier."""
    from kafkawire.cli.tier.commands import status

    status(server, topic, every, as_json)


@tier_app.command("why")
def tier_why(
    topic: Topic = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Include completely uploaded partitions; empty partitions of internal topics "
            "only with --topic.",
        ),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show records that are not in the remote tier yet, with the reason.

    Exit code 0: no partition exceeds the tiering.max.lag.ms of its topic; 1: at least one does."""
    from kafkawire.cli.tier.commands import why

    why(server, topic, every, as_json)


@tier_app.command("cost")
def tier_cost(server: Server = LOCAL, as_json: Json = False) -> None:
    """Show requests, bytes and cost by topic, for this month and since the start."""
    from kafkawire.cli.tier.commands import cost

    cost(server, as_json)


@tier_app.command("estimate")
def tier_estimate(
    topic: Topic = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="NAME=VALUE", help="Setting to try; may be repeated."),
    ] = [],  # noqa: B006
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES/s",
            help="Assumed write rate of all topics, such as 5MB/s; needs no broker.",
        ),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=INT32, help="With --rate: number of partitions.")
    ] = 1,
    reads: Annotated[
        str | None,
        typer.Option(metavar="BYTES/s", help="Assumed read rate from the tier, such as 1MB/s."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Estimate PUT requests a day and monthly cost of settings before they are applied."""
    from kafkawire.cli.tier.estimate import estimate

    estimate(server, topic, settings, rate, partitions, reads, as_json)


@tier_app.command("pause")
def tier_pause(server: Server = LOCAL, as_json: Json = False) -> None:
    """Pause uploads and deletions until `resume`. Reads continue. Survives a restart."""
    from kafkawire.cli.tier.commands import pause

    pause(server, True, as_json)


@tier_app.command("resume")
def tier_resume(server: Server = LOCAL, as_json: Json = False) -> None:
    """Resume uploads and deletions after `pause`."""
    from kafkawire.cli.tier.commands import pause

    pause(server, False, as_json)


@tier_app.command("scrub")
def tier_scrub(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Delete orphaned objects and repair damage where possible."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every object and verify its checksums.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="With --repair: skip batches of which no copy is left."),
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Compare the bucket with the broker's metadata. Exit code 0: they agree, 1: they do not.

    With --skip-lost consumers skip lost batches, and `pipeline audit` explains the gaps."""
    from kafkawire.cli.output import fail
    from kafkawire.cli.tier.jobs import scrub

    if skip_lost and not repair:
        fail("--skip-lost changes data: use it together with --repair", 2)
    scrub(server, repair, deep, skip_lost, as_json)


@tier_app.command("move")
def tier_move(
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="New tier: s3://BUCKET/PREFIX or a folder.")
    ] = "",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Skip batches of which no copy is left.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Move the remote tier to another bucket or provider while the broker runs.

    Objects are copied, verified byte by byte and switched one by one; new uploads go to the new
    tier at once. The move continues after a restart of the broker: run this again to watch it."""
    from kafkawire.cli.tier.jobs import move

    move(server, to, skip_lost, as_json)


@tier_app.command("restore")
def tier_restore(
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            envvar="KAFKAWIRE_TIER",
            metavar="URL",
            help="Tier to restore: s3://BUCKET/PREFIX or a folder.",
        ),
    ],
    data: Annotated[str, typer.Option("--data", metavar="DIR", help="New or empty data folder.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be restored.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="First read every object and verify its checksums.")
    ] = False,
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="Metadata database. [default: SQLite in the folder]")
    ] = "",
    as_json: Json = False,
) -> None:
    """Restore a data folder from a bucket: topics, settings, groups, offsets and data.

    The broker that wrote to the bucket must never run again. Records stay in the bucket and are
    read from there. Doubtful and lost data is listed before anything is written."""
    from kafkawire.cli.tier.restore import restore

    restore(tier, data, metadata, dry_run, yes, deep, as_json)
