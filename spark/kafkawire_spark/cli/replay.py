"""`kafkawire pipeline replay TABLE --to TOPIC`: write the rows of a table back to a topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import LOCAL, Json, not_empty
from kafkawire.cli.shared.tables import print_table
from kafkawire.cli.shared.times import parse_time
from kafkawire.client.notation import OptionError, time_text

if TYPE_CHECKING:
    from kafkawire_spark.replay.job import Summary

Since = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        callback=not_empty,
        help="First record: an offset, PARTITION:OFFSET,... or a time: ISO 8601, -1h or "
        "@MILLISECONDS.",
    ),
]
Until = Annotated[
    str,
    typer.Option(metavar="PLACE", callback=not_empty, help="End, exclusive; same form as --from."),
]
Broker = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        envvar="KAFKAWIRE_SERVER",
        help="Broker of the target topic.",
    ),
]
PartitionMap = Annotated[
    str, typer.Option(metavar="same|FROM:TO,...", help="Table partition to target partition.")
]


def _iso(option: str, text: str) -> str:
    """Return times of this command line that ISO 8601 does not have in its notation."""
    if not text.startswith(("-", "@")) and text != "now":
        return text
    return time_text(parse_time(option, text, time.time_ns() // 1_000_000)) or ""


def replay(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Table to read: a path or s3://BUCKET/PREFIX.")
    ],
    to: Annotated[str, typer.Option(metavar="TOPIC", callback=not_empty, help="Target topic.")],
    server: Broker = LOCAL,
    partition_map: PartitionMap = "same",
    since: Since = "",
    until: Until = "",
    topic: Annotated[
        str, typer.Option(callback=not_empty, help="Source topic, if the table has several.")
    ] = "",
    name: Annotated[
        str, typer.Option(callback=not_empty, help="Replay name. [default: the target topic]")
    ] = "",
    create: Annotated[
        bool,
        typer.Option("--create", help="Create a missing target topic, with unlimited retention."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the rows of a table back to a topic, in order and each exactly once.

    Timestamps, keys, values and headers are kept; offsets are new. An interrupted replay continues
    when it is run again with the same arguments. It fails if another producer writes to the target
    topic meanwhile. Exit code 0: done, 1: failed, 2: invalid arguments, 130: Ctrl-C.

    Examples:
      kafkawire pipeline replay lake/orders --to orders-again --create
      kafkawire pipeline replay lake/orders --to late --from -1h --until now
    """
    from kafkawire.cli.shared.progress import bars
    from kafkawire.client.address import parse_servers
    from kafkawire.client.errors import ClientError
    from kafkawire.reading.files.open import open_place
    from kafkawire.reading.model.source import SourceError, exit_code
    from kafkawire_spark.pipeline.preflight import reach_store
    from kafkawire_spark.pipeline.tables.port import LOCATION
    from kafkawire_spark.replay import job
    from kafkawire_spark.replay.job import ReplayRequest
    from kafkawire_spark.replay.record import parse_bound, parse_partitions

    try:
        wish = ReplayRequest(
            table,
            to,
            server,
            name,
            topic,
            parse_bound("--from", _iso("--from", since)),
            parse_bound("--until", _iso("--until", until)),
            parse_partitions(partition_map),
            create,
        )
        parse_servers("--server", server)
        reach_store(open_place(table, LOCATION))
        opened = job.open_table(wish)
    except (OptionError, ClientError) as error:
        fail(error, 2)
    except SourceError as error:
        fail(error, exit_code(error, started=False))
    begun = time.monotonic()
    try:
        with bars() as progress:
            done = job.replay(wish, opened, progress)
    except SourceError as error:
        fail(error)
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to continue", 130)
    _show(done, time.monotonic() - begun, as_json)


def _show(done: Summary, seconds: float, as_json: bool) -> None:
    from kafkawire_spark.replay.job import plain

    rows = plain(done)
    if as_json:
        print_json(rows)
        return
    print_table(rows, list(rows[0]) if rows else [], f"replay {done.replay.name}")
    for note in done.notes:
        print(f"Note: {note}.")
    written = sum(lane.written for lane in done.lanes)
    print(f"{written:,} rows written in {seconds:.1f} s ({written / max(seconds, 1e-9):,.0f}/s)")
