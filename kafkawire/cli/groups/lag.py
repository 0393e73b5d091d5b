"""`kafkawire groups lag`: how many records groups have left to read, against any Kafka broker."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outage import Outage
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json, print_json_line
from kafkawire.cli.shared.parameters import LOCAL, EachPartition, Json, Server, Wide, not_empty
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.groups import list_groups
from kafkawire.client.lag import GroupLag, PartitionLag, lag_of, total
from kafkawire.client.notation import OptionError, parse_duration
from kafkawire.codec.errors import ErrorCode
from kafkawire.plural import count
from kafkawire.units import ago

MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 86_400_000
GROUPS = ("group", "lag", "state", "members", "partitions", "uncommitted", "last_commit")
TOPICS = ("topic", "lag", "partitions", "uncommitted", "last_commit")
PARTITIONS = ("topic", "partition", "lag", "committed", "log_end", "last_commit", "owner")
CHANGE = "per_s"
"""The change of the lag per second, since the table before."""

Lags = dict[str, int]


def lag(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP...]", callback=not_empty, help="All groups if none is named."
        ),
    ] = None,
    verbose: EachPartition = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Interval of --watch.")] = "5s",
    wide: Wide = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Show how many records groups have left to read.

    A partition without a committed offset is counted from its log start offset. The time of the
    last commit is known to kafkawire brokers only.

    Examples:

      kafkawire groups lag

      kafkawire groups lag billing --verbose

      kafkawire groups lag --watch --interval 2s
    """
    try:
        interval_ms = parse_duration("--interval", interval)
        if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
            raise OptionError("--interval", interval, "from 100ms to 1d")
    except OptionError as error:
        fail(error, 2)
    with connect_cluster(server) as cluster, suppress(KeyboardInterrupt):
        before: tuple[float, Lags] | None = None
        outage = Outage(cluster)
        while True:
            try:
                found = _read(cluster, groups or [])
            except ClientError as error:
                if not watch:
                    raise
                outage.handle_failure(error)
                continue
            outage.note_success()
            at, lags = time.monotonic(), {_name(each): each.totals().lag for each in found}
            changes = None if before is None else _changes(lags, before[1], at - before[0])
            if as_json:
                printed = print_json_line if watch else print_json
                printed([_as_json(each) for each in found])
            else:
                _show(found, bool(groups), verbose, changes, clear=watch, wide=wide)
            if not watch:
                return
            before = at, lags
            sys.stdout.flush()
            time.sleep(interval_ms / 1000)


def _name(group: GroupLag) -> str:
    return group.description.group


def _changes(now: Lags, before: Lags, seconds: float) -> dict[str, str]:
    return {
        name: f"{(lag - before[name]) / seconds:+,.0f}"
        for name, lag in now.items()
        if name in before
    }


def _read(cluster: Cluster, names: Sequence[str]) -> list[GroupLag]:
    if names:
        return lag_of(cluster, [(name, None) for name in dict.fromkeys(names)])
    wanted = [(row.group, row.coordinator) for row in list_groups(cluster)]
    try:
        return lag_of(cluster, wanted)
    except BrokerError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
    return list(_those_left(cluster, wanted))  # one was deleted meanwhile


def _those_left(cluster: Cluster, wanted: Iterable[tuple[str, int | None]]) -> Iterator[GroupLag]:
    for each in wanted:
        try:
            yield from lag_of(cluster, [each])
        except BrokerError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise


def _show(
    found: Sequence[GroupLag],
    named: bool,
    partitions: bool,
    changes: dict[str, str] | None,
    *,
    clear: bool,
    wide: bool,
) -> None:
    if clear and sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")
    now_ms = time.time_ns() // 1_000_000
    rows = [_group_row(each, now_ms) for each in found]
    columns: tuple[str, ...] = GROUPS
    if changes is not None:
        columns = (*GROUPS[:2], CHANGE, *GROUPS[2:])
        rows = [{**row, CHANGE: changes.get(str(row["group"]))} for row in rows]
    whole = total(row for each in found for row in each.partitions)
    print_table(rows, columns, f"{count(len(found), 'group')}, lag {whole.lag:,}", wide)
    for each in found if named or partitions else ():
        if partitions:
            detail = [_partition_row(each, row, now_ms) for row in each.partitions]
            print_table(detail, PARTITIONS, f"{_name(each)}, partitions", wide)
        else:
            detail = [_sums(topic, rows, now_ms) for topic, rows in each.by_topic().items()]
            print_table(detail, TOPICS, f"{_name(each)}, topics", wide)


def _group_row(group: GroupLag, now_ms: int) -> dict[str, object]:
    sums = _sums("", group.partitions, now_ms)
    return {
        **sums,
        "group": _name(group),
        "state": group.description.state,
        "members": len(group.description.members),
    }


def _sums(topic: str, rows: Iterable[PartitionLag], now_ms: int) -> dict[str, object]:
    sums = total(rows)
    return {
        "topic": topic,
        "lag": sums.lag if sums.unknown < sums.partitions or not sums.partitions else None,
        "partitions": sums.partitions,
        "uncommitted": sums.uncommitted,
        "last_commit": _ago(sums.last_commit_ms, now_ms),
    }


def _partition_row(group: GroupLag, row: PartitionLag, now_ms: int) -> dict[str, object]:
    owners = {member.member: member.client for member in group.description.members}
    return {
        "topic": row.partition[0],
        "partition": row.partition[1],
        "lag": row.lag,
        "committed": row.committed,
        "log_end": row.log_end,
        "last_commit": _ago(row.committed_ms, now_ms),
        "owner": None if row.owner is None else owners.get(row.owner, row.owner),
    }


def _ago(then_ms: int | None, now_ms: int) -> str | None:
    return None if then_ms is None else ago(then_ms, now_ms)


def _as_json(group: GroupLag) -> dict[str, Any]:
    sums = group.totals()
    return {
        "group": _name(group),
        "state": group.description.state,
        "members": len(group.description.members),
        "lag": sums.lag,
        "uncommitted_partitions": sums.uncommitted,
        "unknown_partitions": sums.unknown,
        "last_commit_ms": sums.last_commit_ms,
        "topics": [
            {
                "topic": topic,
                "lag": total(rows).lag,
                "partitions": [
                    {
                        "partition": row.partition[1],
                        "lag": row.lag,
                        "committed": row.committed,
                        "log_start": row.log_start,
                        "log_end": row.log_end,
                        "last_commit_ms": row.committed_ms,
                        "owner": row.owner,
                    }
                    for row in rows
                ],
            }
            for topic, rows in group.by_topic().items()
        ],
    }
