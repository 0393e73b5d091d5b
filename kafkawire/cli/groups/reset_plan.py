"""Targets of a reset of committed offsets, and the plan of new offsets; CSV files of plans.

A file has lines of topic, partition and offset without a header, as `kafka-consumer-groups
--export` writes and `--from-file` reads for one group; with the group in a first column, as for
several, the other groups are skipped.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.partitions import partition_text
from kafkawire.cli.shared.times import parse_time
from kafkawire.cli.shared.units import parse_duration
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.offsets import EARLIEST, LATEST, Partition, leaders, list_offsets

NS_PER_MS = 1_000_000
INT32, INT64 = 2**31 - 1, 2**63 - 1
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


def make_plan(
    cluster: Cluster,
    partitions: list[Partition],
    current: Mapping[Partition, int],
    target: ResetTarget,
    given: Mapping[Partition, int],
) -> dict[Partition, int]:
    """Return the new offset of each partition, inside its log. `given`: those of --from-file."""
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
            missing = "has no leader" if place in led_by else "does not exist"
            raise ClientError(f"{partition_text(place)} {missing}")
        if target.to_earliest:
            wanted = earliest[place]
        elif target.to_offset is not None:
            wanted = target.to_offset
        elif target.shift_by is not None:
            if place not in current:
                raise ClientError(f"{partition_text(place)} has no committed offset to shift")
            wanted = current[place] + target.shift_by
        elif timestamp is not None:  # after the last record: the end, as in Kafka's tool
            wanted = by_time[place] if by_time.get(place, -1) >= 0 else latest[place]
        else:  # without a committed offset --to-current is the end, as in Kafka's tool
            known = current if target.to_current else given
            wanted = latest[place] if target.to_latest else known.get(place, latest[place])
        plan[place] = min(max(wanted, earliest[place]), latest[place])
    return plan


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
