"""`kafkawire produce TOPIC`: append records from lines of standard input or files."""

from __future__ import annotations

import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Annotated

import typer

from kafkawire.cli.shared.options import parse_choice
from kafkawire.cli.shared.outcomes import connect_cluster, fail_unless
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT32, LOCAL, Server, not_empty
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError, split_pair
from kafkawire.client.offsets import Partition, leaders
from kafkawire.client.producer import Failure, Producer
from kafkawire.client.record_text import Parsed, RecordError, encode_utf8, record_of
from kafkawire.codec.batches import Record
from kafkawire.codec.compression import CODEC_NAMES
from kafkawire.codec.murmur2 import key_partition
from kafkawire.plural import count

# Lines of standard input and files as bytes, with bounded memory.


MAX_LINE_BYTES = 64 << 20
"""Bytes of a line or file that becomes a record: far more than brokers accept."""
CHUNK_BYTES = 256 << 10
IDLE_S = 0.1
"""Time without input after which the caller sends what it has collected."""
STANDARD = "-"


def lines_of(
    files: Sequence[str], idle: Callable[[], None], *, whole: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Yield (place, line without its end) of files, of standard input without any; each file as one
    with `whole`. `idle` is called while standard input has nothing. ClientError for a line that is
    too long or a file that cannot be read."""
    for name in files or [STANDARD]:
        with _open_input(name) as stream:
            try:
                if whole:
                    yield name, _all(name, stream)
                    continue
                prefix = "line" if len(files) < 2 else f"{name}, line"
                for number, line in enumerate(_lines(stream, idle), 1):
                    yield f"{prefix} {number}", line
            except OSError as error:
                raise ClientError(f"{name} cannot be read: {error.strerror}") from None


def check_files(files: Sequence[str]) -> None:
    """Check, before the first line is read, that every file can be read: a wrong second name must
    not be found after the records of the first file are stored. Opens none, as a pipe can be opened
    only once. Raises OptionError."""
    for name in files:
        if name == STANDARD:
            continue
        readable = bool(name) and "\0" not in name and os.access(name, os.R_OK)
        if not readable or os.path.isdir(name):
            raise OptionError("FILE", name, "a file that can be read, or - for standard input")


@contextmanager
def _open_input(name: str) -> Iterator[IO[bytes]]:
    if name == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        stream = open(name, "rb")  # noqa: SIM115  (closed below)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClientError(f"{name} cannot be read: {reason}") from None
    with stream:
        yield stream


def _all(name: str, stream: IO[bytes]) -> bytes:
    data = stream.read(MAX_LINE_BYTES + 1)
    if len(data) > MAX_LINE_BYTES:
        raise ClientError(f"{name} is larger than {MAX_LINE_BYTES >> 20} MiB")
    return data


def _lines(stream: IO[bytes], idle: Callable[[], None]) -> Iterator[bytes]:
    rest = bytearray()
    number = 1
    for chunk in _chunks(stream, idle):
        searched = len(rest)  # has no line end
        rest += chunk
        begin = 0
        while (end := rest.find(b"\n", max(begin, searched))) >= 0:
            yield bytes(rest[begin:end])
            begin, number = end + 1, number + 1
        del rest[:begin]
        if len(rest) > MAX_LINE_BYTES:
            raise ClientError(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB")
    if rest:
        yield bytes(rest)


def _chunks(stream: IO[bytes], idle: Callable[[], None]) -> Iterator[bytes]:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        descriptor = -1
    while True:
        if descriptor < 0:
            chunk = stream.read(CHUNK_BYTES)
        else:
            if not select.select([descriptor], [], [], IDLE_S)[0]:
                idle()
                select.select([descriptor], [], [])
            chunk = os.read(descriptor, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
MAX_SHOWN = 10
"""Reasons of failed records that are printed; all are counted."""
STICKY_RECORDS = 1000
"""Records without a key that go to one partition before the next: they share batches."""

Parser = Callable[[bytes], Parsed]


class Failures:
    """Counts records that were not stored, and prints the first reasons on standard error."""

    def __init__(self) -> None:
        self.count = 0
        self._shown = 0

    def add(self, where: str, reason: str, records: int = 1) -> None:
        """Report some records."""
        self.count += records
        self._shown += 1
        if self._shown <= MAX_SHOWN:
            print(f"kafkawire: {where}: {reason}", file=sys.stderr)

    def batch(self, failure: Failure) -> None:
        """Report the records of a batch by their numbers."""
        first, last = failure.numbers[0], failure.numbers[-1]
        where = f"record {first}" if first == last else f"records {first} to {last}"
        self.add(where, failure.reason, len(failure.numbers))


@dataclass(slots=True)
class Chooser:
    """Chooses partitions: the given one, else by key as Kafka's clients, else one after another."""

    topic: str
    partitions: int
    fixed: int | None = None
    _sent: int = 0
    _current: int = -1

    def choose(self, key: bytes | None, wanted: int | None) -> Partition:
        """Return the partition of a record. RecordError if there is none of this number."""
        index = self.fixed if wanted is None else wanted
        if index is None:
            index = self._next() if key is None else key_partition(key, self.partitions)
        if index >= self.partitions:
            raise RecordError(f"topic {self.topic} has no partition {index}")
        return self.topic, index

    def _next(self) -> int:
        if self._sent % STICKY_RECORDS == 0:
            self._current = (
                random.randrange(self.partitions)
                if self._current < 0
                else (self._current + 1) % self.partitions
            )
        self._sent += 1
        return self._current


Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE...]", help="Files to read; standard input if none is named."),
]
Key = Annotated[str | None, typer.Option(metavar="TEXT", help="Key of every record.")]
Separator = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Separator of key and value in a line."),
]
Headers = Annotated[
    list[str],
    typer.Option(metavar="NAME=VALUE", help="Header of every record; may be repeated."),
]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Lines are JSON objects, as printed by consume --json: only "value" is required.',
    ),
]
Whole = Annotated[
    bool, typer.Option("--whole", help="Each file is one record instead of each line.")
]
EmptyAsNull = Annotated[
    bool, typer.Option("--empty-as-null", "-Z", help="An empty value is null: a tombstone.")
]
FixedPartition = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=INT32,
        help="Partition of every record. [default: by key, as Kafka's clients]",
    ),
]
Compression = Annotated[
    str, typer.Option(metavar="TYPE", help=f"Compression: {', '.join(CODEC_NAMES)}.")
]
Acks = Annotated[str, typer.Option(metavar="ACKS", help="all, 1 or 0 (nothing is acknowledged).")]
Idempotent = Annotated[
    bool,
    typer.Option(
        "--idempotent/--not-idempotent",
        help="Store a batch once, even if it is sent again; needs acks=all.",
    ),
]


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", callback=not_empty)],
    files: Files = None,
    key: Key = None,
    key_separator: Separator = None,
    header: Headers = [],  # noqa: B006
    as_lines: JsonLines = False,
    whole: Whole = False,
    empty_as_null: EmptyAsNull = False,
    partition: FixedPartition = None,
    compression: Compression = "none",
    acks: Acks = "all",
    idempotent: Idempotent = True,
    server: Server = LOCAL,
) -> None:
    """Append records to a topic, one per line of standard input or files.

    Records that fail are reported and counted; the others are stored. Exit code 1 if any failed.

    Examples:

      echo hello | kafkawire produce orders

      kafkawire produce orders --key-separator : --header source=shell lines.txt

      kafkawire consume orders --json | kafkawire produce copy --json --compression zstd
    """
    try:
        codec, level = parse_codec(compression), parse_acks(acks)
        parse = _parser(key, key_separator, header, as_lines, empty_as_null)
        check_files(files or [])
    except OptionError as error:
        fail(error, 2)

    with connect_cluster(server) as cluster:
        partitions = len(leaders(cluster, [topic]))
        failures = Failures()
        producer = Producer(
            cluster, failed=failures.batch, codec=codec, acks=level, idempotent=idempotent
        )
        chooser = Chooser(topic, partitions, partition)
        if partition is not None and partition >= partitions:
            raise ClientError(f"topic {topic} has no partition {partition}")
        try:
            for number, (where, line) in enumerate(
                lines_of(files or [], producer.flush, whole=whole), 1
            ):
                _send(producer, chooser, parse, failures, number, where, line)
        finally:
            producer.flush()
            print_summary(topic, producer, failures)
        fail_unless(not failures.count)


