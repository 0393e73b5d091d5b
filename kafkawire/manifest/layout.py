"""The frame of a manifest file, format version 1: header, table, sections.

    +-----------------------+ 0
    | header                | 32 bytes
    +-----------------------+ 32
    | section table         | 32 bytes for each section
    +-----------------------+
    | sections              | in the order of the table, nothing between them
    +-----------------------+ file size

    header      0 magic "KWMANIFS"      8 version u32            12 checksum u32 (of 0-11, 16-31
               16 file size u64        24 kind u32 (1 delta,        and the section table)
               28 sections u32            2 snapshot)

    table row   0 type u16              2 version u16             4 flags u32 (1: must be known,
                8 stored length u64    16 body length u64            2: stored as a zstd frame)
               24 rows u32             28 checksum u32 (of what is stored)

Integers are little-endian, checksums CRC-32C. `format` encodes the sections;
docs/manifest-format.md describes everything in full. Input is fully validated: malformed bytes
raise FormatError with a sentence without the file's name. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

from kafkawire.codec.compression import ZSTD, compress, decompress
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.crc32c import crc32c

VERSION = 1
MAGIC = b"KWMANIFS"
HEADER = Struct("<8sIIQII")
HEADER_BYTES = HEADER.size
ROW = Struct("<HHIQQII")
MAX_SECTIONS = 100
MAX_BODY_BYTES = 1 << 32
"""Maximum size of one decompressed section: 50 million entries."""
PACKED_FROM_BYTES = 4096
"""Sections below this size are not compressed."""

MAX_HEAD_BYTES = HEADER_BYTES + MAX_SECTIONS * ROW.size
"""Maximum size of header and section table."""

DELTA, SNAPSHOT = 1, 2
KINDS = {DELTA: "delta", SNAPSHOT: "snapshot"}
HEAD, TOPICS, DELETED_TOPICS, PARTITIONS, OBJECTS, ENTRIES, DELETED = range(1, 8)
SECTION_NAMES = {
    HEAD: "head", TOPICS: "topics", DELETED_TOPICS: "deleted topics", PARTITIONS: "partitions",
    OBJECTS: "objects", ENTRIES: "entries", DELETED: "deleted objects",
}  # fmt: skip
SECTION_VERSION = 1
REQUIRED, PACKED = 1, 2

assert (HEADER_BYTES, ROW.size) == (32, 32)


@dataclass(frozen=True, slots=True)
class ManifestSection:
    """One section: number of rows, and the decompressed body."""

    kind: int
    rows: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the section table; the section is at `stored` in the file."""

    kind: int
    version: int
    flags: int
    stored: memoryview
    length: int
    rows: int
    checksum: int

    @property
    def name(self) -> str:
        """The name of the section type."""
        return f"{SECTION_NAMES.get(self.kind, f'type {self.kind}')} section"

    @property
    def known(self) -> bool:
        """Whether this program can read it."""
        return self.kind in SECTION_NAMES and self.version == SECTION_VERSION

    def check(self) -> None:
        """Raise FormatError if the checksum is wrong."""
        if crc32c(self.stored) != self.checksum:
            raise FormatError(f"its {self.name} is damaged")

    def body(self) -> memoryview:
        """Return the verified and decompressed body."""
        self.check()
        if not self.flags & PACKED:
            return self.stored
        try:
            body = memoryview(decompress(ZSTD, self.stored, self.length))
        except KafkaError:
            raise FormatError(f"its {self.name} cannot be unpacked") from None
        if len(body) != self.length:
            raise FormatError(f"its {self.name} unpacks to {len(body)} bytes, not {self.length}")
        return body


