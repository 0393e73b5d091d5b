"""Buckets filled by hand: objects that are real segments, with or without a manifest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.segment.format import Origin, PartitionState, SegmentBuilder, TopicOrigin
from kafkawire.manifest.columns import Entry, ManifestObject, ManifestPartition
from kafkawire.manifest.fold import empty
from kafkawire.manifest.format import pack
from kafkawire.manifest.keys import CURRENT, delta_key, segment_key, snapshot_key
from kafkawire.manifest.reader import Current, pack_current
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic
from kafkawire.metadata.checkpoint import ProducerEntry, pack_epochs, pack_producers
from tests.kit.log.segments import batch
from tests.kit.tier.fake_bucket import FakeBucket

CLUSTER = "abcdefghijklmnopqrstuv"
MADE_MS = 1_700_000_000_000


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


@dataclass
class Topic:
    """`numbers`: the numbers of its partitions, by index."""

    name: str
    numbers: Sequence[int]
    configs: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False
    created_ms: int = 5
    id: bytes = b""

    def __post_init__(self) -> None:
        self.id = self.id or self.name.encode().ljust(16, b"-")[:16]

    def facts(self) -> ManifestTopic:
        return ManifestTopic(
            self.id, self.name, self.internal, self.created_ms, dict(self.configs),
            tuple(self.numbers),
        )  # fmt: skip


@dataclass
class Share:
    """Offsets [base, end) of a partition, a batch each, without those left out as compacted."""

    number: int
    base: int
    end: int
    log_start: int = 0
    epochs: Sequence[tuple[int, int]] = ((3, 0),)
    producers: Sequence[ProducerEntry] = ()
    without: Sequence[int] = ()


class Bucket(FakeBucket):
    """A FakeBucket with short calls to fill it."""

    def __init__(self, *topics: Topic) -> None:
        super().__init__()
        self.topics = {number: topic for topic in topics for number in topic.numbers}
        self.rows: dict[int, tuple[ManifestObject, list[Entry]]] = {}

    def put(
        self,
        name: int,
        *shares: Share,
        generation: int = 0,
        cluster: str | None = CLUSTER,
        segment: int | None = None,
        created_ms: int = MADE_MS,
    ) -> str:
        """Store an object; return its key. `cluster` None: without an origin."""
        made = SegmentBuilder(uuid(1000 + (name if segment is None else segment)), 1, created_ms)
        data = bytearray(made.header())
        for share in shares:
            topic = self.topics[share.number]
            index = list(topic.numbers).index(share.number)
            state = PartitionState(
                share.log_start, pack_epochs(share.epochs), pack_producers(share.producers)
            )
            made.start_partition(share.number, topic.id, topic.name, index, share.base, state)
            for offset in range(share.base, share.end):
                if offset not in share.without:
                    made.add(batch(offset))
                    data += batch(offset)
            made.end_partition(share.end)
        known = {topic.id: topic for topic in self.topics.values()}
        ids = dict.fromkeys(entry.topic_id for entry in made.entries)
        origin = Origin(
            cluster or "", generation, "delete/tiered/ever",
            [
                TopicOrigin(t.id, len(t.numbers), t.created_ms, t.internal, t.configs)
                for t in map(known.__getitem__, ids)
            ],
        )  # fmt: skip
        data += made.finish(origin if cluster is not None else None)
        entries = [
            Entry(
                e.number, e.base_offset, e.end_offset, e.start, e.length, e.index_start,
                e.index_length, e.index_checksum, e.max_timestamp, e.batches, e.records,
            )
            for e in made.entries
        ]  # fmt: skip
        row = ManifestObject(
            uuid(name), uuid(1000 + (name if segment is None else segment)), generation, 1,
            len(data), created_ms, 1000, 0, len(entries),
        )  # fmt: skip
        self.rows[name] = row, entries
        key = segment_key(uuid(name))
        self.store(key, bytes(data))
        return key

    def manifest(
        self,
        ends: Mapping[int, tuple[int, int]],
        names: Sequence[int] = (),
        deleted: Sequence[int] = (),
        next_partition: int = 50,
        next_producer_id: int = 2000,
    ) -> None:
        """Write a manifest that names these objects; `ends`: number -> (log start, end)."""
        delta = Delta(1, CLUSTER, 1, 4, MADE_MS)
        delta.cluster = ClusterFacts(next_partition, next_producer_id, {"log.retention.ms": "7"})
        delta.topics = [t.facts() for t in {t.name: t for t in self.topics.values()}.values()]
        for number, (start, end) in sorted(ends.items()):
            delta.partitions.append(ManifestPartition(number, start, end, pack_epochs([(3, 0)])))
        delta.objects.classes = ["delete/tiered/ever"]
        for name in names or sorted(self.rows):
            row, entries = self.rows[name]
            if name not in deleted:
                delta.objects.append(row)
                for entry in entries:
                    delta.entries.append(entry)
        delta.deleted = {uuid(name): MADE_MS for name in deleted}
        self.store(snapshot_key(0), pack(empty(CLUSTER, 1, 4, 0, MADE_MS)))
        self.store(delta_key(1), pack(delta))
        self.store(CURRENT, pack_current(Current(0)))
