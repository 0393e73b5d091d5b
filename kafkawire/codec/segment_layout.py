"""The fixed parts of a segment file and what its sections say; drawn in kafkawire.codec.segment.

Reading trusts nothing: every count and length is checked against the bytes that are there, and
whatever does not fit is a FormatError, a sentence without the file's name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct

from crc32c import crc32c

from kafkawire.codec.types import Buffer

VERSION = 1
MAGIC = b"KWSEGMNT"
END_MAGIC = b"KWSEGEND"
HEADER_BYTES = 64
TRAILER_BYTES = 96
SECTION_HEAD_BYTES = 16
SECTIONS_AT_MOST = 100
"""So that the section table and the trailer are always in the last TAIL_BYTES: one read."""
TAIL_BYTES = 4096

DIRECTORY, INDEX, STATE = 1, 2, 3
SECTION_NAMES = {DIRECTORY: "directory", INDEX: "index", STATE: "state"}
SECTION_VERSIONS = {DIRECTORY: 1, INDEX: 1, STATE: 1}
REQUIRED = 1
"""Bit 0 of a section's flags: who does not know the section must not read the file."""

HEADER = Struct("<8sII16siIq16x")
TRAILER = Struct("<16sQQQQIIQI12xII8s")
SECTION_HEAD = Struct("<HHIQ")
SECTION = Struct("<HHIQQI4x")
_COUNTS = Struct("<II")
ENTRY = Struct("<QIIQQqqqQIIQII")
_TOPIC = Struct("<16sH")
_STATE = Struct("<QqIII")
_ABORTED = Struct("<qqq")

assert HEADER.size == HEADER_BYTES
assert TRAILER.size == TRAILER_BYTES
assert SECTION_HEAD.size == SECTION_HEAD_BYTES
assert SECTIONS_AT_MOST * SECTION.size + TRAILER_BYTES <= TAIL_BYTES


class FormatError(ValueError):
    """These bytes are no segment, or a damaged one."""


class NewerFormatError(FormatError):
    """A newer program wrote this, and this one must not guess what it means."""


@dataclass(frozen=True, slots=True)
class Header:
    """Who made the file, and when (ms since 1970)."""

    uuid: bytes
    node_id: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Section:
    """A row of the section table. `start`: of its head; `length`: of its body, behind the head."""

    kind: int
    version: int
    flags: int
    start: int
    length: int
    checksum: int

    @property
    def body_start(self) -> int:
        """Where the body begins in the file."""
        return self.start + SECTION_HEAD_BYTES

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.body_start + self.length

    @property
    def name(self) -> str:
        """In words."""
        return SECTION_NAMES.get(self.kind, f"section of type {self.kind}")

    @property
    def known(self) -> bool:
        """Whether this program can read it."""
        return 0 < self.version <= SECTION_VERSIONS.get(self.kind, 0)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last 96 bytes, and the section table before them."""

    uuid: bytes
    file_size: int
    batches_end: int
    partitions: int
    batches: int
    records: int
    sections: list[Section]

    def section(self, kind: int) -> Section:
        """The section of a type. FormatError if there is none this program can read."""
        for section in self.sections:
            if section.kind == kind and section.known:
                return section
        raise FormatError(f"it has no {SECTION_NAMES[kind]} this program can read")


@dataclass(slots=True)
class PartitionEntry:
    """What of one partition is in a segment; the content of an offset mapping.

    Its batches are the bytes [start, start + length) of the file; they cover the offsets
    [base_offset, end_offset), gaps allowed. The first batch may begin below `base_offset` (a log
    start within a batch). `max_timestamp`: -1 if there is none. The index is at `index_start`.
    """

    number: int
    topic_id: bytes
    topic: str
    index: int
    start: int
    length: int
    base_offset: int
    end_offset: int
    batches: int
    records: int
    max_timestamp: int
    index_start: int
    index_length: int
    index_checksum: int


@dataclass(slots=True)
class PartitionState:
    """What a reader without SQL needs of a partition, as of its end offset here.

    `leader_epochs` and `producers` are packed as in kafkawire.metadata.checkpoint; `aborted` are
    (producer id, first offset, last offset) of aborted transactions, sorted by last offset.
    """

    log_start: int = 0
    leader_epochs: bytes = b"\1"
    producers: bytes = b"\1"
    aborted: list[tuple[int, int, int]] = field(default_factory=list)


def write_header(header: Header) -> bytes:
    """The first 64 bytes of a file."""
    fields = (header.uuid, header.node_id, 0, header.created_ms)
    checksum = _header_sum(HEADER.pack(MAGIC, VERSION, 0, *fields))
    return HEADER.pack(MAGIC, VERSION, checksum, *fields)


def _header_sum(head: Buffer) -> int:
    """Of all but itself. It stays where it is in every version, so that a damaged version number
    is not taken for a newer program's."""
    view = memoryview(head)
    return crc32c(view[16:HEADER_BYTES], crc32c(view[:12]))