def write_file(kind: int, sections: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Return the file of some sections, (type, rows, body) each. The result is deterministic."""
    table: list[bytes] = []
    stored: list[bytes] = []
    for section, rows, body in sections:
        flags, data = REQUIRED, body
        if len(body) >= PACKED_FROM_BYTES:
            packed = bytes(compress(ZSTD, body))
            if len(packed) < len(body):
                flags, data = REQUIRED | PACKED, packed
        row = (section, SECTION_VERSION, flags, len(data), len(body), rows, crc32c(data))
        table.append(ROW.pack(*row))
        stored.append(data)
    rest = b"".join(table)
    size = HEADER_BYTES + len(rest) + sum(map(len, stored))
    head = HEADER.pack(MAGIC, VERSION, 0, size, kind, len(sections))
    head = HEADER.pack(MAGIC, VERSION, _header_sum(head, rest), size, kind, len(sections))
    return b"".join((head, rest, *stored))


def _header_sum(head: bytes | memoryview, table: bytes | memoryview) -> int:
    """Return the checksum of the header without its own field. Its position is the same in every
    version, so that a damaged version number is not taken for a newer version."""
    view = memoryview(head)
    return crc32c(table, crc32c(view[16:HEADER_BYTES], crc32c(view[:12])))


def read_table(data: bytes | memoryview) -> tuple[int, list[TableRow]]:
    """Return (kind, section table) of a file. Raises NewerFormatError if a newer program wrote it,
    or it has an unknown mandatory section."""
    view = memoryview(data).cast("B")
    size, kind, stop = _read_head(view)
    if size != len(view):
        raise FormatError(f"it has {len(view)} bytes, its header says {size}")
    if kind not in KINDS:
        raise FormatError(f"it is of kind {kind}; 1 (delta) and 2 (snapshot) are known")
    return kind, _read_rows(view, stop)


def refuse_newer(head: bytes) -> None:
    """Raise NewerFormatError as `read_table` does. `head`: the first MAX_HEAD_BYTES of a file.
    Raises FormatError if they are damaged."""
    view = memoryview(head)
    for kind, version, flags, *_ in ROW.iter_unpack(view[HEADER_BYTES : _read_head(view)[2]]):
        _refuse_unknown(TableRow(kind, version, flags, view, 0, 0, 0))


def _read_head(view: memoryview) -> tuple[int, int, int]:
    """Return the size and the kind of a file, and the end of its section table, both checked."""
    if len(view) < HEADER_BYTES:
        raise FormatError(f"it has {len(view)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, checksum, size, kind, count = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FormatError("it does not begin as a manifest does")
    stop = HEADER_BYTES + count * ROW.size
    if count > MAX_SECTIONS or stop > len(view):
        raise FormatError(f"its header speaks of {count} sections, which it has no room for")
    if _header_sum(view[:HEADER_BYTES], view[HEADER_BYTES:stop]) != checksum:
        raise FormatError("its header is damaged")
    if version > VERSION:
        raise NewerFormatError(
            f"it has format version {version}, this kafkawire reads up to {VERSION}: "
            "start the newer version that wrote it"
        )
    if version != VERSION:
        raise FormatError(f"it has format version {version}, which never was")
    return size, kind, stop


def _refuse_unknown(row: TableRow) -> None:
    if row.flags & REQUIRED and not row.known:
        raise NewerFormatError(
            f"its {row.name} has version {row.version}, which this kafkawire does not know and "
            "must: start the newer version that wrote it"
        )


def _read_rows(view: memoryview, at: int) -> list[TableRow]:
    rows = []
    for each in ROW.iter_unpack(view[HEADER_BYTES:at]):
        kind, version, flags, stored, length, count, checksum = each
        row = TableRow(kind, version, flags, view[at : at + stored], length, count, checksum)
        if stored > len(view) - at:
            raise FormatError(f"its {row.name} goes beyond its end")
        _refuse_unknown(row)
        if length > MAX_BODY_BYTES or (not flags & PACKED and stored != length):
            raise FormatError(f"its {row.name} has {length} bytes, which cannot be")
        rows.append(row)
        at += stored
    if at != len(view):
        raise FormatError(f"its sections end at {at}, it has {len(view)} bytes")
    return rows


def read_sections(data: bytes | memoryview) -> tuple[int, dict[int, ManifestSection]]:
    """Return (kind, sections by type) of a file, all verified; unknown optional sections are left
    out."""
    kind, table = read_table(data)
    sections: dict[int, ManifestSection] = {}
    for row in table:
        body = row.body()
        if not row.known:
            continue
        if row.kind in sections:
            raise FormatError(f"it has its {row.name} twice")
        sections[row.kind] = ManifestSection(row.kind, row.rows, body)
    return kind, sections
