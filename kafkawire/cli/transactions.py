"""`kafkawire transactions`: list, describe, abort, hanging, against any Kafka broker.

Each function is one command.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, print_results, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT32, INT64, LOCAL, Json, Server, Wide, not_empty
from kafkawire.cli.shared.partitions import parse_partition
from kafkawire.cli.shared.tables import TableColumn
from kafkawire.cli.shared.times import MAX_DIGITS
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.notation import OptionError, parse_duration, time_text
from kafkawire.client.offsets import Partition, leaders, partition_text, partitions_text
from kafkawire.client.transaction_admin import (
    Producing,
    abort_transaction,
    describe_transactions,
    find_hanging,
    producers,
)
from kafkawire.client.transaction_admin import list_transactions as list_of
from kafkawire.codec.errors import ErrorCode
from kafkawire.plural import count
from kafkawire.units import duration_ms

STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
    "PrepareEpochFence", "Dead",
)  # fmt: skip
"""The states of a transactional id in Kafka (TransactionState)."""
DESCRIBED = (
    "transactional_id",
    "state",
    TableColumn("open_ms", "open for", show=duration_ms),
    TableColumn("partitions", keep=True),
    TableColumn("timeout_ms", "timeout", show=duration_ms),
    "producer_id",
    "producer_epoch",
    "started",
    "coordinator",
)
MINUTE_MS = 60_000
LONGEST_TIMEOUT = "15min"
"""The default of Kafka's tool: transaction.max.timeout.ms of the broker."""

Ids = Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID...", callback=not_empty)]


def list_transactions(
    server: Server = LOCAL,
    state: Annotated[
        list[str],
        typer.Option(metavar="STATE", help="List only ids in this state; may be repeated."),
    ] = [],  # noqa: B006
    producer_id: Annotated[
        list[int],
        typer.Option(min=0, max=INT64, help="List only this producer ID; may be repeated."),
    ] = [],  # noqa: B006
    longer_than: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="List only transactions open for longer than this."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="List only ids that match, as a whole."),
    ] = None,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List transactional ids with coordinator, producer ID and state.

    Examples:
      kafkawire transactions list --state Ongoing
      kafkawire transactions list --pattern 'kitchen-.*' --longer-than 1min
    """
    for name in state:
        if name not in STATES:
            fail(OptionError("--state", name, "one of " + ", ".join(STATES)), 2)
    longer_than_ms = -1 if longer_than is None else _parse_longer_than(longer_than, 1)
    with connect_cluster(server) as cluster:
        found = _list_transactions(cluster, state, producer_id, longer_than_ms, pattern)
        rows = [each._asdict() for each in found]
        columns = ("transactional_id", "state", "producer_id", "coordinator")
        print_results(rows, columns, count(len(rows), "transactional id"), as_json, wide)


def _parse_longer_than(text: str, unit_ms: int) -> int:
    """Return milliseconds. A bare number is in the unit of the option's earlier name, which is that
    of Kafka's tool."""
    bare = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    try:
        return int(text) * unit_ms if bare else parse_duration("--longer-than", text)
    except OptionError as error:
        fail(error, 2)


def _list_transactions(
    cluster: Cluster,
    states: list[str],
    producer_ids: list[int],
    longer_than_ms: int,
    pattern: str | None,
) -> list[Any]:
    try:
        return list_of(
            cluster,
            states=states,
            producer_ids=producer_ids,
            min_duration_ms=longer_than_ms,
            pattern=pattern,
        )
    except BrokerError as error:
        if error.code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            fail(OptionError("--pattern", pattern, "a regular expression as Java's"), 2)
        raise