def read_header(head: Buffer) -> Header:
    """The other way. FormatError if this is not the beginning of a segment."""
    if len(head) < HEADER_BYTES:
        raise FormatError(f"it has {len(head)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, checksum, uuid, node_id, zero, created_ms = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise FormatError("it does not begin as a segment does")
    if _header_sum(head) != checksum:
        raise FormatError("its header is damaged")
    _check_version(version)
    if zero:
        raise FormatError("its header is damaged")
    return Header(uuid, node_id, created_ms)


def write_trailer(trailer: Trailer) -> bytes:
    """Section table and trailer."""
    table = b"".join(
        SECTION.pack(s.kind, s.version, s.flags, s.start, s.length, s.checksum)
        for s in trailer.sections
    )
    fields = (
        trailer.uuid,
        trailer.file_size,
        trailer.batches_end,
        trailer.batches,
        trailer.records,
        trailer.partitions,
        len(trailer.sections),
        trailer.file_size - TRAILER_BYTES - len(table),
        crc32c(table),
        VERSION,
    )
    checksum = crc32c(TRAILER.pack(*fields, 0, END_MAGIC)[:84])
    return table + TRAILER.pack(*fields, checksum, END_MAGIC)


def read_trailer(tail: Buffer, file_size: int) -> Trailer:
    """The trailer of a file of `file_size` bytes that ends with `tail` (TAIL_BYTES are enough).

    Raises FormatError if the file does not end as a whole segment does, NewerFormatError if a
    newer program wrote it or it has a section that must be known and is not.
    """
    size = len(tail)
    if size < TRAILER_BYTES or file_size < HEADER_BYTES + TRAILER_BYTES:
        raise FormatError(f"it has {file_size} bytes, too few for a segment")
    last = memoryview(tail)[size - TRAILER_BYTES :]
    fields = TRAILER.unpack(last)
    uuid, named_size, batches_end, batches, records, partitions, count, table_at = fields[:8]
    table_checksum, version, checksum, magic = fields[8:]
    if magic != END_MAGIC:
        raise FormatError("it does not end as a segment does: it was cut short or never finished")
    if crc32c(last[:84]) != checksum:
        raise FormatError("its trailer is damaged")
    _check_version(version)
    if named_size != file_size:
        raise FormatError(f"it has {file_size} bytes, its trailer says {named_size}")
    table_bytes = count * SECTION.size
    first = size - TRAILER_BYTES - table_bytes
    if count > SECTIONS_AT_MOST or table_at != file_size - TRAILER_BYTES - table_bytes:
        raise FormatError(f"its trailer speaks of {count} sections with a table at {table_at}")
    if first < 0:
        raise FormatError(f"its last {size} bytes do not hold the section table")
    table = memoryview(tail)[first : first + table_bytes]
    if crc32c(table) != table_checksum:
        raise FormatError("its section table is damaged")
    sections = [Section(*row) for row in SECTION.iter_unpack(table)]
    _check_sections(sections, batches_end, table_at)
    return Trailer(uuid, file_size, batches_end, partitions, batches, records, sections)


def _check_sections(sections: Sequence[Section], start: int, stop: int) -> None:
    """They fill [start, stop) back to back, and none must be known that is not."""
    if start < HEADER_BYTES:
        raise FormatError(f"its sections begin at {start}, within the header")
    for section in sections:
        if section.start != start or section.length > stop - start - SECTION_HEAD_BYTES:
            raise FormatError(f"its {section.name} is not where the one before ends")
        if section.flags & REQUIRED and not section.known:
            raise NewerFormatError(
                f"its {section.name} has version {section.version}, which this kafkawire does not "
                "know and must: start the newer version that wrote it"
            )
        start = section.stop
    if start != stop:
        raise FormatError(f"its sections end at {start}, their table begins at {stop}")


def _check_version(version: int) -> None:
    if version > VERSION:
        raise NewerFormatError(
            f"it has format version {version}, this kafkawire reads up to {VERSION}: "
            "start the newer version that wrote it"
        )
    if version != VERSION:
        raise FormatError(f"it has format version {version}, which never was")


def write_section(kind: int, flags: int, body: Buffer, start: int) -> tuple[bytes, Section]:
    """Head and body of a section at position `start`, and its row in the table."""
    head = SECTION_HEAD.pack(kind, SECTION_VERSIONS[kind], flags, len(body))
    data = head + body
    row = Section(kind, SECTION_VERSIONS[kind], flags, start, len(body), crc32c(data))
    return data, row


def section_body(section: Section, data: Buffer) -> memoryview:
    """The body of a section from its bytes (head and body), checked against the table."""
    view = memoryview(data)
    if len(view) != section.stop - section.start:
        raise FormatError(f"its {section.name} is cut short")
    head = SECTION_HEAD.pack(section.kind, section.version, section.flags, section.length)
    if crc32c(view) != section.checksum or view[:SECTION_HEAD_BYTES] != head:
        raise FormatError(f"its {section.name} is damaged")
    return view[SECTION_HEAD_BYTES:]


def write_directory(entries: Sequence[PartitionEntry]) -> bytes:
    """The body of the directory; `entries` in the order of their numbers."""
    topics: dict[tuple[bytes, str], int] = {}
    rows = [
        ENTRY.pack(
            e.number, topics.setdefault((e.topic_id, e.topic), len(topics)), e.index,
            e.start, e.length, e.base_offset, e.end_offset, e.max_timestamp,
            e.records, e.batches, e.index_checksum, e.index_start, e.index_length, 0,
        )
        for e in entries
    ]  # fmt: skip
    names = []
    for topic_id, topic in topics:
        name = topic.encode()
        names.append(_TOPIC.pack(topic_id, len(name)) + name)
    return _COUNTS.pack(len(entries), len(topics)) + b"".join(rows) + b"".join(names)


def read_directory(body: Buffer) -> list[PartitionEntry]:
    """The entries of a directory's body. FormatError for anything else.

    Checked: numbers rise, batches and indexes lie back to back from the header on, ranges are
    ranges. That they end where the trailer says is for `check_directory`.
    """
    size = len(body)
    if size < _COUNTS.size:
        raise FormatError("its directory is cut short")
    count, topic_count = _COUNTS.unpack_from(body)
    at = _COUNTS.size + count * ENTRY.size
    if at + topic_count * _TOPIC.size > size:
        raise FormatError(f"its directory speaks of {count} partitions, which it has no room for")
    topics = _read_topics(memoryview(body)[at:], topic_count)
    entries: list[PartitionEntry] = []
    number, start, index_start = -1, HEADER_BYTES, None
    for row in ENTRY.iter_unpack(memoryview(body)[_COUNTS.size : at]):
        if (
            row[0] <= number
            or row[1] >= topic_count
            or row[3] != start
            or row[5] > row[6]
            or (index_start is not None and row[11] != index_start)
            or (row[4] == 0) != (row[9] == 0)
        ):
            raise FormatError(f"its directory has a row for partition {row[0]} that cannot be")
        topic_id, topic = topics[row[1]]
        entries.append(
            PartitionEntry(
                row[0], topic_id, topic, row[2], row[3], row[4], row[5], row[6],
                row[9], row[8], row[7], row[11], row[12], row[10],
            )
        )  # fmt: skip
        number, start, index_start = row[0], start + row[4], row[11] + row[12]
    return entries


def _read_topics(body: memoryview, count: int) -> list[tuple[bytes, str]]:
    topics = []
    at = 0
    for _ in range(count):
        if at + _TOPIC.size > len(body):
            raise FormatError("its directory ends within the topic names")
        topic_id, length = _TOPIC.unpack_from(body, at)
        at += _TOPIC.size + length
        try:
            topics.append((topic_id, str(body[at - length : at], "utf-8")))
        except UnicodeDecodeError:
            raise FormatError("its directory has a topic name that is no text") from None
    if at != len(body):
        raise FormatError("its directory does not end where its topic names do")
    return topics


def check_directory(entries: Sequence[PartitionEntry], trailer: Trailer) -> None:
    """FormatError unless directory and trailer speak of the same file."""
    index = trailer.section(INDEX)
    start, stop = HEADER_BYTES, index.body_start
    if entries:
        start = entries[-1].start + entries[-1].length
        stop = entries[-1].index_start + entries[-1].index_length
        if entries[0].index_start != index.body_start:
            raise FormatError("its directory has indexes outside of the index")
    if start != trailer.batches_end or stop != index.stop:
        raise FormatError("its directory does not end where its trailer says")
    counts = (
        len(entries),
        sum(entry.batches for entry in entries),
        sum(entry.records for entry in entries),
    )
    if counts != (trailer.partitions, trailer.batches, trailer.records):
        raise FormatError("its directory and its trailer count differently")


def write_state(states: Sequence[tuple[int, PartitionState]]) -> bytes:
    """The body of the state section: (partition number, state), numbers rise."""
    parts = [_COUNTS.pack(len(states), 0)]
    for number, state in states:
        sizes = len(state.leader_epochs), len(state.producers), len(state.aborted)
        parts += [
            _STATE.pack(number, state.log_start, *sizes),
            state.leader_epochs,
            state.producers,
        ]
        parts += [_ABORTED.pack(*entry) for entry in state.aborted]
    return b"".join(parts)


def read_state(body: Buffer) -> dict[int, PartitionState]:
    """State by partition number. FormatError for anything `write_state` did not write."""
    view = memoryview(body)
    if len(view) < _COUNTS.size:
        raise FormatError("its state is cut short")
    count, _ = _COUNTS.unpack_from(view)
    at = _COUNTS.size
    states: dict[int, PartitionState] = {}
    for _ in range(count):
        if at + _STATE.size > len(view):
            raise FormatError("its state is cut short")
        number, log_start, epochs, producers, aborted = _STATE.unpack_from(view, at)
        at += _STATE.size
        stop = at + epochs + producers + aborted * _ABORTED.size
        if stop > len(view):
            raise FormatError(f"its state of partition {number} is cut short")
        middle = at + epochs
        last = middle + producers
        states[number] = PartitionState(
            log_start,
            bytes(view[at:middle]),
            bytes(view[middle:last]),
            [(a, b, c) for a, b, c in _ABORTED.iter_unpack(view[last:stop])],
        )
        at = stop
    if at != len(view) or len(states) != count:
        raise FormatError("its state does not end where its last partition does")
    return states