def parse_codec(text: str) -> int:
    """Return the number of a compression. OptionError."""
    return CODEC_NAMES.index(parse_choice("--compression", text, CODEC_NAMES))


def parse_acks(text: str) -> int:
    """Return the number of acks. OptionError."""
    return ACKS[parse_choice("--acks", text, tuple(ACKS))]


def _send(
    producer: Producer,
    chooser: Chooser,
    parse: Parser,
    failures: Failures,
    number: int,
    where: str,
    line: bytes,
) -> None:
    try:
        parsed = parse(line)
    except RecordError as error:
        failures.add(where, str(error))
        return
    append_parsed(producer, chooser, failures, number, where, parsed)


def append_parsed(
    producer: Producer,
    chooser: Chooser,
    failures: Failures,
    number: int,
    where: str,
    parsed: Parsed,
) -> None:
    """Send a record to its partition, or the chosen one. `number` and `where`: of the record, for
    reports of failures."""
    try:
        place = chooser.choose(parsed.key, parsed.partition)
    except RecordError as error:
        failures.add(where, str(error))
        return
    at_ms = time.time_ns() // 1_000_000 if parsed.timestamp is None else parsed.timestamp
    producer.send(place, Record(0, at_ms, parsed.key, parsed.value, parsed.headers), number)


