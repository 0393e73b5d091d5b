"""`kafkawire consume TOPIC`: print records of any Kafka broker, from any start offset.

The start of each partition is resolved by a subscription (kafkawire.offsets.subscription). Reads up
to the log end offset at the start, or without end with --follow. With --group it commits its
positions without joining the group; the broker rejects that while the group has members.
"""

from __future__ import annotations

import base64
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from kafkawire.cli.groups.reset_offsets import commit_all
from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.outcomes import connected
from kafkawire.cli.shared.output import fail, print_json_line
from kafkawire.cli.shared.parameters import INT32, LOCAL, Server
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.fetching import fetch, sound_records
from kafkawire.client.offsets import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
    committed,
    coordinated,
    leaders,
    list_offsets,
)
from kafkawire.codec.batches import Record
from kafkawire.offsets.subscription import NS_PER_MS, Subscription
from kafkawire.offsets.types import OffsetOutOfRange, OffsetType
from kafkawire.offsets.wire_source import LiveSource

PLACES = (
    "earliest, latest, resume (or resume-or-earliest), resume-or-latest, offset:N, nearest:N or "
    "time:T (ISO 8601, UTC if bare, or ms since 1970)"
)
_PLAIN = {
    "earliest": OffsetType.RESET_TO_EARLIEST,
    "latest": OffsetType.RESET_TO_LATEST,
    "resume": OffsetType.RESUME_OR_EARLIEST,
    "resume-or-earliest": OffsetType.RESUME_OR_EARLIEST,
    "resume-or-latest": OffsetType.RESUME_OR_LATEST,
}
_RESUMING = (OffsetType.RESUME_OR_EARLIEST, OffsetType.RESUME_OR_LATEST)
_BY_OFFSET = {"offset": OffsetType.EXACT_OFFSET, "nearest": OffsetType.RESET_TO_OFFSET}
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
MAX_OFFSET_DIGITS = 19
"""Maximum digits of an int64."""

WAIT_MS = 500
"""Wait for new records per Fetch."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Options of the command."""

    topic: str
    start: str = "earliest"
    group: str = ""
    partition: int | None = None
    at_most: int | None = None
    follow: bool = False
    as_json: bool = False
    isolation: int = READ_UNCOMMITTED


def parse_start(text: str) -> tuple[OffsetType, int]:
    """Parse one of PLACES into the offset type of a subscription and its value. Raises
    OptionError."""
    if text in _PLAIN:
        return _PLAIN[text], 0
    word, colon, value = text.partition(":")
    if word in _BY_OFFSET and value.isdecimal() and len(value) <= MAX_OFFSET_DIGITS:
        return _BY_OFFSET[word], int(value)
    if word == "time" and colon:
        return OffsetType.EXACT_TS_NS, _time_ms(text, value) * NS_PER_MS
    raise OptionError("--from", text, PLACES)


def _time_ms(text: str, value: str) -> int:
    if value.isdecimal() and len(value) <= MAX_OFFSET_DIGITS:
        return int(value)
    try:
        when = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise OptionError("--from", text, PLACES) from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, resume, resume-or-latest, offset:N, nearest:N or time:T.",
        ),
    ] = "earliest",
    group: Annotated[
        str, typer.Option(help="Commit offsets for this group; --from resume starts there.")
    ] = "",
    partition: Annotated[
        int | None, typer.Option(min=0, max=INT32, help="Read only this partition.")
    ] = None,
    at_most: Annotated[
        int | None, typer.Option("--max", help="Stop after this many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records at the log end.")
    ] = False,
    isolation: Annotated[
        str,
        typer.Option(
            "--isolation-level",
            metavar="LEVEL",
            help="read_uncommitted, or read_committed without records of aborted and open "
            "transactions.",
        ),
    ] = "read_uncommitted",
    server: Server = LOCAL,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object per record, with offset, key and headers."
        ),
    ] = False,
) -> None:
    """Print the values of a topic's records."""
    level = ISOLATION_LEVELS.get(isolation, READ_UNCOMMITTED)
    options = ConsumeOptions(topic, start, group, partition, at_most, follow, as_json, level)
    try:
        if isolation not in ISOLATION_LEVELS:
            raise OptionError("--isolation-level", isolation, " or ".join(ISOLATION_LEVELS))
        offset_type, value = parse_start(options.start)
        if offset_type in _RESUMING and not options.group:
            raise OptionError("--from", options.start, "used together with --group")
        if options.at_most is not None and options.at_most < 0:
            raise OptionError("--max", options.at_most, "a whole number of at least 0")
    except OptionError as error:
        fail(error, 2)

    with connected(server) as cluster:
        readers = _subscribe(cluster, options, offset_type, value)
        try:
            _read(cluster, options, readers)
        except KeyboardInterrupt:  # the usual way out of --follow
            pass
        except BrokenPipeError:  # `| head` has closed the pipe
            sys.stderr.close()
        if options.group:
            plan = {place: reader.position for place, (_, reader) in readers.items()}
            for place, text in commit_all(cluster, options.group, plan).items():
                raise ClientError(f"{place[0]}-{place[1]} of group {options.group}: {text}")


