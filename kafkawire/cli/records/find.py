"""`kafkawire find TOPIC --key K`: records by key, header and time, from a bucket, folder or broker.

Made of kafkawire.reading. Results are printed as they are found; progress, the cost of --explain
and damage go to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from kafkawire.cli.records.filters import Filter, filters_of
from kafkawire.cli.shared.outcomes import client_security
from kafkawire.cli.shared.output import fail, json_line
from kafkawire.cli.shared.parameters import (
    COMMITTED,
    INT64,
    LOCAL,
    Isolation,
    Server,
    not_empty,
)
from kafkawire.cli.shared.partitions import parse_partitions
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.source import SourceKind, parse_source
from kafkawire.cli.shared.times import parse_end, parse_time
from kafkawire.client.notation import OptionError, time_text
from kafkawire.client.record_text import as_json
from kafkawire.codec.batches import Record
from kafkawire.plural import count
from kafkawire.units import size

if TYPE_CHECKING:
    from kafkawire.progress import Progress
    from kafkawire.reading import DamagedData, OnDamage, TopicReader, TopicRecord

MAX_KEY_BYTES = 1 << 28
"""A quarter of a gigabyte, more than max.message.bytes is ever set to."""
LONG_S = 1.0
"""Progress is shown from this long after the first part of the search."""
LEVELS = (COMMITTED, "read_uncommitted")


@dataclass(frozen=True, slots=True)
class FindOptions:
    """Options of the command, parsed. `key` None: any key."""

    topic: str
    partitions: list[int] | None
    key: bytes | None
    filters: list[Filter]
    since_ms: int | None
    until_ms: int | None
    stored_from_ms: int | None
    stored_to_ms: int | None
    limit: int | None
    latest: bool


ByKey = Annotated[str | None, typer.Option(metavar="TEXT", help="Key of the records.")]
KeyFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File whose bytes are the key; - is standard input."),
]
SearchedSource = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT|DIR|URL",
        callback=not_empty,
        help="Broker, data folder of a stopped broker, or s3://BUCKET/PREFIX. "
        "[default: the broker of --server]",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Only records from this time on."),
]
Until = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Stop before this time; +5m: so long after --from."),
]
StoredFrom = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only records stored from this time on, to the second, whatever their timestamps; "
        "with --source DIR or URL.",
    ),
]
StoredTo = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only records stored before this time; +5m: so long after --stored-from.",
    ),
]
ByHeader = Annotated[
    list[str],
    typer.Option(metavar="NAME[=VALUE]", help="Only records with this header; may be repeated."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, max=INT64, metavar="N", help="Stop after N records.")
]
Latest = Annotated[
    bool, typer.Option("--latest", help="Only the last record with the key, found from the end.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print requests, bytes and times at the end.")
]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per record, as consume does.")
]


def find(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[:0,1,...]")],
    key: ByKey = None,
    key_file: KeyFile = None,
    source: SearchedSource = "",
    since: Since = None,
    until: Until = None,
    stored_from: StoredFrom = None,
    stored_to: StoredTo = None,
    header: ByHeader = [],  # noqa: B006
    limit: Limit = None,
    latest: Latest = False,
    explain: Explain = False,
    isolation: Isolation = COMMITTED,
    server: Server = LOCAL,
    as_lines: JsonLines = False,
) -> None:
    """Find records by key, header and time.

    Prints partition, offset, time and value of each record as soon as it is found. A bucket has the
    records that were uploaded; the data folder of a stopped broker has all, and the broker cannot
    start while it is read. Exit code 1 if no record is found or some could not be read.

    Examples:

      kafkawire find orders --key 4711

      kafkawire find orders --key 4711 --source s3://bucket/prefix --explain

      kafkawire find orders --header type=refund --from 2026-01-31T12:00 --until +5m --json
    """
    try:
        stored = stored_from, stored_to
        chosen = _parse(topic, key, key_file, since, until, stored, header, limit, latest)
        kind = parse_source("--source" if source else "--server", source or server)
        for option, value in zip(("--stored-from", "--stored-to"), stored, strict=True):
            # Kafka's protocol has no store times.
            if value is not None and kind.kind is SourceKind.BROKER:
                allowed = "used with --source, a data folder, or s3://BUCKET/PREFIX"
                raise OptionError(option, value, allowed)
        if isolation not in LEVELS:
            raise OptionError("--isolation-level", isolation, " or ".join(LEVELS))
    except OptionError as error:
        fail(error, 2)
    damaged: list[DamagedData] = []
    with _open_reader(source, server, isolation, damaged, explain) as reader:
        try:
            shown = _print_all(reader, chosen, as_lines)
        except BrokenPipeError:  # `| head` has closed the pipe
            sys.stderr.close()
            return
    if damaged:
        what = count(len(damaged), "range of offsets", "ranges of offsets")
        fail(f"{what} of {topic} could not be read")
    if not shown:
        fail(f"no record of {topic} matches")


def _print_all(reader: TopicReader, chosen: FindOptions, as_lines: bool) -> int:
    """Print the records as they are found, and name those that the source does not have; return
    how many were printed."""
    # On a terminal the progress bar has replaced sys.stdout, and moves below the line.
    out = None if sys.stdout.isatty() else sys.stdout
    shown = 0
    for found in _find_records(reader, chosen):
        _show(found, as_lines, out or sys.stdout)
        shown += 1
    for each in reader.unread(chosen.topic):
        print(
            f"kafkawire: {chosen.topic}:{each.partition} has offsets [{each.start}, {each.end}) "
            "in journals only: a broker uses them, or they cannot be read; name it by --source",
            file=sys.stderr,
        )
    return shown


def _parse(
    topic: str,
    key: str | None,
    key_file: str | None,
    since: str | None,
    until: str | None,
    stored: tuple[str | None, str | None],
    headers: list[str],
    limit: int | None,
    latest: bool,
) -> FindOptions:
    from kafkawire.cli.records.consume import now_ms

    now = now_ms()
    name, indexes = parse_partitions("TOPIC", topic)
    since_ms = None if since is None else parse_time("--from", since, now)
    until_ms = None if until is None else parse_end("--until", until, since_ms, now)
    if key is not None and key_file is not None:
        raise OptionError("--key-file", key_file, "left out, because of --key")
    stored_from = None if stored[0] is None else parse_time("--stored-from", stored[0], now)
    stored_to = None
    if stored[1] is not None:
        stored_to = parse_end("--stored-to", stored[1], stored_from, now, "--stored-from")
    if {since, until, key, key_file, *stored} == {None} and not headers:
        allowed = "--key-file, --header, --from, --until, --stored-from and --stored-to"
        raise OptionError("--key", "", f"given, or one of {allowed}")
    if latest and key is None and key_file is None:
        raise OptionError("--latest", "", "used together with --key or --key-file")
    for option, value in (
        ("--from", since),
        ("--until", until),
        ("--stored-from", stored[0]),
        ("--stored-to", stored[1]),
        ("--header", headers),
    ):
        if latest and value:
            raise OptionError(option, value, "used without --latest")
    wanted = _key_of(key_file) if key_file is not None else None
    if key is not None:
        wanted = key.encode("utf-8", "surrogateescape")
    filters = filters_of(None, None, headers)
    times = since_ms, until_ms, stored_from, stored_to
    return FindOptions(name, indexes, wanted, filters, *times, limit, latest)


def _key_of(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(MAX_KEY_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_KEY_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError("--key-file", path, f"a file that can be read ({reason})") from None
    if len(data) > MAX_KEY_BYTES:
        raise OptionError("--key-file", path, f"a file of at most {size(MAX_KEY_BYTES)}")
    return data


@contextmanager
def _open_reader(
    source: str, server: str, isolation: str, damaged: list[DamagedData], explain: bool
) -> Iterator[TopicReader]:
    """Open the source, and print at the end what it took. A source that does not exist or has no
    such topic ends the command with exit code 2, other failures with 1."""
    from kafkawire.reading import SourceError, UnknownName

    def on_damage(error: DamagedData) -> None:
        damaged.append(error)
        print(f"kafkawire: {error}", file=sys.stderr)

    try:
        began = time.perf_counter()
        with (
            bars() as shown,
            _open(source, server, isolation, on_damage, LongProgress(shown)) as reader,
        ):
            opened = time.perf_counter()
            yield reader
            spent, ended = reader.traffic(), time.perf_counter()
    except UnknownName as error:
        fail(error, 2)
    except SourceError as error:
        fail(error)
    if explain:
        for each in spent:
            cost = f"{count(each.requests, 'request')}, {size(each.size_bytes)}"
            print(f"{each.source}: {cost}", file=sys.stderr)
        times = f"opened in {_ms(opened - began)}, searched in {_ms(ended - opened)}"
        print(times, file=sys.stderr)


class LongProgress:
    """Progress that is shown only if the search takes longer than LONG_S."""

    def __init__(self, shown: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = shown
        self._clock = clock
        self._began: float | None = None
        self._is_long = False

    def __call__(self, what: str, done: int, of: int) -> None:
        """Pass the progress on, see kafkawire.progress."""
        now = self._clock()
        self._began = now if self._began is None else self._began
        self._is_long = self._is_long or (now - self._began >= LONG_S and done < of)
        if self._is_long:
            self._shown(what, done, of)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _open(
    source: str,
    server: str,
    isolation: str,
    harmed: OnDamage,
    progress: Progress,
) -> TopicReader:
    from kafkawire.reading import open_broker, open_bucket

    try:
        kind = parse_source("--source" if source else "--server", source or server)
    except OptionError as error:
        fail(error, 2)
    if kind.kind is SourceKind.BROKER:
        return open_broker(
            kind.text,
            isolation=isolation,
            security=client_security(),
            on_damage=harmed,
            progress=progress,
        )
    from kafkawire.reading.files.manifests import NothingThere  # imports numpy

    try:
        return open_bucket(kind.text, isolation=isolation, on_damage=harmed, progress=progress)
    except NothingThere as error:
        fail(error, 2)


def _find_records(reader: TopicReader, chosen: FindOptions) -> Iterable[TopicRecord]:
    if chosen.latest:
        assert chosen.key is not None, "parsed"
        last = reader.latest(chosen.topic, chosen.key, partitions=chosen.partitions)
        return [last] if last is not None else []
    if chosen.key is None:
        found = reader.read(
            chosen.topic,
            partitions=chosen.partitions,
            since=chosen.since_ms,
            until=chosen.until_ms,
            stored_since=chosen.stored_from_ms,
            stored_until=chosen.stored_to_ms,
        )
    else:
        found = reader.find(
            chosen.topic,
            chosen.key,
            partitions=chosen.partitions,
            since=chosen.since_ms,
            until=chosen.until_ms,
            stored_since=chosen.stored_from_ms,
            stored_until=chosen.stored_to_ms,
        )
    passed = (each for each in found if all(passes(_plain(each)) for passes in chosen.filters))
    return islice(passed, chosen.limit)


def _plain(found: TopicRecord) -> Record:
    return Record(found.offset, found.timestamp, found.key, found.value, found.headers)


def _show(found: TopicRecord, as_lines: bool, out: TextIO) -> None:
    """Print a record at once."""
    if as_lines:
        line = json_line(as_json((found.topic, found.partition), _plain(found)))
    else:
        value = b"" if found.value is None else found.value
        moment = time_text(found.timestamp) or str(found.timestamp)
        text = value.decode("utf-8", "replace")
        line = f"{found.topic}:{found.partition} {found.offset} {moment} {text}"
    print(line, file=out, flush=True)