def _parser(
    key: str | None, separator: str | None, headers: list[str], as_lines: bool, null: bool
) -> Parser:
    if key is not None and separator is not None:
        raise OptionError("--key", key, "used without --key-separator")
    if separator is not None and (not separator or as_lines):
        allowed = "used without --json" if separator else "at least one character"
        raise OptionError("--key-separator", separator, allowed)
    fixed = None if key is None else _bytes("--key", key)
    added: list[tuple[str, bytes | None]] = []
    for text in headers:
        name, value = split_pair("--header", text)
        _bytes("--header", name)
        added.append((name, _bytes("--header", value)))
    mark = None if separator is None else _bytes("--key-separator", separator)

    def of_json(line: bytes) -> Parsed:
        try:
            parsed = record_of(line.decode("utf-8"))
        except UnicodeDecodeError:
            raise RecordError("it is not UTF-8") from None
        own = parsed.key if fixed is None else fixed
        return parsed._replace(key=own, headers=[*parsed.headers, *added])

    def of_line(line: bytes) -> Parsed:
        own, value = fixed, line
        if mark is not None:
            own, found, value = line.partition(mark)
            if not found:
                raise RecordError(f"it has no separator {separator!r} between key and value")
        return Parsed(own, None if null and not value else value, list(added))

    return of_json if as_lines else of_line


def _bytes(option: str, text: str) -> bytes:
    try:
        return encode_utf8(option, text)
    except RecordError:
        raise OptionError(option, ascii(text), "valid Unicode") from None


def print_summary(topic: str, producer: Producer, failures: Failures) -> None:
    """Print how many records were stored, and where."""
    if failures.count:
        whole = producer.stored + failures.count
        print(f"kafkawire: {failures.count:,} of {count(whole, 'record')} failed", file=sys.stderr)
    places = [
        f"{topic}:{index} {producer.first[topic, index]}-{producer.last[topic, index]}"
        for _, index in sorted(producer.first)
    ]
    more = [f"{len(places) - MAX_SHOWN} more"] if len(places) > MAX_SHOWN else []
    where = f" (offsets {', '.join(places[:MAX_SHOWN] + more)})" if places else ""
    if producer.stored:
        print(f"{count(producer.stored, 'record')} produced to {topic}{where}")
