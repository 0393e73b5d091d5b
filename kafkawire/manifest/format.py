"""The encoding of deltas and snapshots: the sections of a file. `layout` has the frame.

    head               JSON: {"sequence", "cluster_id", "node_id", "epoch", "created_ms",
                       "classes": [names], "cluster": {"next_partition", "next_producer_id",
                       "configs": {name: value}}}; "classes" and "cluster" may be missing
    topics             id 16 bytes * n, created ms i64 * n, flags u32 * n (1: internal),
                       name length u32 * n, settings length u32 * n, partitions u32 * n;
                       then of each topic its partition numbers (u64 each); of each its name
                       (UTF-8); of each its settings (a JSON object of texts; nothing if none)
    deleted topics     id 16 bytes * n
    partitions         number u64 * n, log start i64 * n, end i64 * n, epochs length u32 * n;
                       then of each its leader epochs
    objects, entries   the columns of `columns.ObjectColumns`, `columns.EntryColumns`
    deleted objects    uuid 16 bytes * n, delete after ms i64 * n

A section without rows is left out. docs/manifest-format.md describes it in full. Pure; input is
fully validated, see `layout`.
"""

from __future__ import annotations

import json
import operator
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Any

from kafkawire.codec.compression import ZSTD, compress, decompress
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.crc32c import crc32c
from kafkawire.manifest.columns import (
    UUID,
    WIDTHS,
    Column,
    Columns,
    EntryColumns,
    ObjectColumns,
    PartitionColumns,
    column_bytes,
    read_column,
)
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic, Snapshot

# The frame of a manifest file, format version 1: header, table, sections.
#
#     +-----------------------+ 0
#     | header                | 32 bytes
#     +-----------------------+ 32
#     | section table         | 32 bytes for each section
#     +-----------------------+
#     | sections              | in the order of the table, nothing between them
#     +-----------------------+ file size
#
#     header      0 magic "KWMANIFS"      8 version u32            12 checksum u32 (of 0-11, 16-31
#                16 file size u64        24 kind u32 (1 delta,        and the section table)
#                28 sections u32            2 snapshot)
#
#     table row   0 type u16              2 version u16             4 flags u32 (1: must be known,
#                 8 stored length u64    16 body length u64            2: stored as a zstd frame)
#                24 rows u32             28 checksum u32 (of what is stored)
#
# Integers are little-endian, checksums CRC-32C. `format` encodes the sections;
# docs/manifest-format.md describes everything in full. Input is fully validated: malformed bytes
# raise FormatError with a sentence without the file's name. Pure.

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
        return f"{SECTION_NAMES.get(self.kind, f'type {self.kind}')} section"

    @property
    def known(self) -> bool:
        return self.kind in SECTION_NAMES and self.version == SECTION_VERSION

    def check(self) -> None:
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
    # All are marked as required: an older program that skipped one would lose a part of the bucket.
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
    # Twice: the checksum is of the header without its own field.
    head = HEADER.pack(MAGIC, VERSION, 0, size, kind, len(sections))
    head = HEADER.pack(MAGIC, VERSION, _header_sum(head, rest), size, kind, len(sections))
    return b"".join((head, rest, *stored))


def _header_sum(head: bytes | memoryview, table: bytes | memoryview) -> int:
    """Return the checksum of the header without its own field."""
    # Its position is the same in every version, so that a damaged version number is not taken for a
    # newer version.
    view = memoryview(head)
    return crc32c(table, crc32c(view[16:HEADER_BYTES], crc32c(view[:12])))


def read_table(data: bytes | memoryview) -> tuple[int, list[TableRow]]:
    """Return (kind, section table) of a file. Raises NewerFormatError if a newer program wrote it,
    or it has an unknown mandatory section."""
    view = memoryview(data).cast("B")
    size, kind, stop = _read_header(view)
    if size != len(view):
        raise FormatError(f"it has {len(view)} bytes, its header says {size}")
    if kind not in KINDS:
        raise FormatError(f"it is of kind {kind}; 1 (delta) and 2 (snapshot) are known")
    return kind, _read_rows(view, stop)


def refuse_newer(head: bytes) -> None:
    """Raise NewerFormatError as `read_table` does. `head`: the first MAX_HEAD_BYTES of a file.
    Raises FormatError if they are damaged."""
    view = memoryview(head)
    for kind, version, flags, *_ in ROW.iter_unpack(view[HEADER_BYTES : _read_header(view)[2]]):
        _refuse_unknown(TableRow(kind, version, flags, view, 0, 0, 0))


