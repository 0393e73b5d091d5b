"""The contents of a manifest: deltas, each a round of changes, and snapshots up to one of them.

A delta contains changed items completely: a topic with all its settings and partitions, a partition
with its log start, end and epochs. A snapshot is a delta from the empty state. Pure; `format`
encodes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkawire.manifest.columns import EntryColumns, ObjectColumns, PartitionColumns


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts of the cluster that belong to no topic: the first unassigned partition number and
    producer id (as far as this manifest knows), and the dynamic defaults of all brokers."""

    next_partition: int = 1
    next_producer_id: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


class ManifestTopic(NamedTuple):
    """One topic. `partitions[i]` is the number of partition i; `configs` its own settings;
    `created_ms` 0: unknown."""

    id: bytes
    name: str
    internal: bool
    created_ms: int
    configs: Mapping[str, str]
    partitions: tuple[int, ...]


@dataclass(slots=True)
class Delta:
    """One round of changes, written by the owner of `epoch`; `sequence` from 1 on, without gaps.

    `cluster` None: unchanged. `deleted`: uuid of an object -> time (ms) until which it is kept for
    its readers. The entries of an object follow those of the previous one.
    """

    sequence: int
    cluster_id: str
    node_id: int
    epoch: int
    created_ms: int
    cluster: ClusterFacts | None = None
    topics: list[ManifestTopic] = field(default_factory=list)
    deleted_topics: list[bytes] = field(default_factory=list)
    partitions: PartitionColumns = field(default_factory=PartitionColumns)
    objects: ObjectColumns = field(default_factory=ObjectColumns)
    entries: EntryColumns = field(default_factory=EntryColumns)
    deleted: dict[bytes, int] = field(default_factory=dict)

    @property
    def says_nothing(self) -> bool:
        # Entries belong to objects, so they need no check of their own.
        return self.cluster is None and not (
            self.topics or self.deleted_topics or self.deleted or self.partitions or self.objects
        )


@dataclass(slots=True)
class Snapshot(Delta):
    """The state after deltas 1 to `sequence`: topics by id, partitions by number, objects in the
    order of their addition, `deleted` by uuid. Deleted topics are not in it."""
