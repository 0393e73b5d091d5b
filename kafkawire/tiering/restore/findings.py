"""Findings about a bucket from manifest or listing: values of restore and of its plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kafkawire.manifest.columns import Entry
from kafkawire.metadata.checkpoint import ProducerEntry


class DoubtKind(StrEnum):
    """Why something is not as it should be."""

    MANIFEST = "manifest"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    OVERLAP = "overlap"
    GAP = "gap"
    CLUSTER = "cluster"
    DELETED = "deleted"
    UNNAMED = "unnamed"
    TOPIC = "topic"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Doubt:
    """One thing a person should know before it is restored so; `text` is a sentence."""

    kind: DoubtKind
    text: str


@dataclass(slots=True)
class ObjectSeen:
    """One object: segment file `segment`, with what is in it. `cluster_id` None: it does not say.
    `named`: by the manifest, where there is one."""

    uuid: bytes
    segment: bytes
    size_bytes: int
    node_id: int
    created_ms: int
    generation: int = 0
    retention_class: str = ""
    max_timestamp: int = -1
    cluster_id: str | None = None
    entries: list[Entry] = field(default_factory=list)
    named: bool = True


@dataclass(slots=True)
class BucketPartition:
    """One partition number. `end`: all below it was said to be uploaded (0: nothing says);
    `epoch`: the greatest leader epoch anything speaks of."""

    number: int
    log_start: int = 0
    end: int = 0
    epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: list[ProducerEntry] = field(default_factory=list)


@dataclass(slots=True)
class TopicSeen:
    """One topic. `count`: how many partitions it has; `numbers`: those that are known, by index;
    `described`: whether its settings are known; `seen_ms`: when this was so."""

    id: bytes
    name: str
    internal: bool = False
    created_ms: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    count: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    described: bool = True
    seen_ms: int = 0


@dataclass(slots=True)
class BucketEvidence:
    """All of it. `cluster_id` None: nothing names the bucket's cluster but its objects; `configs`:
    dynamic settings of all brokers; `deleted`: objects still there that the manifest calls
    deleted."""

    cluster_id: str | None = None
    node_id: int | None = None
    has_manifest: bool = False
    next_partition: int = 1
    last_producer_id: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    topics: dict[bytes, TopicSeen] = field(default_factory=dict)
    partitions: dict[int, BucketPartition] = field(default_factory=dict)
    objects: list[ObjectSeen] = field(default_factory=list)
    deleted: int = 0
    doubts: list[Doubt] = field(default_factory=list)

    def of(self, number: int) -> BucketPartition:
        """Facts known so far about a partition."""
        if number not in self.partitions:
            self.partitions[number] = BucketPartition(number)
        return self.partitions[number]

    def doubt(self, kind: DoubtKind, text: str) -> None:
        """Note one."""
        self.doubts.append(Doubt(kind, text))
