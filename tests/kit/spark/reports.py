"""Tiers of made-up records for the reports: each record contains its own position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kafkawire.codec.batches import Record as Stored
from kafkawire.codec.batches import pack
from kafkawire.codec.compile import encode_versioned
from kafkawire.messages.stored import OffsetCommitKey, OffsetCommitValue
from kafkawire.reading.files.open import open_place
from tests.kit.spark.files import Files, Share

if TYPE_CHECKING:
    from kafkawire_spark.reports.report import Report

OFFSETS_TOPIC = "__consumer_offsets"

T0 = 1_690_000_000_000
BATCH, SEGMENT = 7, 5
"""Records of a batch, batches of a segment: partitions are cut at uneven positions."""
Record = tuple[str, int, int, int, bytes | None, bytes | None]
"""Topic, partition, offset, ms after T0, key, value. Offsets of a partition rise from 0."""


def tier(url: str, records: Sequence[Record], partitions: int = 1) -> None:
    """A tier of exactly these records; each topic has the given number of partitions, or as many as
    it needs."""
    files = Files(open_place(url))
    topics: dict[str, int] = {}
    for topic, partition, *_ in records:
        topics[topic] = max(topics.get(topic, partitions), partition + 1)
    numbers = {topic: files.topic(topic, many) for topic, many in topics.items()}
    segment = 0
    for (topic, partition), rows in groupby(sorted(records, key=_place), key=_place_of):
        stored = [Stored(at, T0 + ms, key, value) for _, _, at, ms, key, value in rows]
        batches = [bytes(pack(stored[i : i + BATCH])) for i in range(0, len(stored), BATCH)]
        for at in range(0, len(batches), SEGMENT):
            segment += 1
            files.put(segment, Share(numbers[topic][partition], batches[at : at + SEGMENT]))
    files.publish()


def _place_of(record: Record) -> tuple[str, int]:
    return record[:2]


def _place(record: Record) -> tuple[str, int, int]:
    return record[:3]


def commit(offset: int, at: int, group: str, partition: int, committed: int | None) -> Record:
    """A group's commit of `orders`; None: its tombstone."""
    key = encode_versioned(OffsetCommitKey(group, "orders", partition), 1)
    value = None
    if committed is not None:
        value = encode_versioned(OffsetCommitValue(offset=committed), 3)
    return OFFSETS_TOPIC, 0, offset, at, key, value


def kitchen() -> list[Record]:
    """Two partitions of orders, a record a second, every tenth of them 5 s late; one group."""
    late = {offset: 5000 if offset % 10 == 9 else 0 for offset in range(300)}
    return [
        *(("orders", 0, i, 1000 * i - late[i], b"k%d" % (i % 4), b"x" * 10) for i in range(300)),
        *(("orders", 1, i, 1000 * i, None, b"y") for i in range(100)),
        commit(0, 10_000, "kitchen", 0, 5),
        commit(1, 90_000, "kitchen", 0, 250),
        commit(2, 95_000, "kitchen", 1, 100),
    ]


def findings_of(reports: Mapping[str, Report]) -> dict[str, Any]:
    """The findings of the four reports about `kitchen`, as JSON has them; equal to KITCHEN if they
    are correct."""
    tables = {
        name: next(table for table in made.tables if table.name == name).data.to_pylist()
        for name, made in reports.items()
    }
    return {
        "continuity": [
            [row["topic"], row["partition"], row["records"]] for row in tables["continuity"]
        ],
        "problems": [made.problems for made in reports.values()],
        "sizes": [[row["topic"], row["bytes"], row["keys"]] for row in tables["sizes"]],
        "late": [[row["late"], row["max_late_ms"]] for row in tables["late"]],
        "lag": [[row["group_id"], row["lag"]] for row in tables["lag"]],
        "drawn": [made.plot[1:4].decode() for made in reports.values()],
    }


KITCHEN = {
    "continuity": [[OFFSETS_TOPIC, 0, 3], ["orders", 0, 300], ["orders", 1, 100]],
    "problems": [0, 0, 0, 0],
    "sizes": [["orders", 300 * 12 + 100, 4]],
    "late": [[30, 4000], [0, 0]],
    "lag": [["kitchen", 50]],
    "drawn": ["PNG"] * 4,
}