def _read_header(view: memoryview) -> tuple[int, int, int]:
    """Return the size and the kind of a file, and the end of its section table, both checked."""
    if len(view) < HEADER_BYTES:
        raise FormatError(f"it has {len(view)} bytes, a header alone has {HEADER_BYTES}")
    magic, version, checksum, size, kind, count = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FormatError("it does not begin as a manifest does")
    stop = HEADER_BYTES + count * ROW.size
    # Before the checksum, which covers as many rows as the header says.
    if count > MAX_SECTIONS or stop > len(view):
        raise FormatError(f"its header speaks of {count} sections, which it has no room for")
    if _header_sum(view[:HEADER_BYTES], view[HEADER_BYTES:stop]) != checksum:
        raise FormatError("its header is damaged")
    # After the checksum: only an intact file can be of a newer program.
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
        # Before anything is unpacked, as the length decides how much memory that takes.
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
        # Optional sections that this program does not know are verified, too: a file is sound as a
        # whole.
        body = row.body()
        if not row.known:
            continue
        if row.kind in sections:
            raise FormatError(f"it has its {row.name} twice")
        sections[row.kind] = ManifestSection(row.kind, row.rows, body)
    return kind, sections


__all__ = ["pack", "unpack"]

_TOPIC_FORM = (UUID, "q", "I", "I", "I", "I")
_INTERNAL = 1


def pack(content: Delta) -> bytes:
    """Encode a delta or a snapshot. Equal content gives equal bytes."""
    deleted_form = (UUID, "q")
    deleted: list[Column] = [
        bytearray(b"".join(content.deleted)), array("q", content.deleted.values())
    ]  # fmt: skip
    partitions = content.partitions
    sections = [
        (HEAD, 1, _head(content)),
        (TOPICS, len(content.topics), _topics(content.topics)),
        (DELETED_TOPICS, len(content.deleted_topics), b"".join(content.deleted_topics)),
        (PARTITIONS, len(partitions), _table(partitions) + bytes(partitions.blob)),
        (OBJECTS, len(content.objects), _table(content.objects)),
        (ENTRIES, len(content.entries), _table(content.entries)),
        (DELETED, len(content.deleted), _columns(deleted_form, deleted)),
    ]
    kind = SNAPSHOT if isinstance(content, Snapshot) else DELTA
    return write_file(kind, [section for section in sections if section[1]])


def unpack(data: bytes | memoryview) -> Delta:
    """Decode a Delta or a Snapshot. Raises NewerFormatError if a newer program wrote it,
    FormatError if it is malformed. Columns are views of `data` unless compressed."""
    kind, sections = read_sections(data)
    head = sections.get(HEAD)
    if head is None:
        raise FormatError("it has no head")
    content, classes = _read_head(head.body, Snapshot if kind == SNAPSHOT else Delta)
    objects, _ = _read_columns(sections.get(OBJECTS), ObjectColumns.FORM, True)
    entries, _ = _read_columns(sections.get(ENTRIES), EntryColumns.FORM, True)
    content.topics = _read_topics(sections.get(TOPICS))
    content.deleted_topics = _read_ids(sections.get(DELETED_TOPICS))
    content.partitions = _read_partitions(sections.get(PARTITIONS))
    content.objects = ObjectColumns(objects, classes)
    content.entries = EntryColumns(entries)
    content.deleted = _read_deleted(sections.get(DELETED))
    _check(content)
    return content


def _head(content: Delta) -> bytes:
    head: dict[str, Any] = {
        "sequence": content.sequence,
        "cluster_id": content.cluster_id,
        "node_id": content.node_id,
        "epoch": content.epoch,
        "created_ms": content.created_ms,
    }
    if content.objects.classes:
        head["classes"] = content.objects.classes
    if content.cluster is not None:
        head["cluster"] = {
            "next_partition": content.cluster.next_partition,
            "next_producer_id": content.cluster.next_producer_id,
            "configs": dict(content.cluster.configs),
        }
    return _json(head)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _table(table: Columns[Any]) -> bytes:
    return _columns([form for _, form in table.FORM], table.columns)


def _columns(forms: Sequence[str], columns: Sequence[Column]) -> bytes:
    return b"".join(map(column_bytes, forms, columns))


def _topics(topics: Sequence[ManifestTopic]) -> bytes:
    names = [topic.name.encode() for topic in topics]
    settings = [_json(topic.configs) if topic.configs else b"" for topic in topics]
    numbers: array[int] = array("Q", [n for topic in topics for n in topic.partitions])
    columns: list[Column] = [
        bytearray(b"".join([topic.id for topic in topics])),
        array("q", [topic.created_ms for topic in topics]),
        array("I", [_INTERNAL if topic.internal else 0 for topic in topics]),
        array("I", map(len, names)),
        array("I", map(len, settings)),
        array("I", [len(topic.partitions) for topic in topics]),
    ]
    return b"".join((_columns(_TOPIC_FORM, columns), column_bytes("Q", numbers), *names, *settings))


def _read_head(body: memoryview, kind: type[Delta]) -> tuple[Delta, list[str]]:
    head = _read_json(body, "head")
    cluster = head.get("cluster")
    facts = None
    if cluster is not None:
        if not isinstance(cluster, dict):
            raise FormatError("its head has no cluster that can be")
        facts = ClusterFacts(
            _number(cluster, "next_partition"),
            _number(cluster, "next_producer_id"),
            _texts(cluster.get("configs"), "head"),
        )
    cluster_id, classes = head.get("cluster_id"), head.get("classes", [])
    if not isinstance(cluster_id, str):
        raise FormatError("its head names no cluster")
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise FormatError("its head has no classes that can be")
    names = ("sequence", "node_id", "epoch", "created_ms")
    sequence, node_id, epoch, created_ms = (_number(head, name) for name in names)
    return kind(sequence, cluster_id, node_id, epoch, created_ms, facts), classes


