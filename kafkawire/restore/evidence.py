"""Evidence about topics, partitions and segments, as the sources of a restore have it.

Plain data. `data_folder` fills it from journals, segment files and the local manifest, `bucket`
from a tier's manifest and objects; `plan` reads it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, NamedTuple

from kafkawire.codec.segment.format import PartitionEntry, TopicOrigin
from kafkawire.log.journal.losses import Damage
from kafkawire.log.partition.producers import Producers
from kafkawire.log.recovery.result import Recovered
from kafkawire.manifest.columns import Entry
from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.state import ManifestTopic

INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__schedule_state", "__share_group_state"}
)
"""Topics that clients may not write to; the log does not say of a topic that it is one."""


class DoubtKind(StrEnum):
    """Kinds of doubts. LOST: a source does not have it; UNUSED: a file that is set aside."""

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
    LOST = "lost"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something doubtful or lost that a person should know about; `text` is a sentence."""

    kind: DoubtKind
    text: str


@dataclass(slots=True)
class SegmentSeen:
    """A segment, whether readers used it or not. `path`: of its file, empty: it has none; `object`:
    the uuid of its object in a tier, empty: none; `folder`: the broker's folder in the tier that
    the object is in, empty: the tier itself. `cluster_id` None: unknown. `entries`: of its
    directory, if it is in a tier; `named`: listed by the manifest there, if there is one."""

    uuid: bytes
    created_ms: int
    size_bytes: int
    path: str = ""
    object: bytes = b""
    node_id: int = 0
    generation: int = 0
    retention_class: str = ""
    max_timestamp: int = -1
    cluster_id: str | None = None
    entries: Sequence[Entry | PartitionEntry] = ()
    named: bool = True
    folder: str = ""

    @property
    def key(self) -> str:
        key = segment_key(self.object)
        return f"{self.folder}/{key}" if self.folder else key


@dataclass(slots=True)
class SegmentShare:
    """The part of a segment that belongs to one partition."""

    file: SegmentSeen
    entry: Entry | PartitionEntry

    @property
    def base(self) -> int:
        return self.entry.base_offset

    @property
    def end(self) -> int:
        return self.entry.end_offset

    @property
    def offsets(self) -> tuple[int, int]:
        """The range [base, end)."""
        return self.entry.base_offset, self.entry.end_offset


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

    @staticmethod
    def from_topic(topic: ManifestTopic) -> TopicSeen:
        return TopicSeen(
            topic.id, topic.name, topic.internal, topic.created_ms, dict(topic.configs),
            len(topic.partitions), dict(enumerate(topic.partitions)),
        )  # fmt: skip


@dataclass(slots=True)
class PartitionSeen:
    """One partition number of one topic. `next_offset`, `log_start`: the greatest found anywhere,
    0: unknown; `epoch`: the highest leader epoch found, `epochs`: their history.

    Of a data folder only: `ranges`: [first, end) in the journals, in their order, joined; `places`,
    `ends`: log position and end of each of their frames; `replay_from`: the end of the newest
    segment, whose state has the transactions before it; `stored_start`: the log start that was
    stored, by journals and local manifest. A merge of an earlier version may have written a later
    one into a segment.
    """

    number: int
    topic_id: bytes = b""
    topic: str = ""
    index: int = -1
    log_start: int = 0
    stored_start: int = 0
    next_offset: int = 0
    epoch: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: Producers = field(default_factory=Producers)
    replay_from: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)
    places: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    shares: list[SegmentShare] = field(default_factory=list)


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


class SourceRule(NamedTuple):
    """How a plan treats a source. `epoch_margin`, `number_margin`: how far leader epochs and
    partition numbers are raised above the evidence, which may be older than the loss.
    `covers_gaps`: the log start is known, so offsets that are missing after it are lost, and
    covered by a segment without records; else the log begins after the last gap."""

    epoch_margin: int
    number_margin: int
    covers_gaps: bool


