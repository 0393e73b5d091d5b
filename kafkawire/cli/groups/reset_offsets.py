"""`kafkawire groups reset-offsets`: show and commit new offsets for a group.

Like Kafka's own tool it only shows the plan without --execute, keeps offsets inside the log
(earliest to latest) and commits without joining the group, which the broker rejects while the group
has members.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kafkawire.cli.groups.reset_plan import (
    STANDARD,
    ResetTarget,
    make_plan,
    read_plan,
    write_plan,
)
from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import connected, error_text, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT64, LOCAL, Json, Server, Wide
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.groups import describe_group
from kafkawire.client.offsets import Partition, commit, committed
from kafkawire.codec.errors import ErrorCode
from kafkawire.plural import count

INACTIVE = ("Empty", "Dead")
"""States of a group whose offsets can be committed without being a member."""
MAX_NAMED = 5
COLUMNS = ("topic", "partition", "from", "to")


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
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="Reset to the log start offset.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="Reset to the log end offset.")]
ToCurrent = Annotated[
    bool, typer.Option("--to-current", help="Reset to the committed offset, or the log end offset.")
]
ByDuration = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Reset to the first record since 2h, 1h30m, PT2H ago."),
]
FromFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Reset to the offsets in a CSV file that --output wrote."),
]
Output = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write the new offsets to a CSV file; -: standard output."),
]


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: ToReset = [],  # noqa: B006
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics with committed offsets.")
    ] = False,
    to_earliest: ToEarliest = False,
    to_latest: ToLatest = False,
    to_current: ToCurrent = False,
    to_offset: ToOffset = None,
    to_datetime: ToTime = None,
    by_duration: ByDuration = None,
    shift_by: ShiftBy = None,
    from_file: FromFile = None,
    output: Output = None,
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
      kafkawire groups reset-offsets kitchen --all-topics --to-current --output saved.csv
      kafkawire groups reset-offsets kitchen --from-file saved.csv --execute
    """
    target = ResetTarget(
        to_earliest,
        to_latest,
        to_offset,
        to_datetime,
        shift_by,
        by_duration,
        to_current,
        from_file,
    )
    try:
        target.check()
        chosen = [parse_partitions("--topic", text) for text in topic]
        if bool(chosen) + all_topics + (from_file is not None) != 1:
            given = "none" if not chosen else "several"
            raise OptionError("reset-offsets", given, "one of --topic, --all-topics, --from-file")
        saved = {} if from_file is None else read_plan(from_file, group)
    except OptionError as error:
        fail(error, 2)

    with connected(server) as cluster:
        active = active_sentence(cluster, group, "stop them before its offsets are reset")
        if active and execute:
            raise ClientError(active)
        current = {place: at for place, (at, _) in committed(cluster, group).items()}
        partitions = list(current) if all_topics else list(saved or select(cluster, chosen))
        plan = make_plan(cluster, partitions, current, target, saved)
        if output is not None:
            write_plan(output, plan)
        errors = commit_all(cluster, group, plan) if execute else {}
        rows = _rows(plan, current, errors)
        title = f"{group}, reset" if execute else f"{group}, dry run (use --execute to commit)"
        if active:
            print(f"kafkawire: {active}", file=sys.stderr)
        if output != STANDARD or execute:
            report(title, rows, COLUMNS, as_json, wide)


def _rows(
    plan: dict[Partition, int], current: dict[Partition, int], errors: dict[Partition, str]
) -> list[dict[str, Any]]:
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "from": current.get(place),
            "to": offset,
            "error": errors.get(place),
        }
        for place, offset in sorted(plan.items())
    ]


def active_sentence(cluster: Cluster, group: str, advice: str) -> str:
    """Return in one sentence that the group has members, which ends with the advice; empty if it
    has none, or does not exist yet: a commit creates it."""
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
        f"{count(len(found.members), 'member')}{named}; {advice}"
    )


def commit_all(cluster: Cluster, group: str, plan: dict[Partition, int]) -> dict[Partition, str]:
    """Commit offsets without joining the group; return error texts by partition."""
    codes = commit(cluster, group, plan)
    texts = {place: error_text(code) for place, code in codes.items()}
    return {place: text for place, text in texts.items() if text is not None}