def describe(names: Ids, server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """Show producer, state, start and partitions of transactional ids.

    Examples:
      kafkawire transactions describe kitchen-1
    """
    with connect_cluster(server) as cluster:
        rows = [_format_transaction(*each) for each in describe_transactions(cluster, names)]
        report("transactions", rows, DESCRIBED, as_json, wide)


def _format_transaction(transactional_id: str, coordinator: int, found: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"transactional_id": transactional_id, "coordinator": coordinator}
    if found.error_code:
        return {**row, "error": error_text(found.error_code)}
    started_ms = found.transaction_start_time_ms
    is_open = found.transaction_state in ("Ongoing", "PrepareCommit", "PrepareAbort")
    return {
        **row,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "state": found.transaction_state,
        "timeout_ms": found.transaction_timeout_ms,
        "started": None if started_ms < 0 else time_text(started_ms),
        "open_ms": max(0, _now_ms() - started_ms) if is_open else None,
        "partitions": partitions_text(
            (each.topic, n) for each in found.topics for n in each.partitions
        ),
        "error": None,
    }


def abort(
    start_offset: Annotated[
        int, typer.Option(min=0, max=INT64, help="First offset of the transaction there.")
    ],
    where: Annotated[
        str,
        typer.Argument(metavar="TOPIC:PARTITION", help="Partition with the open transaction."),
    ] = "",
    topic: Annotated[str, typer.Option(hidden=True)] = "",
    partition: Annotated[int | None, typer.Option(min=0, max=INT32, hidden=True)] = None,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Abort the transaction that is open in a partition from an offset on.

    Its coordinator is not asked. Use it for a hanging transaction only: one that its coordinator
    still has would become aborted in this partition and may be committed in the others.

    Examples:
      kafkawire transactions abort orders:0 --start-offset 17
    """
    text = where or f"{topic}:{'' if partition is None else partition}"
    try:
        place = parse_partition("TOPIC:PARTITION", text)
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster:
        leader = leaders(cluster, [place[0]]).get(place)
        if leader is None:
            raise ClientError(f"topic {place[0]} has no partition {place[1]}")
        opened = [
            each
            for each in producers(cluster, {place: leader})
            if each.start_offset == start_offset
        ]
        if not opened:
            raise ClientError(
                f"{partition_text(place)} has no open transaction that starts at offset "
                f"{start_offset}"
            )
        abort_transaction(cluster, opened[0], leader)
        print_results([_format_hanging(opened[0], None)], ABORTED, "aborted", as_json)


ABORTED = ("topic", "partition", "producer_id", "producer_epoch", "start_offset")
HANGING = (
    "topic", "partition", "start_offset", "transactional_id", "idle_minutes", "producer_id",
    "producer_epoch", "last_write", "coordinator_epoch",
)  # fmt: skip


CheckedTopics = Annotated[
    list[str],
    typer.Option(callback=not_empty, help="Check only this topic; may be repeated."),
]


def hanging(
    server: Server = LOCAL,
    topic: CheckedTopics = [],  # noqa: B006
    broker: Annotated[
        int, typer.Option(min=-1, max=INT32, help="Check only partitions this broker leads.")
    ] = -1,
    longer_than: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Check transactions without a write for longer than this."
        ),
    ] = LONGEST_TIMEOUT,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Find open transactions that no coordinator will end.

    They hold back readers of committed records without end; abort them with `transactions abort`.

    Examples:
      kafkawire transactions hanging
      kafkawire transactions hanging --topic orders --longer-than 1h
    """
    longer_than_ms = _parse_longer_than(longer_than, MINUTE_MS)
    with connect_cluster(server) as cluster:
        led_by = _checked_partitions(cluster, topic, broker)
        oldest_ms = _now_ms() - longer_than_ms
        candidates = [
            each
            for each in producers(cluster, led_by)
            if each.start_offset >= 0 and each.last_timestamp_ms < oldest_ms
        ]
        rows = [_format_hanging(*each) for each in find_hanging(cluster, candidates)]
        print_results(rows, HANGING, "hanging transactions", as_json, wide)


def _checked_partitions(
    cluster: Cluster, topics: list[str], broker_id: int
) -> dict[Partition, int]:
    names = topics or [each.name for each in cluster.metadata(None).topics]
    if broker_id >= 0 and broker_id not in cluster.nodes():
        raise ClientError(f"broker {broker_id} is not in the cluster")
    return {
        partition: leader
        for partition, leader in leaders(cluster, names).items()
        if broker_id in (-1, leader)
    }


def _format_hanging(opened: Producing, transactional_id: str | None) -> dict[str, Any]:
    idle_ms = max(0, _now_ms() - opened.last_timestamp_ms)
    return {
        "topic": opened.partition[0],
        "partition": opened.partition[1],
        "producer_id": opened.producer_id,
        "producer_epoch": opened.producer_epoch,
        "coordinator_epoch": opened.coordinator_epoch,
        "start_offset": opened.start_offset,
        "last_write": time_text(opened.last_timestamp_ms),
        "idle_minutes": idle_ms // MINUTE_MS,
        "transactional_id": transactional_id,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
