"""`kafkawire groups reset-offsets`: show and commit new offsets for a group.

Like Kafka's own tool it only shows the plan without --execute, keeps offsets inside the log
(earliest to latest) and commits without joining the group, which the broker rejects while the group
has members.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, report
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT64, LOCAL, Json, Server, Wide
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.cli.shared.times import parse_time
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.groups import SHARE
from kafkawire.client.notation import OptionError, parse_duration
from kafkawire.client.offsets import (
    Partition,
    commit,
)
from kafkawire.client.resets import (
    OffsetTarget,
    active_sentence,
    current_offsets,
    find_group,
    make_plan,
)
from kafkawire.client.share_groups import alter_share_offsets

# Targets of a reset of committed offsets, and the plan of new offsets; CSV files of plans.
#
# A file has lines of topic, partition and offset without a header, as `kafka-consumer-groups
# --export` writes and `--from-file` reads for one group; with the group in a first column, as for
# several, the other groups are skipped.


NS_PER_MS = 1_000_000
INT32 = 2**31 - 1
MAX_DIGITS = 19
"""Maximum digits of an int64."""
MAX_FILE_BYTES = 64 << 20
"""Largest file of offsets: about a million partitions."""
STANDARD = "-"
FILE_FORMAT = "a CSV file with lines of TOPIC,PARTITION,OFFSET"


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Target of a reset; exactly one attribute is set."""

    to_earliest: bool = False
    to_latest: bool = False
    to_offset: int | None = None
    to_datetime: str | None = None
    shift_by: int | None = None
    by_duration: str | None = None
    to_current: bool = False
    from_file: str | None = None

    def check(self) -> None:
        """Raise OptionError unless exactly one target is given, and a time is valid."""
        flags = (self.to_earliest, self.to_latest, self.to_current)
        values = (
            self.to_offset,
            self.to_datetime,
            self.shift_by,
            self.by_duration,
            self.from_file,
        )
        given = sum(flags) + sum(item is not None for item in values)
        if given != 1:
            names = (
                "--to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, "
                "--by-duration, --shift-by, --from-file"
            )
            raise OptionError("reset-offsets", f"{given} targets", f"one of {names}")
        self.timestamp_ms()

    def timestamp_ms(self) -> int | None:
        """Return --to-datetime or --by-duration as ms since 1970; None if neither is given.
        OptionError."""
        now_ms = time.time_ns() // NS_PER_MS
        if self.by_duration is not None:
            return max(0, now_ms - parse_duration("--by-duration", self.by_duration))
        if self.to_datetime is None:
            return None
        return parse_time("--to-datetime", self.to_datetime, now_ms)

    def resolve(self) -> OffsetTarget:
        """Return the target with its time in milliseconds. OptionError."""
        return OffsetTarget(
            self.to_earliest,
            self.to_latest,
            self.to_current,
            self.to_offset,
            self.shift_by,
            self.timestamp_ms(),
        )


def read_plan(path: str, group: str) -> dict[Partition, int]:
    """Return the offsets of a group in a CSV file. OptionError, naming the line."""
    found: dict[Partition, int] = {}
    for number, row in _rows(path):
        owner, *fields = row if len(row) == 4 else (group, *row)
        numbers = [_number(text) for text in fields[1:]]
        if len(fields) != 3 or not fields[0] or None in numbers or (numbers[0] or 0) > INT32:
            raise OptionError("--from-file", f"{path}, line {number}", FILE_FORMAT)
        index, offset = (each or 0 for each in numbers)
        if owner == group:
            found[fields[0], index] = offset
    if not found:
        raise OptionError("--from-file", path, f"{FILE_FORMAT} of group {group}")
    return found


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a CSV file with their numbers, without empty ones."""
    reader = csv.reader(io.StringIO(_text(path), newline=""))
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        allowed = f"{FILE_FORMAT} ({error})"
        raise OptionError("--from-file", f"{path}, line {reader.line_num}", allowed) from None


def _number(text: str) -> int | None:
    text = text.strip()
    sound = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return int(text) if sound and int(text) <= INT64 else None


def _text(path: str) -> str:
    try:
        if path == STANDARD:
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError("--from-file", path, f"a readable file ({reason})") from None
    if len(data) > MAX_FILE_BYTES:
        raise OptionError("--from-file", path, f"a file of at most {MAX_FILE_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OptionError("--from-file", path, FILE_FORMAT) from None


def write_plan(path: str, plan: Mapping[Partition, int]) -> None:
    """Write the offsets of a group to a CSV file, or to standard output. ClientError."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows((topic, index, offset) for (topic, index), offset in sorted(plan.items()))
    if path == STANDARD:
        print(out.getvalue(), end="")
        return
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(out.getvalue())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClientError(f"{path} cannot be written: {reason}") from None


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

    Of a share group, where it continues to read. Without --execute the new offsets are only shown,
    as in Kafka's own tool.

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

    with connect_cluster(server) as cluster:
        found = find_group(cluster, group)
        active = active_sentence(found, "stop them before its offsets are reset")
        if active and execute:
            raise ClientError(active)
        shared = found is not None and found.kind == SHARE
        current = current_offsets(cluster, group, shared)
        partitions = list(current) if all_topics else list(saved or select(cluster, chosen))
        plan = make_plan(cluster, partitions, current, target.resolve(), saved)
        if output is not None:
            write_plan(output, plan)
        errors = commit_all(cluster, group, plan, shared) if execute else {}
        rows = _plan_rows(plan, current, errors)
        title = f"{group}, reset" if execute else f"{group}, dry run (use --execute to commit)"
        if active:
            print(f"kafkawire: {active}", file=sys.stderr)
        if output != STANDARD or execute:
            report(title, rows, COLUMNS, as_json, wide)


def _plan_rows(
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


def commit_all(
    cluster: Cluster, group: str, plan: dict[Partition, int], shared: bool = False
) -> dict[Partition, str]:
    """Commit offsets without joining the group; return error texts by partition."""
    codes = (alter_share_offsets if shared else commit)(cluster, group, plan)
    texts = {place: error_text(code) for place, code in codes.items()}
    return {place: text for place, text in texts.items() if text is not None}
