"""Write manifest-v1.delta, manifest-v1.snapshot, and their content as manifest-v1.json.

Run once, for a new version: `python -m tests.golden.make_manifest_v1` from the root. A golden file
is never written again, because it is what users have in their buckets; the files of earlier
versions stay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kafkawire.codec.types import uuid_text
from kafkawire.manifest.columns import Entry, ManifestObject, ManifestPartition
from kafkawire.manifest.fold import empty, fold
from kafkawire.manifest.format import pack
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic

HERE = Path(__file__).parent
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
ORDERS, DAILY, LEFT = b"\1" * 16, b"\2" * 16, b"\3" * 16
ONE_EPOCH = bytes.fromhex("01 00000000 0000000000000000")
TWO_EPOCHS = ONE_EPOCH + bytes.fromhex("00000004 0000000000000008")


def add(delta: Delta, uuid: bytes, generation: int, kind: str, entries: list[Entry]) -> None:
    """Add an object."""
    row = ManifestObject(
        uuid, uuid[::-1], generation, 3, 8_000_000, 1_700_000_000_456, 1_700_000_000_001,
        delta.objects.class_at(kind), len(entries),
    )  # fmt: skip
    delta.objects.append(row)
    for entry in entries:
        delta.entries.append(entry)


def build_delta() -> Delta:
    """A delta with rows of every kind."""
    delta = Delta(1, CLUSTER, 3, 2, 1_700_000_000_123)
    delta.cluster = ClusterFacts(1 << 34, 2000, {"log.retention.ms": "86400000"})
    delta.topics = [
        ManifestTopic(ORDERS, "orders", False, 1_699_999_999_000, {"retention.ms": "-1"}, (5, 6)),
        ManifestTopic(DAILY, "täglich", True, 0, {}, (1 << 33,)),
    ]
    delta.deleted_topics = [LEFT]
    delta.partitions.append(ManifestPartition(5, 3, 20, TWO_EPOCHS))
    delta.partitions.append(ManifestPartition(1 << 33, 0, 9, ONE_EPOCH))
    old = bytes.fromhex("0123456789abcdef0123456789abcdef")
    new = bytes.fromhex("fedcba9876543210fedcba9876543210")
    add(delta, old, 0, "tiered", [
        Entry(5, 0, 12, 64, 9000, 9500, 84, 0xDEADBEEF, 1_700_000_000_000, 12, 12),
        Entry(1 << 33, 0, 9, 9064, 400, 9584, 28, 7, 1_700_000_000_001, 1, 9),
    ])  # fmt: skip
    add(delta, new, 1, "cleaned/tiered", [
        Entry(5, 0, 20, 64, 0, 700, 0, 0, -1, 0, 0),
    ])  # fmt: skip
    delta.deleted = {b"\7" * 16: 1_700_003_600_000}
    return delta


def build_snapshot() -> bytes:
    """A snapshot of that delta, and of one with enough entries for compressed sections."""
    more = Delta(2, CLUSTER, 3, 2, 1_700_000_000_999)
    for n in range(60):
        base = 20 + 10 * n
        entry = Entry(5, base, base + 10, 64, 1000, 1100, 28, n, 1_700_000_000_000 + n, 10, 10)
        add(more, bytes([9]) * 15 + bytes([n]), 0, "tiered", [entry])
    more.partitions.append(ManifestPartition(5, 3, 620, TWO_EPOCHS))
    return pack(fold(empty(CLUSTER, 3, 2, 0, 0), [build_delta(), more]))


def says(content: Delta) -> dict[str, Any]:
    """The content of a delta or snapshot, in the form of the JSON."""
    return {
        "sequence": content.sequence, "cluster_id": content.cluster_id, "node": content.node_id,
        "epoch": content.epoch, "created_ms": content.created_ms,
        "cluster": content.cluster and {
            "next_partition": content.cluster.next_partition,
            "next_producer_id": content.cluster.next_producer_id,
            "configs": dict(content.cluster.configs),
        },
        "topics": [
            [uuid_text(t.id), t.name, t.internal, t.created_ms, dict(t.configs), list(t.partitions)]
            for t in content.topics
        ],
        "deleted_topics": [uuid_text(each) for each in content.deleted_topics],
        "partitions": [[*row[:3], row.epochs.hex()] for row in content.partitions],
        "classes": content.objects.classes,
        "objects": [[row.uuid.hex(), row.segment.hex(), *row[2:]] for row in content.objects],
        "entries": [list(row) for row in content.entries],
        "deleted": [[uuid.hex(), after_ms] for uuid, after_ms in content.deleted.items()],
    }  # fmt: skip


if __name__ == "__main__":
    from kafkawire.manifest.format import unpack

    snapshot = build_snapshot()
    (HERE / "manifest-v1.delta").write_bytes(pack(build_delta()))
    (HERE / "manifest-v1.snapshot").write_bytes(snapshot)
    both = {"delta": says(build_delta()), "snapshot": says(unpack(snapshot))}
    text = json.dumps(both, ensure_ascii=False, separators=(",", ":"))
    (HERE / "manifest-v1.json").write_text(text + "\n", encoding="utf-8")