Readers = dict[Partition, tuple[int, Subscription]]
"""The leader and the reader of each partition."""


def _subscribe(
    cluster: Cluster, options: ConsumeOptions, offset_type: OffsetType, value: int
) -> Readers:
    led_by = leaders(cluster, [options.topic])
    if options.partition is not None:
        wanted = (options.topic, options.partition)
        if wanted not in led_by:
            raise ClientError(f"topic {options.topic} has no partition {options.partition}")
        led_by = {wanted: led_by[wanted]}
    known: dict[Partition, int] = {}
    if options.group:
        found = coordinated(lambda: committed(cluster, options.group))
        known = {place: at for place, (at, _) in found.items()}
    made: Readers = {}
    for place in sorted(led_by):
        source = LiveSource(cluster, place, led_by, known)
        try:
            reader = Subscription(source, offset_type, value, options.group)
        except OffsetOutOfRange as error:
            raise ClientError(f"{place[0]}-{place[1]}: {error}") from None
        made[place] = (led_by[place], reader)
    return made


def _read(cluster: Cluster, options: ConsumeOptions, readers: Readers) -> None:
    left = sys.maxsize if options.at_most is None else options.at_most
    ends = _ends(cluster, options, readers)
    wait_ms = WAIT_MS // len(readers) if options.follow else 0
    waiting = list(readers)
    while waiting and left:
        for place in list(waiting):
            node, reader = readers[place]
            if reader.position >= ends[place]:
                waiting.remove(place)
                continue
            got = fetch(cluster, node, place, reader.position, wait_ms, isolation=options.isolation)
            if not got.records and not options.follow:
                raise ClientError(f"{place[0]}-{place[1]} has no batch at {reader.position}")
            for record in sound_records(got, reader.position):
                if record.offset >= ends[place] or not left:
                    break
                _print(place, record, options.as_json)
                reader.advance(record.offset + 1)
                left -= 1
            if left:  # skip offsets without a record: compacted away, control batches
                last = max((head.last_offset for _, head in got.batches()), default=-1)
                reader.advance(max(reader.position, min(last + 1, ends[place])))


def _ends(cluster: Cluster, options: ConsumeOptions, readers: Readers) -> dict[Partition, int]:
    """Return where reading ends: at the end of the log, or before the first open transaction."""
    if options.follow:
        return dict.fromkeys(readers, sys.maxsize)
    if options.isolation == READ_UNCOMMITTED:
        return {place: reader.position + reader.lag for place, (_, reader) in readers.items()}
    led_by = {place: node for place, (node, _) in readers.items()}
    return list_offsets(cluster, dict.fromkeys(readers, LATEST), led_by, READ_COMMITTED)


def _print(place: Partition, record: Record, as_json: bool) -> None:
    if not as_json:
        value = record.value
        print("" if value is None else bytes(value).decode("utf-8", "replace"))
        return
    print_json_line(
        {
            "topic": place[0],
            "partition": place[1],
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
        }
    )


def _text(value: bytes | None) -> Any:
    """Return UTF-8 as text, other bytes as {"base64": ...}."""
    if value is None:
        return None
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
