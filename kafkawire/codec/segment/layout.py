"""Header, section table and trailer of a segment file, laid out in kafkawire.codec.segment.format.

Every count and length that is read is checked against the available bytes; invalid input is a
FormatError, one sentence without the file's name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.types import Buffer
from kafkawire.crc32c import crc32c

VERSION = 1
MAGIC = b"KWSEGMNT"
END_MAGIC = b"KWSEGEND"
HEADER_BYTES = 64
TRAILER_BYTES = 96
SECTION_HEAD_BYTES = 16
MAX_SECTIONS = 100
"""So that the section table and the trailer are always in the last TAIL_BYTES: one read."""
TAIL_BYTES = 4096

DIRECTORY, INDEX, STATE, ORIGIN, LOST, KEYS, STORED = 1, 2, 3, 4, 5, 6, 7
SECTION_NAMES = {
    DIRECTORY: "directory", INDEX: "index", STATE: "state", ORIGIN: "origin", LOST: "lost ranges",
    KEYS: "key index", STORED: "store times",
}  # fmt: skip
SECTION_VERSIONS = {DIRECTORY: 1, INDEX: 1, STATE: 1, ORIGIN: 1, LOST: 1, KEYS: 1, STORED: 1}
REQUIRED = 1
"""Bit 0 of a section's flags: who does not know the section must not read the file."""

HEADER = Struct("<8sII16siIq16x")
TRAILER = Struct("<16sQQQQIIQI12xII8s")
SECTION_HEAD = Struct("<HHIQ")
SECTION = Struct("<HHIQQI4x")

assert HEADER.size == HEADER_BYTES
assert TRAILER.size == TRAILER_BYTES
assert SECTION_HEAD.size == SECTION_HEAD_BYTES
assert MAX_SECTIONS * SECTION.size + TRAILER_BYTES <= TAIL_BYTES


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a file: its writer, and its creation time (ms since 1970)."""

    uuid: bytes
    node_id: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class Section:
    """A row of the section table. `start`: position of the head; `length`: of the body after the
    head."""

    kind: int
    version: int
    flags: int
    start: int
    length: int
    checksum: int

    @property
    def body_start(self) -> int:
        """Position of the body in the file."""
        return self.start + SECTION_HEAD_BYTES

    @property
    def stop(self) -> int:
        """Position after the section."""
        return self.body_start + self.length

    @property
    def name(self) -> str:
        return SECTION_NAMES.get(self.kind, f"section of type {self.kind}")

    @property
    def known(self) -> bool:
        """True if this version can read the section."""
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
        """Return the section of a type. FormatError if there is none this version can read."""
        section = self.optional(kind)
        if section is None:
            raise FormatError(f"it has no {SECTION_NAMES[kind]} this program can read")
        return section

    def optional(self, kind: int) -> Section | None:
        """Return the section of a type; None if there is none this version can read."""
        for section in self.sections:
            if section.kind == kind and section.known:
                return section
        return None


def write_header(header: Header) -> bytes:
    fields = (header.uuid, header.node_id, 0, header.created_ms)
    checksum = _header_sum(HEADER.pack(MAGIC, VERSION, 0, *fields))
    return HEADER.pack(MAGIC, VERSION, checksum, *fields)


def _header_sum(head: Buffer) -> int:
    """Return the checksum of the header without its own field."""
    view = memoryview(head)
    return crc32c(view[16:HEADER_BYTES], crc32c(view[:12]))


def read_header(head: Buffer) -> Header:
    """Decode a header. FormatError if the bytes are not the start of a segment."""
    if len(head) < HEADER_BYTES:
        raise FormatError(f"it has {len(head)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, checksum, uuid, node_id, zero, created_ms = HEADER.unpack_from(head)
    if magic != MAGIC:
        raise FormatError("it does not begin as a segment does")
    if _header_sum(head) != checksum:
        raise FormatError("its header is damaged")
    # After the checksum, whose position is the same in every version: so a damaged version number
    # is not mistaken for a newer version.
    _check_version(version)
    if zero:
        raise FormatError("its header is damaged")
    return Header(uuid, node_id, created_ms)


def write_trailer(trailer: Trailer) -> bytes:
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
    """Decode the trailer of a file of `file_size` bytes that ends with `tail` (TAIL_BYTES are
    enough).

    FormatError if the file does not end as a complete segment does, NewerFormatError if a newer
    version wrote it or it has an unknown section that is marked as mandatory.
    """
    size = len(tail)
    # Sizes first: everything below is at a fixed distance from the end.
    if size < TRAILER_BYTES or file_size < HEADER_BYTES + TRAILER_BYTES:
        raise FormatError(f"it has {file_size} bytes, too few for a segment")
    last = memoryview(tail)[size - TRAILER_BYTES :]
    fields = TRAILER.unpack(last)
    uuid, named_size, batches_end, batches, records, partitions, count, table_at = fields[:8]
    table_checksum, version, checksum, magic = fields[8:]
    # The magic is the last thing that a writer writes: a file without it was never finished.
    if magic != END_MAGIC:
        raise FormatError("it does not end as a segment does: it was cut short or never finished")
    if crc32c(last[:84]) != checksum:
        raise FormatError("its trailer is damaged")
    _check_version(version)
    if named_size != file_size:
        raise FormatError(f"it has {file_size} bytes, its trailer says {named_size}")
    table_bytes = count * SECTION.size
    first = size - TRAILER_BYTES - table_bytes
    # The bound is the writer's: with it the table is always in the last TAIL_BYTES.
    if count > MAX_SECTIONS or table_at != file_size - TRAILER_BYTES - table_bytes:
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
    """Check that the sections fill [start, stop) back to back, and that no mandatory one is
    unknown."""
    if start < HEADER_BYTES:
        raise FormatError(f"its sections begin at {start}, within the header")
    for section in sections:
        # Back to back, so no byte of the file is unaccounted for.
        if section.start != start or section.length > stop - start - SECTION_HEAD_BYTES:
            raise FormatError(f"its {section.name} is not where the one before ends")
        # Others that are not known are skipped: their writer says that one can.
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
    """Encode head and body of a section at position `start`, and its row in the table."""
    head = SECTION_HEAD.pack(kind, SECTION_VERSIONS[kind], flags, len(body))
    # The checksum covers the head too: a body cannot be taken for another section's.
    data = head + body
    row = Section(kind, SECTION_VERSIONS[kind], flags, start, len(body), crc32c(data))
    return data, row


def section_body(section: Section, data: Buffer) -> memoryview:
    """Return the body of a section from its bytes (head and body), checked against the table."""
    view = memoryview(data)
    if len(view) != section.stop - section.start:
        raise FormatError(f"its {section.name} is cut short")
    # The head repeats what the table says; both must agree.
    head = SECTION_HEAD.pack(section.kind, section.version, section.flags, section.length)
    if crc32c(view) != section.checksum or view[:SECTION_HEAD_BYTES] != head:
        raise FormatError(f"its {section.name} is damaged")
    return view[SECTION_HEAD_BYTES:]
