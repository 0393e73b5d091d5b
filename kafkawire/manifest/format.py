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
from itertools import accumulate
from typing import Any

from kafkawire.codec.format_errors import FormatError
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
from kafkawire.manifest.layout import (
    DELETED,
    DELETED_TOPICS,
    DELTA,
    ENTRIES,
    HEAD,
    OBJECTS,
    PARTITIONS,
    SECTION_NAMES,
    SNAPSHOT,
    TOPICS,
    ManifestSection,
    read_sections,
    write_file,
)
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic, Snapshot

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
    """Check that the columns are consistent."""
    objects, entries = content.objects, content.entries
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
