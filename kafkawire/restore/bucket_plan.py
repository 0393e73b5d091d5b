"""Plan a data folder from the evidence of a bucket, with a list of doubts. Pure.

Topics keep their ids, names, partition numbers and settings, and partitions their offsets. Leader
epochs rise above all that may have been assigned but not uploaded, so that clients detect where
their log was truncated. Partition numbers and producer ids continue above all that may have been
assigned. Offsets that are in no object are a gap in the log, which is covered by a segment without
records, as after compaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from kafkawire.manifest.columns import Entry
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.restore.bucket_evidence import (
    BucketEvidence,
    BucketPartition,
    Doubt,
    DoubtKind,
    LogSeen,
    ObjectSeen,
    TopicSeen,
)
from kafkawire.restore.tiling import ObjectRange, choose, gaps, rivals
from kafkawire.restore.topics import recovered_name

EPOCH_MARGIN = 1000
"""Added to leader epochs, which rise once with each start after a crash: more than the number of
such starts that are likely without an upload in between."""
MAX_EPOCH = (1 << 31) - 1
NUMBER_MARGIN = 1_000_000
"""Added to partition numbers and producer ids, which may have been assigned after the last
manifest."""
MAX_DOUBTS = 1000
"""Maximum number of doubts listed; more are only counted."""


@dataclass(slots=True)
class Used:
    """One object to read, and its entries to use."""

    object: ObjectSeen
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets [base, end) of a partition that are in no object."""

    number: int
    base: int
    end: int


@dataclass(slots=True)
class Restored:
    """The state to restore into a data folder. `holes`: the gaps of each segment to be written, at
    most one per partition, by ascending numbers. `committed`: the end of the uploaded offsets by
    partition. `logs`: those whose records the broker appends when it starts."""

    cluster_id: str
    node_id: int
    topics: list[TopicInfo] = field(default_factory=list)
    checkpoints: list[PartitionCheckpoint] = field(default_factory=list)
    used: list[Used] = field(default_factory=list)
    holes: list[list[Hole]] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    next_partition: int = 1
    next_producer_id: int = 0
    logs: list[LogSeen] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0


def plan(seen: BucketEvidence) -> Restored:
    planning = _Planning(seen)
    planning.clusters()
    planning.copies()
    planning.topics()
    planning.partitions()
    return planning.finish()