def _read_json(body: bytes | memoryview, what: str) -> dict[str, Any]:
    try:
        value = json.loads(str(body, "utf-8"))
    except (ValueError, RecursionError):
        raise FormatError(f"its {what} is no JSON") from None
    if not isinstance(value, dict):
        raise FormatError(f"its {what} is no JSON object")
    return value


def _number(value: Mapping[str, Any], name: str) -> int:
    number = value.get(name)
    if type(number) is not int or not -(1 << 63) <= number < 1 << 63:
        raise FormatError(f"its head has no {name} that can be")
    return number


def _texts(value: object, what: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise FormatError(f"its {what} has settings that are no texts")
    return value


def _read_columns(
    section: ManifestSection | None, form: Sequence[tuple[str, str]], whole: bool
) -> tuple[list[Column] | None, int]:
    """Return the columns at the beginning of a section, and their end; None if there is no section.
    `whole`: they must fill it."""
    if section is None:
        return None, 0
    size = sum(WIDTHS[each] for _, each in form) * section.rows
    if size > len(section.body) or (whole and size != len(section.body)):
        raise FormatError(
            f"its {SECTION_NAMES[section.kind]} have {len(section.body)} bytes for "
            f"{section.rows} rows"
        )
    columns: list[Column] = []
    at = 0
    for _, each in form:
        stop = at + WIDTHS[each] * section.rows
        columns.append(read_column(each, section.body[at:stop]))
        at = stop
    return columns, at


def _read_topics(section: ManifestSection | None) -> list[ManifestTopic]:
    form = [("", each) for each in _TOPIC_FORM]
    columns, at = _read_columns(section, form, False)
    if section is None or columns is None:
        return []
    ids, created, flags, names, settings, counts = columns
    middle = at + 8 * sum(counts)
    first_name, stop = middle, middle + sum(names)
    if stop + sum(settings) != len(section.body):
        raise FormatError("its topics do not end where their section does")
    numbers = tuple(read_column("Q", section.body[at:middle]))
    texts = bytes(section.body[first_name:])
    topics = []
    name_at, setting_at, number_at = 0, stop - middle, 0
    for row, (name, setting, count) in enumerate(zip(names, settings, counts, strict=True)):
        try:
            text = str(texts[name_at : name_at + name], "utf-8")
        except UnicodeDecodeError:
            raise FormatError("its topics have a name that is no text") from None
        configs: dict[str, str] = {}
        if setting:
            value = _read_json(texts[setting_at : setting_at + setting], "settings of a topic")
            configs = _texts(value, "topics")
        topics.append(
            ManifestTopic(
                bytes(ids[16 * row : 16 * row + 16]), text, bool(flags[row] & _INTERNAL),
                created[row], configs, numbers[number_at : number_at + count],
            )
        )  # fmt: skip
        name_at, setting_at, number_at = name_at + name, setting_at + setting, number_at + count
    return topics


def _read_ids(section: ManifestSection | None) -> list[bytes]:
    columns, _ = _read_columns(section, [("id", UUID)], True)
    return [] if columns is None else list(_ids(columns[0]))


def _ids(column: Column) -> Iterator[bytes]:
    data = bytes(column)
    return (data[at : at + 16] for at in range(0, len(data), 16))


def _read_partitions(section: ManifestSection | None) -> PartitionColumns:
    columns, at = _read_columns(section, PartitionColumns.FORM, False)
    if section is None or columns is None:
        return PartitionColumns()
    if at + sum(columns[3]) != len(section.body):
        raise FormatError("its partitions do not end where their section does")
    return PartitionColumns(columns, section.body[at:])


def _read_deleted(section: ManifestSection | None) -> dict[bytes, int]:
    columns, _ = _read_columns(section, (("uuid", UUID), ("delete_after_ms", "q")), True)
    return {} if columns is None else dict(zip(_ids(columns[0]), columns[1], strict=True))


def _check(content: Delta) -> None:
    objects, entries = content.objects, content.entries
    # An object's entries are found by the sum of those before it.
    if sum(objects.entries) != len(entries):
        raise FormatError(f"its objects do not have the {len(entries)} entries it holds")
    if max(objects.class_numbers, default=-1) >= len(objects.classes):
        raise FormatError("its objects have a retention class its head does not name")
    if any(map(operator.gt, entries.base_offset, entries.end_offset)):
        raise FormatError("its entries have one that ends before it begins")
    columns = (entries.base_offset, content.partitions.log_start, content.partitions.end)
    if any(min(column, default=0) < 0 for column in columns):
        raise FormatError("it has a negative offset")


def first_entries(objects: ObjectColumns) -> array[int]:
    """Return where the entries of each object begin, and the end of the last."""
    return array("Q", accumulate(objects.entries, initial=0))