@dataclass(slots=True)
class Evidence:
    """The evidence of any source. `topics` by id; `configs`: dynamic settings of all brokers;
    `next_partition`, `last_producer_id`: as far as they are known; `has_manifest`: whether a
    manifest could be read; `node_id` None: the source does not say it; `deleted`: topics by id;
    `origins`: topics as the newest segment describes them; `log_position`: up to where the journals
    are known to be committed; `logs`: of log objects."""

    rule: ClassVar[SourceRule]
    partitions: dict[int, PartitionSeen] = field(default_factory=dict)
    topics: dict[bytes, TopicSeen] = field(default_factory=dict)
    segments: list[SegmentSeen] = field(default_factory=list)
    configs: Mapping[str, str] = field(default_factory=dict)
    next_partition: int = 1
    last_producer_id: int = -1
    has_manifest: bool = False
    node_id: int | None = None
    deleted: set[bytes] = field(default_factory=set)
    origins: dict[bytes, TopicOrigin] = field(default_factory=dict)
    log_position: int = 0
    logs: list[LogSeen] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)

    def highest_number(self) -> int:
        """Return the highest partition number that was assigned."""
        named = [number for topic in self.topics.values() for number in topic.numbers.values()]
        return max([self.next_partition - 1, *named, *self.partitions])

    def raise_numbers(self, other: Evidence) -> None:
        """Have the next numbers above those of another evidence, too."""
        self.last_producer_id = max(self.last_producer_id, other.last_producer_id)
        self.next_partition = max(self.next_partition, other.next_partition)

    def topics_by_age(self) -> list[TopicSeen]:
        """Return the described topics, the newest last."""
        return list(self.topics.values())

    def slot(self, number: int, topic_id: bytes) -> int | None:
        """Return the slot of a partition number in a topic; None if another topic has the number
        and nothing is known of this one."""
        return number

    def has_damage(self) -> bool:
        """Return whether a part of the source was unreadable."""
        return False


EPOCH_MARGIN = 1000
"""Leader epochs rise once with each start after a crash: more than the number of such starts that
are likely without an upload in between."""
NUMBER_MARGIN = 1_000_000
"""Partition numbers and producer ids may have been assigned after the newest evidence: of producer
ids, a thousand blocks of a thousand."""


@dataclass(slots=True)
class BucketEvidence(Evidence):
    """The evidence of a tier. `cluster_id` None: only the objects have one; `deleted_objects`: how
    many exist that the manifest has as deleted; `logs`: by node id and broker epoch."""

    rule = SourceRule(EPOCH_MARGIN, NUMBER_MARGIN, covers_gaps=True)
    cluster_id: str | None = None
    deleted_objects: int = 0

    def get_or_add(self, number: int) -> PartitionSeen:
        if number not in self.partitions:
            self.partitions[number] = PartitionSeen(number)
        return self.partitions[number]

    def add_doubt(self, kind: DoubtKind, text: str) -> None:
        self.doubts.append(Doubt(kind, text))

    def topics_by_age(self) -> list[TopicSeen]:
        """Return the topics, the newest last: by the objects that describe them, or creation."""
        return sorted(self.topics.values(), key=lambda t: (t.seen_ms, t.created_ms, t.id))

    def objects_of(self, cluster_id: str | None) -> list[SegmentSeen]:
        """Return the objects of a cluster, and those that name none: one of several uploads of a
        segment, preferably the one in the manifest."""
        # Sorted by uuid, too: a repeated restore must choose the same object.
        best: dict[bytes, SegmentSeen] = {}
        for each in sorted(self.segments, key=lambda one: (not one.named, one.object)):
            if each.cluster_id in (None, cluster_id):
                best.setdefault(each.uuid, each)
        return list(best.values())


@dataclass(slots=True)
class FolderEvidence(Evidence):
    """The evidence of a broker's folder. `topics`, and `deleted` ones by id, from the newest frame
    of each, the newest last; `unreadable`: (path, why) of segment files.

    `partitions` by slot: the partition number, or a negative slot where the number belongs to
    another topic too, as after a start with other metadata; `slots` by number and topic id.
    `clusters`: when each cluster id was first written; `bounds`: the ledger's."""

    rule = SourceRule(1, 0, covers_gaps=False)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    journals: int = 0
    slots: dict[tuple[int, bytes], int] = field(default_factory=dict)
    clusters: dict[str, int] = field(default_factory=dict)
    recovered: Recovered = field(default_factory=Recovered)
    bounds: Mapping[int, int] | None = None

    def get_or_add(self, number: int, topic_id: bytes = b"") -> PartitionSeen:
        """Return the facts known so far about a partition; `topic_id` empty: its topic is
        unknown."""
        slot = self.slot(number, topic_id)
        if slot is None:
            slot = -1 - len(self.slots)
        if slot not in self.partitions:
            self.partitions[slot] = PartitionSeen(slot)
        partition = self.partitions[slot]
        if topic_id:
            self.slots[number, topic_id] = slot
            partition.topic_id = topic_id
        return partition

    def slot(self, number: int, topic_id: bytes) -> int | None:
        slot = self.slots.get((number, topic_id))
        if slot is not None:
            return slot
        # Also of a partition that only frames without a name have: they may be of this topic.
        holder = self.partitions.get(number)
        free = holder is None or not topic_id or holder.topic_id in (b"", topic_id)
        return number if free else None

    def has_damage(self) -> bool:
        return bool(self.damage or self.unreadable)

    def oldest_cluster(self) -> str:
        """Return the cluster that the oldest segment was written for; empty: no segment has it."""
        return min(self.clusters, key=self.clusters.__getitem__, default="")
