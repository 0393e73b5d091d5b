"""What can be typed about offsets: `offsets`, `consume`, `backup`, `restore`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import INT32, LOCAL, Data, Json, Server

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Partitions = Annotated[str, typer.Argument(metavar="TOPIC[:0,1,...]")]

offsets_app = typer.Typer(
    no_args_is_help=True, help="Offsets: describe, validate, stats, metrics, convert."
)


@offsets_app.command("describe")
def offsets_describe(
    topic: Partitions,
    group: Annotated[
        str | None, typer.Option(help="Also where this group is, and its lag.")
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the log start and the end of each partition."""
    from kafkawire.cli.offsets.report import describe

    describe(server, topic, group, as_json)


@offsets_app.command("validate")
def offsets_validate(
    topic: Partitions,
    offsets: Annotated[
        str | None,
        typer.Option("--range", metavar="START..END", help="Only these, which must all be there."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Read every batch: are offsets contiguous, checksums right, epochs rising? Exit code 1 if
    not. Gaps are right where the topic is compacted."""
    from kafkawire.cli.offsets.report import validate

    validate(server, topic, offsets, as_json)


@offsets_app.command("stats")
def offsets_stats(
    topic: Partitions,
    data: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Read this data folder's metadata, not a broker."),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show offsets and bytes of each partition; with --data what is stored of it."""
    from kafkawire.cli.offsets.report import stats

    stats(server, topic, data, as_json)


@offsets_app.command("metrics")
def offsets_metrics(
    data: Data,
    as_json: Json = False,
) -> None:
    """Show how many checkpoints, mappings and segments are stored, and their bytes."""
    from kafkawire.cli.offsets.stored import show_metrics

    show_metrics(data, as_json)


@offsets_app.command("convert")
def offsets_convert(
    to: Annotated[str, typer.Option("--to", metavar="STORAGE", help="sql or rocksdb.")],
    data: Annotated[str, typer.Option(metavar="DIR", help="Data folder of a stopped broker.")],
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="SQL database, if it is not in the data folder.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Move the stored offsets of a stopped broker to another offset.storage.

    Run it again when it was interrupted."""
    from kafkawire.cli.offsets.convert import run

    run(data, metadata, to, as_json)


def consume(
    topic: Topic,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, resume, resume-or-latest, offset:N, nearest:N or time:T.",
        ),
    ] = "earliest",
    group: Annotated[
        str, typer.Option(help="Commit where it got to; --from resume begins there.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, max=INT32, help="Only this partition.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option("--max", help="Stop after so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on when the end is reached.")
    ] = False,
    server: Server = LOCAL,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a line, with offset, key and headers.")
    ] = False,
) -> None:
    """Print the values of a topic's records."""
    from kafkawire.cli.consume import ConsumeOptions
    from kafkawire.cli.consume import consume as run

    run(server, ConsumeOptions(topic, start, group, partition, at_most, follow, as_json))


Metadata = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="KAFKAWIRE_METADATA",
        metavar="URL",
        help="Its metadata, if that is not SQLite there.",
    ),
]


def backup(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A new folder.")],
    data: Data = "kafkawire-data",
    metadata: Metadata = "",
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Copy metadata and offsets of a running broker.

    Committed offsets of groups too; the copy is verified. Records are not copied; the folder of a
    stopped broker can be copied as it is."""
    from kafkawire.cli.backup.backup import backup as run

    run(server, dest, data, metadata, as_json)


def restore(
    data: Data,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SRC]",
            help="The folder of a backup, or the backup.url of a broker (its newest one).",
            show_default=False,
        ),
    ] = "",
    from_log: Annotated[
        bool,
        typer.Option(
            "--from-log",
            help="Make lost or damaged metadata of a stopped broker again, from its records.",
        ),
    ] = False,
    metadata: Metadata = "",
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            metavar="URL",
            help="With --from-log: the remote tier, if it is not the one last used.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Make a data folder of a backup, or metadata of the log.

    From a backup come topics, settings, groups and offsets, no records. With --from-log the
    metadata is made again from journals, segments and the remote tier, and what is lost is said."""
    if from_log == bool(source):
        raise typer.BadParameter("name the folder of a backup, or say --from-log: one of both")
    if from_log:
        from kafkawire.cli.backup.restore_from_log import run as rebuild

        rebuild(data, metadata, tier, as_json)
    else:
        from kafkawire.cli.backup.restore import restore as run

        run(source, data, metadata, as_json)
