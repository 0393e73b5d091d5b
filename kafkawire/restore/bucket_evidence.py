"""Findings about a bucket from manifest or listing: the input of a restore plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kafkawire.manifest.columns import Entry
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import ProducerEntry


class DoubtKind(StrEnum):
    """Kinds of doubts."""

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
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something a person should know before restoring; `text` is a sentence."""

    kind: DoubtKind
    text: str


@dataclass(slots=True)
class ObjectSeen:
    """One object: segment file `segment` and its contents. `cluster_id` None: unknown. `named`:
    listed by the manifest, if there is one; `folder`: the broker's folder in the tier that it is
    in, empty: the tier itself."""

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
    folder: str = ""

    @property
    def key(self) -> str:
        """The object's key in the tier."""
        key = segment_key(self.uuid)
        return f"{self.folder}/{key}" if self.folder else key


@dataclass(slots=True)
class BucketPartition:
    """One partition number. `end`: end of the offsets that were uploaded (0: unknown); `epoch`: the
    highest leader epoch found."""

    number: int
    log_start: int = 0
    end: int = 0
    epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: list[ProducerEntry] = field(default_factory=list)


@dataclass(slots=True)
class TopicSeen:
    """One topic. `count`: its number of partitions; `numbers`: the known partition numbers by
    index; `described`: whether its settings are known; `seen_ms`: when it was described."""

    id: bytes
    name: str
    internal: bool = False
    created_ms: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    count: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    described: bool = True
    seen_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogSeen:
    """The log of one life of a broker. `released`: the sequence number of its first log object to
    read; `end`: that after the last one, `fenced`: a fence is there; `size_bytes`: of all of
    them."""

    node_id: int
    broker_epoch: int
    released: int
    end: int
    fenced: bool
    size_bytes: int


@dataclass(slots=True)
class BucketEvidence:
    """All evidence of a bucket. `cluster_id` None: only the objects have one; `configs`: dynamic
    settings of all brokers; `deleted`: existing objects that the manifest has as deleted; `logs`:
    by node id and broker epoch."""

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
    logs: list[LogSeen] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def of(self, number: int) -> BucketPartition:
        """Return what is known about a partition number."""
        if number not in self.partitions:
            self.partitions[number] = BucketPartition(number)
        return self.partitions[number]

    def doubt(self, kind: DoubtKind, text: str) -> None:
        """Add a doubt."""
        self.doubts.append(Doubt(kind, text))
