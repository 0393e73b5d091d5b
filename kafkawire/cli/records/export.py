"""`kafkawire export TOPIC FILE`: write the records of a topic to a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Annotated

import typer

from kafkawire.cli.records.consume import (
    RESUMING,
    ConsumeOptions,
    parse_start,
    parse_until,
    spans_of,
)
from kafkawire.cli.records.files import FORMATS, STANDARD, format_of_file, writer_of
from kafkawire.cli.shared.options import parse_choice
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import COMMITTED, LOCAL, Isolation, Server
from kafkawire.cli.shared.partitions import parse_partitions
from kafkawire.cli.shared.progress import bars
from kafkawire.client.errors import ClientError
from kafkawire.client.merging import MergedReader
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import READ_COMMITTED, READ_UNCOMMITTED
from kafkawire.plural import count
from kafkawire.progress import Progress

ISOLATION_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
REPORTED_EVERY = 1000
"""Records between two reports of progress."""
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"{', '.join(FORMATS)}. [default: by the file's suffix; jsonl for -]",
    ),
]
From = Annotated[
    str,
    typer.Option("--from", metavar="PLACE", help="earliest, offset:N, nearest:N or a time."),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop before the first record from this time on; +5m: so long after --from.",
    ),
]


def export(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[:0,1,4-6]")],
    path: Annotated[str, typer.Argument(metavar="FILE", help="A new file; -: standard output.")],
    kind: Format = None,
    start: From = "earliest",
    until: Until = None,
    isolation: Isolation = COMMITTED,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    server: Server = LOCAL,
) -> None:
    """Write the records of a topic to a file: JSON lines, CSV or Parquet.

    Everything but offsets can be restored by import, byte for byte. Records are merged by timestamp
    over partitions, up to the log end offsets of the start.

    Examples:

      kafkawire export orders orders.parquet

      kafkawire export orders:0 - --from -1d --format csv | gzip > orders.csv.gz
    """
    try:
        name, indexes = parse_partitions("TOPIC", topic)
        level = ISOLATION_LEVELS[parse_choice("--isolation-level", isolation, [*ISOLATION_LEVELS])]
        begin = parse_start(start)
        if begin[0] in RESUMING:
            raise OptionError("--from", start, "earliest, offset:N, nearest:N or a time")
        options = ConsumeOptions(
            name,
            indexes,
            begin,
            "",
            level,
            follow=False,
            until_ms=parse_until(until, *begin),
        )
        chosen = format_of_file("--format", kind, path)
        if not force and path != STANDARD and os.path.lexists(path):
            raise OptionError("FILE", path, "a new file, unless --force is given")
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster:
        reader = MergedReader(cluster, spans_of(cluster, options), isolation=level)
        with bars() as progress, _write_atomically(path) as stream:
            records = _write(reader, chosen, stream, progress)
        where = "standard output" if path == STANDARD else path
        print(f"{count(records, 'record')} of {topic} written to {where}", file=sys.stderr)


def _write(reader: MergedReader, kind: str, stream: IO[bytes], progress: Progress) -> int:
    spans = reader.spans.values()
    begun = sum(span.position for span in spans)
    whole = sum(span.end or 0 for span in spans) - begun
    writer = writer_of(kind, stream)
    records = 0
    for partition, record in reader.read():
        writer.write(partition, record)
        records += 1
        if records % REPORTED_EVERY == 0:
            progress("offsets exported", sum(span.position for span in spans) - begun, whole)
    writer.close()
    return records


@contextmanager
def _write_atomically(path: str) -> Iterator[IO[bytes]]:
    """Yield a stream whose content is at `path` only after everything was written. ClientError."""
    if path == STANDARD:
        sys.stdout.flush()
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:  # `| head` has closed the pipe
            sys.stderr.close()
        return
    partial = f"{path}.part"
    try:
        with open(partial, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClientError(f"{path} cannot be written: {reason}") from None
    finally:
        with suppress(OSError, ValueError):
            os.unlink(partial)
