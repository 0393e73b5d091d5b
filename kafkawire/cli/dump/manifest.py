"""`kafkawire dump FILE` of a delta or snapshot of a tier's manifest.

As text: a summary and its tables, with `--records` also the entries of each object. As JSON: one
line per item. The format is described in kafkawire.manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafkawire.cli.dump.segment import time_text
from kafkawire.cli.shared.output import fail, print_json_line
from kafkawire.cli.shared.tables import print_table
from kafkawire.codec.format_errors import FormatError
from kafkawire.codec.types import uuid_text
from kafkawire.manifest.columns import Entry
from kafkawire.manifest.format import first_entries, unpack
from kafkawire.manifest.state import Delta, ManifestTopic, Snapshot
from kafkawire.metadata.checkpoint import unpack_epochs

Row = dict[str, Any]
Time = Callable[[int], object]


def dump_manifest(path: str, view: memoryview, with_entries: bool, as_json: bool) -> None:
    """Show the file; exit code 1 if it is damaged."""
    try:
        content = unpack(view)
    except FormatError as failure:
        fail(f"{path} cannot be read: {failure}")
    when: Time = int if as_json else _time
    names = {
        number: f"{topic.name}-{index}"
        for topic in content.topics
        for index, number in enumerate(topic.partitions)
    }
    tables = {
        "topics": [_topic(topic, when) for topic in content.topics],
        "deleted topics": [{"deleted_topic": uuid_text(each)} for each in content.deleted_topics],
        "partitions": _partitions(content, names, as_json),
        "objects": _objects(content, when),
        "deleted objects": [
            {"deleted_object": uuid.hex(), "delete_after": when(after_ms)}
            for uuid, after_ms in content.deleted.items()
        ],
    }
    if with_entries:
        tables["entries"] = _entries(content, names, when)
    head = _head(content, when)
    if as_json:
        for line in (head, *(row for rows in tables.values() for row in rows)):
            print_json_line(line)
        return
    print(_sentence(content))
    for title, rows in tables.items():
        if rows:
            print_table(rows, list(rows[0]), title)


def _head(content: Delta, when: Time) -> Row:
    head: Row = {
        "kind": "snapshot" if isinstance(content, Snapshot) else "delta",
        "sequence": content.sequence,
        "cluster": content.cluster_id,
        "node": content.node_id,
        "epoch": content.epoch,
        "created": when(content.created_ms),
    }
    if content.cluster is not None:
        head["next_partition"] = content.cluster.next_partition
        head["next_producer_id"] = content.cluster.next_producer_id
        head["configs"] = dict(content.cluster.configs)
    return head


def _sentence(content: Delta) -> str:
    kind = "snapshot" if isinstance(content, Snapshot) else "delta"
    text = (
        f"{kind} {content.sequence} of cluster {content.cluster_id}, written by node "
        f"{content.node_id} in epoch {content.epoch} at {time_text(content.created_ms)}: "
        f"{len(content.topics)} topics, {len(content.objects)} objects with "
        f"{len(content.entries)} entries"
    )
    cluster = content.cluster
    if cluster is None:
        return text
    configs = "".join(f", {name}={value}" for name, value in cluster.configs.items())
    return (
        f"{text}; next partition number {cluster.next_partition}, next producer id "
        f"{cluster.next_producer_id}{configs}"
    )


def _topic(topic: ManifestTopic, when: Time) -> Row:
    return {
        "topic": topic.name,
        "id": uuid_text(topic.id),
        "internal": topic.internal,
        "created": when(topic.created_ms),
        "numbers": list(topic.partitions),
        "configs": dict(topic.configs)
        if when is int
        else ", ".join(f"{name}={value}" for name, value in topic.configs.items()),
    }


def _time(ms: int) -> str | None:
    """Return leader epochs as JSON or text; None if they are not known."""
    return time_text(ms) if ms > 0 else None


def _epochs(packed: bytes, as_json: bool) -> object:
    try:
        epochs = unpack_epochs(packed)
    except FormatError as failure:
        return str(failure)
    return epochs if as_json else [f"{epoch} from {offset} on" for epoch, offset in epochs]


def _partitions(content: Delta, names: dict[int, str], as_json: bool) -> Sequence[Row]:
    return [
        {
            "partition": row.number,
            "name": names.get(row.number),
            "log_start": row.log_start,
            "end": row.end,
            "epochs": _epochs(row.epochs, as_json),
        }
        for row in content.partitions
    ]


def _objects(content: Delta, when: Time) -> Sequence[Row]:
    return [
        {
            "object": row.uuid.hex(),
            "segment": row.segment.hex(),
            "generation": row.generation,
            "class": content.objects.retention_class(at),
            "node": row.node_id,
            "bytes": row.size_bytes,
            "created": when(row.created_ms),
            "newest": when(row.max_timestamp),
            "entries": row.entries,
        }
        for at, row in enumerate(content.objects)
    ]


def _entries(content: Delta, names: dict[int, str], when: Time) -> Sequence[Row]:
    firsts = first_entries(content.objects)
    return [
        _entry(content.objects.uuid(at), content.entries[number], names, when)
        for at in range(len(content.objects))
        for number in range(firsts[at], firsts[at + 1])
    ]


def _entry(uuid: bytes, entry: Entry, names: dict[int, str], when: Time) -> Row:
    row: Row = {"in_object": uuid.hex(), "name": names.get(entry.number), **entry._asdict()}
    row["max_timestamp"] = when(entry.max_timestamp)
    return row
