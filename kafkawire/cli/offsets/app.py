"""Options of the commands about offsets: `offsets`, `consume`, `backup`, `restore`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import INT32, LOCAL, Data, Json, Server

Topic = Annotated[str, typer.Argument(metavar="TOPIC")]
Partitions = Annotated[str, typer.Argument(metavar="TOPIC[:0,1,...]")]

offsets_app = typer.Typer(
    no_args_is_help=True, help="Describe, validate and convert offsets, show statistics."
)


@offsets_app.command("describe")
def offsets_describe(
    topic: Partitions,
    group: Annotated[
        str | None, typer.Option(help="Also show committed offsets and lag of this group.")
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show the log start offset and the log end offset of each partition."""
    from kafkawire.cli.offsets.report import describe

    describe(server, topic, group, as_json)


@offsets_app.command("validate")
def offsets_validate(
    topic: Partitions,
    offsets: Annotated[
        str | None,
        typer.Option(
            "--range", metavar="START..END", help="Offset range to read; all of it must exist."
        ),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Read every batch and check offsets, checksums and leader epochs.

    Offsets must be contiguous (except in compacted topics) and leader epochs must not fall. Exit
    code 0: valid, 1: not."""
    from kafkawire.cli.offsets.report import validate

    validate(server, topic, offsets, as_json)


@offsets_app.command("stats")
def offsets_stats(
    topic: Partitions,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Read the metadata of this data folder instead of asking a broker."
        ),
    ] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show offsets and size of each partition; with --data its stored offset metadata."""
    from kafkawire.cli.offsets.report import stats

    stats(server, topic, data, as_json)


@offsets_app.command("metrics")
def offsets_metrics(
    data: Data,
    as_json: Json = False,
) -> None:
    """Show number and size of the stored checkpoints, mappings and segments."""
    from kafkawire.cli.offsets.stored import show_metrics

    show_metrics(data, as_json)


@offsets_app.command("convert")
def offsets_convert(
    to: Annotated[
        str, typer.Option("--to", metavar="STORAGE", help="New offset storage: sql or rocksdb.")
    ],
    data: Annotated[str, typer.Option(metavar="DIR", help="Data folder of a stopped broker.")],
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="SQL database, if it is not in the data folder.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Move the stored offsets of a stopped broker to another offset.storage.

    An interrupted conversion is continued by running the command again."""
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
        str, typer.Option(help="Commit offsets for this group; --from resume starts there.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, max=INT32, help="Read only this partition.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option("--max", help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records at the log end.")
    ] = False,
    server: Server = LOCAL,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per record, with offset, key and headers."
        ),
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
        help="Metadata database, if outside the data folder.",
    ),
]


def backup(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="New folder for the backup.")],
    data: Data = "kafkawire-data",
    metadata: Metadata = "",
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Back up metadata and offsets of a running broker.

    The backup has topics, settings, offsets and committed offsets of groups, but no records, and
    is verified. To back up a stopped broker, copy its data folder."""
    from kafkawire.cli.backup.backup import backup as run

    run(server, dest, data, metadata, as_json)


def restore(
    data: Data,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SRC]",
            help="Backup folder, or the backup.url of a broker (newest backup).",
            show_default=False,
        ),
    ] = "",
    from_log: Annotated[
        bool,
        typer.Option(
            "--from-log",
            help="Rebuild lost or damaged metadata of a stopped broker from its log.",
        ),
    ] = False,
    metadata: Metadata = "",
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            metavar="URL",
            help="With --from-log: the remote tier, if not the one last used.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Restore a data folder from a backup, or metadata from the log.

    A backup restores topics, settings, groups and offsets, but no records. With --from-log the
    metadata is rebuilt from journals, segments and the remote tier, and losses are listed."""
    if from_log == bool(source):
        raise typer.BadParameter("give either the folder of a backup or --from-log")
    if from_log:
        from kafkawire.cli.backup.restore_from_log import run as rebuild

        rebuild(data, metadata, tier, as_json)
    else:
        from kafkawire.cli.backup.restore import restore as run

        run(source, data, metadata, as_json)
