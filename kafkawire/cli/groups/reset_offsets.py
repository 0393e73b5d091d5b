"""`kafkawire groups reset-offsets`: show and commit new offsets for a group.

Like Kafka's own tool it only shows the plan without --execute, keeps offsets inside the log
(earliest to latest) and commits without joining the group, which the broker rejects while the group
has members.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import connected, error_text, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT64, LOCAL, Json, Server, Wide
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.cli.shared.times import parse_time
from kafkawire.cli.shared.units import count
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.groups import describe_group
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    Partition,
    commit,
    committed,
    leaders,
    list_offsets,
)
from kafkawire.codec.errors import ErrorCode

NS_PER_MS = 1_000_000
INACTIVE = ("Empty", "Dead")
"""States of a group whose offsets can be committed without being a member."""
MAX_NAMED = 5
COLUMNS = ("topic", "partition", "from", "to")


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Target of a reset; exactly one attribute is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_offset: int | None = None
    to_datetime: str | None = None
    shift_by: int | None = None

    def check(self) -> None:
        """Raise OptionError unless exactly one target is given, and a date is valid."""
        numbers = (self.to_offset, self.to_datetime, self.shift_by)
        given = self.to_earliest + self.to_latest + sum(item is not None for item in numbers)
        if given != 1:
            names = "--to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by"
            raise OptionError("reset-offsets", f"{given} targets", f"one of {names}")
        self.timestamp_ms()

    def timestamp_ms(self) -> int | None:
        """Return --to-datetime in ms since 1970. OptionError."""
        if self.to_datetime is None:
            return None
        return parse_time("--to-datetime", self.to_datetime, time.time_ns() // NS_PER_MS)


ToReset = Annotated[
    list[str],
    typer.Option(metavar="TOPIC[:0,1,4-6]", help="Partitions to reset; may be repeated."),
]
ToOffset = Annotated[int | None, typer.Option(min=0, max=INT64, help="Reset to this offset.")]
ToTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Reset to the first record at this time or later: ISO 8601, -1h or @MILLISECONDS.",
    ),
]
ShiftBy = Annotated[
    int | None,
    typer.Option(min=-INT64, max=INT64, help="Shift by this many offsets; may be negative."),
]


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: ToReset = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics with committed offsets.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Reset to the log start offset.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Reset to the log end offset.")
    ] = False,
    to_offset: ToOffset = None,
    to_datetime: ToTime = None,
    shift_by: ShiftBy = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Commit the new offsets, or only show them.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Reset the committed offsets of a group without active members.

    Without --execute the new offsets are only shown, as in Kafka's own tool.

    Examples:
      kafkawire groups reset-offsets kitchen --topic orders --to-earliest
      kafkawire groups reset-offsets kitchen --topic orders:0,4-6 --shift-by -100 --execute
      kafkawire groups reset-offsets kitchen --all-topics --to-datetime -1h --execute
    """
    target = ResetTarget(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    try:
        target.check()
        chosen = [parse_partitions("--topic", text) for text in topic]
        if bool(chosen) == all_topics:
            given = "both" if chosen else "none"
            raise OptionError("reset-offsets", given, "--topic or --all-topics")
    except OptionError as error:
        fail(error, 2)

    with connected(server) as cluster:
        active = _activity(cluster, group)
        if active and execute:
            raise ClientError(active)
        current = {place: at for place, (at, _) in committed(cluster, group).items()}
        partitions = list(current) if all_topics else list(select(cluster, chosen))
        plan = make_plan(cluster, partitions, current, target)
        errors = commit_all(cluster, group, plan) if execute else {}
        rows: list[dict[str, Any]] = [
            {
                "topic": place[0],
                "partition": place[1],
                "from": current.get(place),
                "to": offset,
                "error": errors.get(place),
            }
            for place, offset in sorted(plan.items())
        ]
        title = f"{group}, reset" if execute else f"{group}, dry run (use --execute to commit)"
        if active:
            print(f"kafkawire: {active}", file=sys.stderr)
        report(title, rows, COLUMNS, as_json, wide)


def _activity(cluster: Cluster, group: str) -> str:
    """Return in one sentence that the group has members; empty if it has none, or does not exist
    yet: a reset creates it."""
    try:
        found = describe_group(cluster, group)
    except BrokerError as error:
        if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
            return ""
        raise
    if found.state in INACTIVE and not found.members:
        return ""
    clients = ", ".join(sorted({member.client for member in found.members})[:MAX_NAMED])
    named = f" ({clients})" if clients else ""
    return (
        f"group {group} is active: it is {found.state} with "
        f"{count(len(found.members), 'member')}{named}; stop them before its offsets are reset"
    )


def make_plan(
    cluster: Cluster,
    partitions: list[Partition],
    current: dict[Partition, int],
    target: ResetTarget,
) -> dict[Partition, int]:
    """Return the new offset of each partition, inside its log."""
    led_by = leaders(cluster, [topic for topic, _ in partitions])
    latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST), led_by)
    earliest = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), led_by)
    timestamp = target.timestamp_ms()
    by_time: dict[Partition, int] = {}
    if timestamp is not None:
        by_time = list_offsets(cluster, dict.fromkeys(partitions, timestamp), led_by)
    plan: dict[Partition, int] = {}
    for place in partitions:
        if place not in latest:
            raise ClientError(f"{place[0]}-{place[1]} has no leader")
        if target.to_earliest:
            wanted = earliest[place]
        elif target.to_latest:
            wanted = latest[place]
        elif target.to_offset is not None:
            wanted = target.to_offset
        elif target.shift_by is not None:
            if place not in current:
                raise ClientError(f"{place[0]}-{place[1]} has no committed offset to shift")
            wanted = current[place] + target.shift_by
        else:  # a time after the last record: the end, as in Kafka's tool
            wanted = by_time[place] if by_time.get(place, -1) >= 0 else latest[place]
        plan[place] = min(max(wanted, earliest[place]), latest[place])
    return plan


def commit_all(cluster: Cluster, group: str, plan: dict[Partition, int]) -> dict[Partition, str]:
    """Commit offsets without joining the group; return error texts by partition."""
    codes = commit(cluster, group, plan)
    texts = {place: error_text(code) for place, code in codes.items()}
    return {place: text for place, text in texts.items() if text is not None}