class _Planning:
    def __init__(self, seen: BucketEvidence) -> None:
        self._seen = seen
        self._doubts: list[Doubt] = list(seen.doubts)
        self._objects = seen.objects
        self._pieces: dict[int, list[ObjectRange]] = defaultdict(list)
        self._entries: list[tuple[int, Entry]] = []  # by ObjectRange.key: object, entry
        self._used: dict[int, Used] = {}
        self._names: dict[int, str] = {}
        named = [n for topic in seen.topics.values() for n in topic.numbers.values()]
        highest = max([seen.next_partition - 1, *named, *seen.partitions])
        self._result = Restored(
            seen.cluster_id or "",
            1 if seen.node_id is None else seen.node_id,
            configs=dict(seen.configs),
            logs=seen.logs,
            next_partition=highest + 1 + NUMBER_MARGIN,
            next_producer_id=seen.last_producer_id + 1 + NUMBER_MARGIN,
        )

    def _doubt(self, kind: DoubtKind, text: str) -> None:
        self._doubts.append(Doubt(kind, text))

    def clusters(self) -> None:
        """Leave out objects of other clusters."""
        reported = Counter(each.cluster_id for each in self._objects if each.cluster_id is not None)
        if self._seen.cluster_id is None and reported:
            self._result.cluster_id = reported.most_common(1)[0][0]
        ours = self._result.cluster_id
        for cluster_id, count in sorted(reported.items()):
            if cluster_id != ours:
                self._doubt(
                    DoubtKind.CLUSTER,
                    f"{count} objects are of cluster {cluster_id}, not of {ours}: left out",
                )
        silent = sum(each.cluster_id is None for each in self._objects)
        if silent:
            self._doubt(
                DoubtKind.CLUSTER, f"{silent} objects do not say of which cluster they are: taken"
            )
        self._objects = [each for each in self._objects if each.cluster_id in (None, ours)]
        if self._seen.deleted:
            self._doubt(
                DoubtKind.DELETED,
                f"{self._seen.deleted} objects are there that the manifest calls deleted: left out",
            )

    def copies(self) -> None:
        """Choose one of several uploads of a segment, preferably the one in the manifest."""
        best: dict[bytes, ObjectSeen] = {}
        for each in sorted(self._objects, key=lambda one: (not one.named, one.uuid)):
            best.setdefault(each.segment, each)
        self._objects = list(best.values())

    def topics(self) -> None:
        """Plan all topics with all their partitions. Of two with one name the older is renamed."""
        names: dict[str, TopicSeen] = {}
        by_age = sorted(self._seen.topics.values(), key=lambda t: (t.seen_ms, t.created_ms, t.id))
        for topic in by_age[::-1]:
            name = topic.name
            if name in names:
                name = recovered_name(name, topic.id)
                self._doubt(
                    DoubtKind.TOPIC,
                    f"two topics are named {topic.name}: the older one becomes {name}; delete it "
                    "if it was deleted before",
                )
            names[name] = topic
        for name, topic in sorted(names.items()):
            if not topic.described:
                self._doubt(
                    DoubtKind.TOPIC,
                    f"topic {name} is known from its records only: its settings are lost",
                )
            self._result.topics.append(
                TopicInfo(
                    topic.id, name, topic.internal and name == topic.name,
                    self._infos(name, topic), topic.configs, topic.created_ms,
                )
            )  # fmt: skip

    def _infos(self, name: str, topic: TopicSeen) -> list[PartitionInfo]:
        infos = []
        for index in range(max(topic.count, max(topic.numbers, default=-1) + 1)):
            number = topic.numbers.get(index)
            if number is None:  # never uploaded
                number = self._result.next_partition
                self._result.next_partition += 1
            self._names[number] = f"{name}-{index}"
            partition = self._seen.partitions.get(number)
            epoch = 0 if partition is None else partition.epoch
            epoch = min(epoch + EPOCH_MARGIN, MAX_EPOCH)
            infos.append(PartitionInfo(number, index, self._result.node_id, epoch))
        return infos

    def _gather_pieces(self) -> None:
        """Return entries by partition; those of unknown partitions are left out."""
        strangers: Counter[int] = Counter()
        unnamed = 0
        for at, each in enumerate(self._objects):
            taken = False
            for entry in each.entries:
                if entry.number not in self._names:
                    strangers[entry.number] += 1
                    continue
                known = self._seen.partitions.get(entry.number)
                if not each.named and known is not None and entry.end_offset <= known.end:
                    continue  # for these offsets the manifest is authoritative
                taken = taken or not each.named
                self._pieces[entry.number].append(
                    ObjectRange(
                        entry.base_offset, entry.end_offset, each.generation, each.created_ms,
                        each.uuid, len(self._entries),
                    )
                )  # fmt: skip
                self._entries.append((at, entry))
            unnamed += taken
        if unnamed:
            self._doubt(
                DoubtKind.UNNAMED,
                f"{unnamed} objects are newer than the manifest, which does not name them: taken",
            )
        for number, count in sorted(strangers.items()):
            self._doubt(
                DoubtKind.TOPIC,
                f"partition {number} is of no topic that is known: {count} objects hold records of "
                "it, which are left out",
            )

    def partitions(self) -> None:
        """Choose the objects of each partition, and where it begins and ends."""
        self._gather_pieces()
        for topic in self._result.topics:
            for info in topic.partitions:
                partition = self._seen.partitions.get(info.number)
                pieces = self._pieces.get(info.number, [])
                if partition is not None or pieces:
                    self._partition(info, partition or BucketPartition(info.number), pieces)

    def _partition(
        self, info: PartitionInfo, partition: BucketPartition, pieces: list[ObjectRange]
    ) -> None:
        name, log_start = self._names[info.number], partition.log_start
        chosen = choose(pieces, log_start)
        for one, other in rivals([each for each in pieces if each.end > log_start]):
            self._doubt(
                DoubtKind.OVERLAP,
                f"offsets {max(one.base, other.base)}-{min(one.end, other.end) - 1} of {name} are "
                f"in two objects of generation {one.generation}: {segment_key(one.uuid)} and "
                f"{segment_key(other.uuid)}",
            )
        end = max(partition.end, log_start, chosen[-1].end if chosen else 0)
        first = max(chosen[0].base if chosen else end, log_start)
        if first > log_start:
            self._doubt(DoubtKind.GAP, f"offsets {log_start}-{first - 1} of {name} are lost")
            log_start = first
        missing = gaps(chosen, log_start, end) if chosen else []
        for depth, (base, stop) in enumerate(missing):
            self._doubt(DoubtKind.GAP, f"offsets {base}-{stop - 1} of {name} are lost")
            if depth == len(self._result.holes):
                self._result.holes.append([])
            self._result.holes[depth].append(Hole(info.number, base, stop))
        for piece in chosen:
            at, entry = self._entries[piece.key]
            self._used.setdefault(at, Used(self._objects[at])).entries.append(entry)
            self._result.records += entry.records
            self._result.size_bytes += entry.length
        if chosen:
            self._result.committed[info.number] = missing[0][0] if missing else end
        epochs = [pair for pair in partition.epochs if pair[1] < end]
        self._result.checkpoints.append(
            PartitionCheckpoint(
                info.number, end, log_start, [*epochs, (info.leader_epoch, end)],
                partition.producers,
            )
        )  # fmt: skip

    def finish(self) -> Restored:
        """Return the finished plan. A used object's entries are sorted by number, as in its
        directory."""
        result = self._result
        result.used = [used for _, used in sorted(self._used.items())]
        for used in result.used:
            used.entries.sort(key=lambda entry: entry.number)
        for holes in result.holes:
            holes.sort(key=lambda hole: hole.number)
        result.checkpoints.sort(key=lambda each: each.number)
        result.doubts = self._doubts[:MAX_DOUBTS]
        if len(self._doubts) > MAX_DOUBTS:
            more = len(self._doubts) - MAX_DOUBTS
            result.doubts.append(Doubt(DoubtKind.GAP, f"and {more} more, which are not listed"))
        return result
