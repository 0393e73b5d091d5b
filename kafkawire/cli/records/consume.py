"""`kafkawire consume TOPIC`: print records of any Kafka broker, from any start offset.

The start of each partition is resolved by a subscription (kafkawire.offsets.subscription). Records
of all partitions are merged by timestamp. Reads up to the log end offset at the start, or without
end with --follow. With --group it commits its positions without joining the group; the broker
rejects that while the group has members.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from kafkawire.cli.groups.reset_offsets import commit_all
from kafkawire.cli.records.filters import Filter, filters_of
from kafkawire.cli.shared.outage import Outage
from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import fail, print_json_line
from kafkawire.cli.shared.parameters import INT32, INT64, LOCAL, Server, not_empty
from kafkawire.cli.shared.partitions import parse_partitions, select
from kafkawire.cli.shared.times import TIMES, parse_end, parse_time
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import ClientError
from kafkawire.client.merging import Item, MergedReader, OffsetSpan
from kafkawire.client.notation import OptionError
from kafkawire.client.offsets import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Partition,
    call_coordinator,
    fetch_committed_offsets,
    list_offsets,
)
from kafkawire.client.record_text import FORMAT_HELP, RecordError, as_json, format_of
from kafkawire.client.resets import active_sentence, find_group
from kafkawire.codec.batches import Record
from kafkawire.offsets.integration import LiveSource
from kafkawire.offsets.subscription import NS_PER_MS, Subscription
from kafkawire.offsets.types import OffsetOutOfRange, OffsetType

# The last records of several partitions together, in the order in which they are printed.


MAX_TAIL = 100_000
"""Most records of --tail: their partitions and offsets are in memory. For more, --from has a
time or an offset."""
WIDER = 4
"""How many more offsets are read if fewer of them than needed had a record: those of transaction
markers and of what compaction removed have none."""


def narrow(cluster: Cluster, spans: dict[Partition, OffsetSpan], most: int, isolation: int) -> None:
    """Move the positions of the spans to the last `most` records of all of them; those before their
    positions are not read."""
    firsts = {place: span.position for place, span in spans.items()}
    widths = dict.fromkeys(spans, most)
    while True:
        counts, last = _read(cluster, spans, firsts, widths, most, isolation)
        short = [
            place
            for place, span in spans.items()
            if counts[place] < most and _end(span) - widths[place] > firsts[place]
        ]
        if not short:
            break
        for place in short:
            widths[place] *= WIDER
    begins: dict[Partition, int] = {}
    for place, offset in last:
        begins.setdefault(place, offset)
    for place, span in spans.items():
        span.position = begins.get(place, _end(span))


def _end(span: OffsetSpan) -> int:
    assert span.end is not None, "it has an end until it is followed"
    return span.end


def _read(
    cluster: Cluster,
    spans: dict[Partition, OffsetSpan],
    firsts: dict[Partition, int],
    widths: dict[Partition, int],
    most: int,
    isolation: int,
) -> tuple[Counter[Partition], deque[tuple[Partition, int]]]:
    """Read the last offsets of each span; return its number of records, and the last ones."""
    tried = {
        place: OffsetSpan(span.node, max(firsts[place], _end(span) - widths[place]), span.end)
        for place, span in spans.items()
    }
    counts: Counter[Partition] = Counter()
    last: deque[tuple[Partition, int]] = deque(maxlen=most)
    for place, record in MergedReader(cluster, tried, isolation=isolation).read():
        counts[place] += 1
        last.append((place, record.offset))
    return counts, last


PLACES = (
    "earliest, latest, resume (or resume-or-earliest), resume-or-latest, offset:N, nearest:N or "
    + TIMES
)
_PLAIN = {
    "earliest": OffsetType.RESET_TO_EARLIEST,
    "latest": OffsetType.RESET_TO_LATEST,
    "resume": OffsetType.RESUME_OR_EARLIEST,
    "resume-or-earliest": OffsetType.RESUME_OR_EARLIEST,
    "resume-or-latest": OffsetType.RESUME_OR_LATEST,
}
RESUMING = (OffsetType.RESUME_OR_EARLIEST, OffsetType.RESUME_OR_LATEST)
_BY_OFFSET = {"offset": OffsetType.EXACT_OFFSET, "nearest": OffsetType.RESET_TO_OFFSET}
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
MAX_OFFSET_DIGITS = 19
"""Maximum digits of an int64."""


Spans = dict[Partition, OffsetSpan]
Printer = Callable[[Partition, Record], None]


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """Options of the command, parsed. `start`: type and value; `until_ms`: end by time."""

    topic: str
    indexes: list[int] | None
    start: tuple[OffsetType, int]
    group: str
    isolation: int
    follow: bool
    until_ms: int | None = None
    tail: int | None = None


def parse_start(text: str) -> tuple[OffsetType, int]:
    """Parse one of PLACES into the offset type of a subscription and its value. Raises
    OptionError."""
    if text in _PLAIN:
        return _PLAIN[text], 0
    word, colon, value = text.partition(":")
    if word in _BY_OFFSET and value.isdecimal() and len(value) <= MAX_OFFSET_DIGITS:
        return _BY_OFFSET[word], int(value)
    when = text
    if word == "time" and colon:  # the notation of earlier versions, which had bare milliseconds
        when = f"@{value}" if value.isdecimal() else value
    try:
        at_ms = parse_time("--from", when, now_ms())
    except OptionError:
        raise OptionError("--from", text, PLACES) from None
    return OffsetType.EXACT_TS_NS, at_ms * NS_PER_MS


def parse_until(text: str | None, offset_type: OffsetType, value: int) -> int | None:
    """Return the end of a time range that begins at `value`, in milliseconds. OptionError."""
    if text is None:
        return None
    since_ms = value // NS_PER_MS if offset_type is OffsetType.EXACT_TS_NS else None
    return parse_end("--until", text, since_ms, now_ms())


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


JSON = "json"
From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="earliest, latest, resume, resume-or-latest, offset:N, nearest:N or a time: "
        "ISO 8601, -1h, @1700000000000.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop before the first record from this time on; +5m: so long after --from.",
    ),
]
Tail = Annotated[
    int | None,
    typer.Option(min=0, max=MAX_TAIL, metavar="N", help="Read only the last N records."),
]
CommitFor = Annotated[
    str,
    typer.Option(
        callback=not_empty, help="Commit offsets for this group; --from resume starts there."
    ),
]
OnlyPartition = Annotated[
    int | None, typer.Option(min=0, max=INT32, help="Read only this partition.")
]
Most = Annotated[
    int | None,
    typer.Option("--limit", min=0, max=INT64, metavar="N", help="Stop after printing N records."),
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Wait for new records at the log end.")
]
ByKey = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Print only records with this key.")
]
ByValue = Annotated[
    str | None,
    typer.Option(metavar="REGEX", help="Print only records whose value matches."),
]
ByHeader = Annotated[
    list[str],
    typer.Option(
        metavar="NAME[=VALUE]", help="Print only records with this header; may be repeated."
    ),
]
Level = Annotated[
    str,
    typer.Option(
        "--isolation-level",
        metavar="LEVEL",
        help="read_uncommitted, or read_committed without records of aborted and open "
        "transactions.",
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object per record, with offset, key and headers."),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        callback=not_empty,
        help=f"json, or a text with {FORMAT_HELP}.",
    ),
]


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[:0,1,...]")],
    start: From = "earliest",
    until: Until = None,
    tail: Tail = None,
    group: CommitFor = "",
    partition: OnlyPartition = None,
    at_most: Most = None,
    follow: Follow = False,
    key: ByKey = None,
    grep: ByValue = None,
    header: ByHeader = [],  # noqa: B006
    isolation: Level = "read_uncommitted",
    server: Server = LOCAL,
    as_lines: JsonLines = False,
    template: Template = None,
) -> None:
    """Print the values of a topic's records, merged by timestamp over partitions.

    Ends at the log end offsets of the start, unless --follow is given, which also continues at the
    next offset after a restart of the broker. Several filters must all match; --tail counts records
    before they are filtered.

    Examples:

      kafkawire consume orders --tail 10

      kafkawire consume orders --from -1h --grep 'error|failed' --json

      kafkawire consume orders:0,2 --key customer-17 --format '%T %k %s\\n'
    """
    try:
        chosen = _parse(topic, partition, start, until, tail, group, isolation, follow)
        filters = filters_of(key, grep, header)
        show = _printer(as_lines, template)
    except OptionError as error:
        fail(error, 2)

    with connect_cluster(server) as cluster:
        if group:
            _check_inactive(cluster, group)
        spans = spans_of(cluster, chosen)
        if chosen.tail is not None:
            narrow(cluster, spans, chosen.tail, chosen.isolation)
        reader = MergedReader(cluster, spans, isolation=chosen.isolation)
        outage = Outage(cluster) if follow else None
        try:
            _print_all(_items(reader, outage), filters, at_most, show, flush=follow)
        except KeyboardInterrupt:  # the usual way out of --follow
            pass
        except BrokenPipeError:  # `| head` has closed the pipe
            sys.stderr.close()
        if group:
            plan = {place: span.position for place, span in spans.items()}
            for place, text in commit_all(cluster, group, plan).items():
                raise ClientError(f"{place[0]}-{place[1]} of group {group}: {text}")


def _check_inactive(cluster: Cluster, group: str) -> None:
    """Raise ClientError if positions could not be committed at the end: the group has members."""
    advice = "stop them, or read without --group"
    active = active_sentence(call_coordinator(lambda: find_group(cluster, group)), advice)
    if active:
        raise ClientError(active)


def _parse(
    topic: str,
    partition: int | None,
    start: str,
    until: str | None,
    tail: int | None,
    group: str,
    isolation: str,
    follow: bool,
) -> ConsumeOptions:
    if isolation not in ISOLATION_LEVELS:
        raise OptionError("--isolation-level", isolation, " or ".join(ISOLATION_LEVELS))
    offset_type, value = parse_start(start)
    if offset_type in RESUMING and not group:
        raise OptionError("--from", start, "used together with --group")
    name, indexes = parse_partitions("TOPIC", topic)
    if partition is not None:
        if indexes is not None:
            raise OptionError("--partition", partition, f"left out, because of TOPIC={topic}")
        indexes = [partition]
    if until is not None and follow:
        raise OptionError("--until", until, "used without --follow")
    return ConsumeOptions(
        name,
        indexes,
        (offset_type, value),
        group,
        ISOLATION_LEVELS[isolation],
        follow,
        parse_until(until, offset_type, value),
        tail,
    )


def _printer(as_lines: bool, template: str | None) -> Printer:
    if template is not None and template != JSON:
        if as_lines:
            raise OptionError("--format", template, "used without --json")
        try:
            formatted = format_of(template)
        except RecordError as error:
            raise OptionError(
                "--format", template, f"a format of {FORMAT_HELP} ({error})"
            ) from None
        return lambda place, record: _write(formatted(place, record))
    if as_lines or template == JSON:
        return lambda place, record: print_json_line(as_json(place, record))
    return _print_value


def _write(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def _print_value(place: Partition, record: Record) -> None:
    value = record.value
    print("" if value is None else bytes(value).decode("utf-8", "replace"))


def _items(reader: MergedReader, outage: Outage | None) -> Iterator[Item]:
    """Yield the records up to the ends; with `outage` also those that arrive later."""
    if outage is None:
        yield from reader.read()
    else:
        yield from reader.read_through(outage)
        yield from reader.follow(outage)


def _print_all(
    items: Iterable[Item],
    filters: list[Filter],
    at_most: int | None,
    show: Printer,
    *,
    flush: bool,
) -> None:
    left = sys.maxsize if at_most is None else at_most
    if not left:
        return
    for place, record in items:
        if all(passes(record) for passes in filters):
            show(place, record)
            if flush:
                sys.stdout.flush()
            left -= 1
            if not left:
                return


def spans_of(cluster: Cluster, options: ConsumeOptions) -> Spans:
    """Return where to begin and to end in each partition."""
    led_by = select(cluster, [(options.topic, options.indexes)])
    known: dict[Partition, int] = {}
    if options.group:
        found = call_coordinator(lambda: fetch_committed_offsets(cluster, options.group))
        known = {place: at for place, (at, _) in found.items()}
    ends = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by, options.isolation)
    if options.until_ms is not None:
        by_time = dict.fromkeys(led_by, options.until_ms)
        for place, at in list_offsets(cluster, by_time, led_by).items():
            if 0 <= at < ends[place]:
                ends[place] = at
    spans: Spans = {}
    for place in sorted(led_by):
        source = LiveSource(cluster, place, led_by, known)
        try:
            reader = Subscription(source, *options.start, options.group)
        except OffsetOutOfRange as error:
            raise ClientError(f"{place[0]}-{place[1]}: {error}") from None
        spans[place] = OffsetSpan(led_by[place], reader.position, max(reader.position, ends[place]))
    return spans
