"""`kafkawire pipeline replay TABLE --to TOPIC`: a table's rows written back to a topic. Called by
pipeline_app."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kafkawire.cli.output import fail, print_json, print_table
from kafkawire.cli.parameters import LOCAL, Json


def replay(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Its path, or s3://BUCKET/PREFIX.")],
    to: Annotated[str, typer.Option(metavar="TOPIC", help="The target.")],
    bootstrap: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="KAFKAWIRE_SERVER", help="Its broker.")
    ] = LOCAL,
    partitions: Annotated[
        str, typer.Option(metavar="same|FROM:TO,...", help="Of the table, to those of the target.")
    ] = "same",
    since: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="An offset, PARTITION:OFFSET,... or a time (ISO 8601)."
        ),
    ] = "",
    until: Annotated[str, typer.Option(metavar="PLACE", help="Likewise; not itself in it.")] = "",
    topic: Annotated[str, typer.Option(help="Which, if the table has several.")] = "",
    name: Annotated[str, typer.Option(help="Of this replay [the target's].")] = "",
    create: Annotated[
        bool,
        typer.Option("--create", help="Make a missing target, with no retention."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a table's rows back to a topic: in order, each once, as they were.

    Timestamps, keys, values and headers are kept; offsets are new. Interrupted, and run again with
    the same words, it goes on where it was; it ends with an error if anybody else writes to the
    target meanwhile. Exit code 0: all rows are there, 1: not, 2: asked wrongly, 130: Ctrl-C."""
    from kafkawire.cli.pipeline.run import need
    from kafkawire.cli.progress import bars

    need(("pyarrow", "numba"))
    from kafkawire.spark.replay.choice import parse_bound, parse_partitions
    from kafkawire.spark.replay.job import Wish, plain
    from kafkawire.spark.replay.job import replay as write
    from kafkawire.spark.source.model import SourceError

    try:
        wish = Wish(
            table,
            to,
            bootstrap,
            name,
            topic,
            parse_bound("--from", since),
            parse_bound("--until", until),
            parse_partitions(partitions),
            create,
        )
    except SourceError as error:
        fail(error, 2)
    begun = time.monotonic()
    try:
        with bars() as told:
            done = write(wish, told)
    except SourceError as error:
        fail(error)
    except KeyboardInterrupt:
        fail("interrupted; the same command goes on from there", 130)
    rows = plain(done)
    if as_json:
        print_json(rows)
        return
    print_table(rows, list(rows[0]) if rows else [], f"replay {done.replay.name}")
    for note in done.notes:
        print(f"Note: {note}.")
    written, seconds = sum(lane.written for lane in done.lanes), time.monotonic() - begun
    print(f"{written:,} rows written in {seconds:.1f} s ({written / max(seconds, 1e-9):,.0f}/s)")
