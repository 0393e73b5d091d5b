"""`kafkawire import TOPIC FILE`: append the records of a file to a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated

import typer

from kafkawire.cli.records.export import Format
from kafkawire.cli.records.files import STANDARD, format_of_file, rows_of
from kafkawire.cli.records.produce import (
    Acks,
    Chooser,
    Compression,
    Failures,
    append_parsed,
    parse_acks,
    parse_codec,
    print_summary,
)
from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL, Server
from kafkawire.cli.shared.progress import bars
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import leaders
from kafkawire.client.producer import Producer
from kafkawire.client.record_text import RecordError, Row

REPORTED_EVERY = 1000
"""Records between two reports of progress."""


def import_file(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    path: Annotated[str, typer.Argument(metavar="FILE", help="A file; -: standard input.")],
    kind: Format = None,
    by_key: Annotated[
        bool,
        typer.Option("--by-key", help="Choose partitions by key, not those in the file."),
    ] = False,
    compression: Compression = "none",
    acks: Acks = "all",
    server: Server = LOCAL,
) -> None:
    """Append the records of a file to a topic: JSON lines, CSV or Parquet.

    Keys, values, headers, timestamps and partitions are those of the file; the topic must have as
    many partitions. Of the columns only "value" is required. Records that fail are reported and
    counted, and the others are stored. Exit code 1 if any failed.

    Examples:

      kafkawire import orders-copy orders.parquet

      gunzip -c orders.csv.gz | kafkawire import orders - --format csv --by-key
    """
    try:
        chosen = format_of_file("--format", kind, path)
        codec, level = parse_codec(compression), parse_acks(acks)
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster, _read(path) as stream:
        chooser = Chooser(topic, len(leaders(cluster, [topic])))
        failures = Failures()
        producer = Producer(cluster, failed=failures.batch, codec=codec, acks=level)
        try:
            with bars() as progress:
                for number, row in enumerate(rows_of(chosen, stream), 1):
                    _append(producer, chooser, failures, number, row, by_key)
                    if number % REPORTED_EVERY == 0:
                        progress("records imported", number, 0)
        finally:
            producer.flush()
            print_summary(topic, producer, failures)
        fail_unless(not failures.count)


def _append(
    producer: Producer, chooser: Chooser, failures: Failures, number: int, row: Row, by_key: bool
) -> None:
    where, parsed = row
    if isinstance(parsed, RecordError):
        failures.add(where, str(parsed))
        return
    if by_key:
        parsed = parsed._replace(partition=None)
    append_parsed(producer, chooser, failures, number, where, parsed)


@contextmanager
def _read(path: str) -> Iterator[IO[bytes]]:
    """Yield a file, or standard input. ClientError."""
    if path == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as stream:
            yield stream
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClientError(f"{path} cannot be read: {reason}") from None
