"""`kafkawire groups reset-offsets`: show and commit new offsets for a group.

Like Kafka's own tool it only shows the plan without --execute, keeps offsets inside the log
(earliest to latest) and commits without joining the group, which the broker rejects while the group
has members.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import connected, error_text, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT64, LOCAL, Json, Server
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import (
    EARLIEST,
    LATEST,
    Partition,
    commit,
    committed,
    leaders,
    list_offsets,
)

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
        """Return --to-datetime in ms since 1970; a time without a zone is UTC."""
        if self.to_datetime is None:
            return None
        try:
            when = datetime.fromisoformat(self.to_datetime)
        except ValueError:
            allowed = "an ISO 8601 time such as 2026-01-31T12:00:00+01:00"
            raise OptionError("--to-datetime", self.to_datetime, allowed) from None
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str],
        typer.Option(metavar="TOPIC[:0,1,...]", help="Partitions to reset; may be repeated."),
    ] = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics with committed offsets.")
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Reset to the log start offset.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Reset to the log end offset.")
    ] = False,
    to_offset: Annotated[
        int | None, typer.Option(min=0, max=INT64, help="Reset to this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(help="Reset to the first record at this time or later (ISO 8601)."),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(min=-INT64, max=INT64, help="Shift by this many offsets; may be negative."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Commit the new offsets, or only show them.")
    ] = False,
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Reset the committed offsets of a group without active members.

    Without --execute the new offsets are only shown, as in Kafka's own tool."""
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
        report(title, rows, COLUMNS, as_json)


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
