"""Plan a data folder from the evidence of a bucket, with a list of doubts. Pure.

Topics keep their ids, names, partition numbers and settings, and partitions their offsets. Leader
epochs rise above all that may have been assigned but not uploaded, so that clients detect where
their log was truncated. Partition numbers and producer ids continue above all that may have been
assigned. Offsets that are in no object are a gap in the log, which is covered by a segment without
records, as after compaction.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.restore.evidence import (
    BucketEvidence,
    Doubt,
    DoubtKind,
    PartitionSeen,
    SegmentSeen,
    SegmentShare,
    TopicSeen,
)
from kafkawire.restore.plan import NUMBER_MARGIN, Hole, RestorePlan
from kafkawire.restore.tiling import ObjectRange, choose, gaps, rivals
from kafkawire.restore.topics import recovered_name

EPOCH_MARGIN = 1000
"""Added to leader epochs, which rise once with each start after a crash: more than the number of
such starts that are likely without an upload in between."""
MAX_EPOCH = (1 << 31) - 1
MAX_DOUBTS = 1000
"""Maximum number of doubts listed; more are only counted."""


def plan_from_bucket(seen: BucketEvidence) -> RestorePlan:
    """Plan all of it."""
    return _Planning(seen).run()


class _Planning:
    def __init__(self, seen: BucketEvidence) -> None:
        self._seen = seen
        self._objects = seen.segments
        self._pieces: dict[int, list[ObjectRange]] = defaultdict(list)
        self._shares: list[SegmentShare] = []  # by ObjectRange.key
        self._names: dict[int, str] = {}
        self._plan = RestorePlan(
            1 if seen.node_id is None else seen.node_id,
            seen.cluster_id or "",
            configs=dict(seen.configs),
            logs=seen.logs,
            doubts=list(seen.doubts),
            next_partition=seen.highest_number() + 1 + NUMBER_MARGIN,
            next_producer_id=seen.last_producer_id + 1 + NUMBER_MARGIN,
        )

    def run(self) -> RestorePlan:
        self._clusters()
        self._copies()
        self._topics()
        self._partitions()
        return self._finish()

    def _clusters(self) -> None:
        """Leave out objects of other clusters."""
        reported = Counter(each.cluster_id for each in self._objects if each.cluster_id is not None)
        if self._seen.cluster_id is None and reported:
            self._plan.cluster_id = reported.most_common(1)[0][0]
        ours = self._plan.cluster_id
        for cluster_id, count in sorted(reported.items()):
            if cluster_id != ours:
                self._plan.add_doubt(
                    DoubtKind.CLUSTER,
                    f"{count} objects are of cluster {cluster_id}, not of {ours}: left out",
                )
        silent = sum(each.cluster_id is None for each in self._objects)
        if silent:
            self._plan.add_doubt(
                DoubtKind.CLUSTER, f"{silent} objects do not say of which cluster they are: taken"
            )
        self._objects = [each for each in self._objects if each.cluster_id in (None, ours)]
        if self._seen.deleted:
            self._plan.add_doubt(
                DoubtKind.DELETED,
                f"{self._seen.deleted} objects are there that the manifest calls deleted: left out",
            )

    def _copies(self) -> None:
        """Choose one of several uploads of a segment, preferably the one in the manifest."""
        best: dict[bytes, SegmentSeen] = {}
        for each in sorted(self._objects, key=lambda one: (not one.named, one.object)):
            best.setdefault(each.uuid, each)
        self._objects = list(best.values())

    def _topics(self) -> None:
        """Plan all topics with all their partitions. Of two with one name the older is renamed."""
        names: dict[str, TopicSeen] = {}
        by_age = sorted(self._seen.topics.values(), key=lambda t: (t.seen_ms, t.created_ms, t.id))
        for topic in by_age[::-1]:
            name = topic.name
            if name in names:
                name = recovered_name(name, topic.id)
                self._plan.add_doubt(
                    DoubtKind.TOPIC,
                    f"two topics are named {topic.name}: the older one becomes {name}; delete it "
                    "if it was deleted before",
                )
            names[name] = topic
        for name, topic in sorted(names.items()):
            if not topic.described:
                self._plan.add_doubt(
                    DoubtKind.TOPIC,
                    f"topic {name} is known from its records only: its settings are lost",
                )
            self._plan.topics.append(
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
                number = self._plan.next_partition
                self._plan.next_partition += 1
            self._names[number] = f"{name}-{index}"
            partition = self._seen.partitions.get(number)
            epoch = 0 if partition is None else partition.epoch
            epoch = min(epoch + EPOCH_MARGIN, MAX_EPOCH)
            infos.append(PartitionInfo(number, index, self._plan.node_id, epoch))
        return infos

    def _gather_pieces(self) -> None:
        """Return entries by partition; those of unknown partitions are left out."""
        strangers: Counter[int] = Counter()
        unnamed = 0
        for each in self._objects:
            taken = False
            for entry in each.entries:
                if entry.number not in self._names:
                    strangers[entry.number] += 1
                    continue
                known = self._seen.partitions.get(entry.number)
                if not each.named and known is not None and entry.end_offset <= known.next_offset:
                    continue  # for these offsets the manifest is authoritative
                taken = taken or not each.named
                self._pieces[entry.number].append(
                    ObjectRange(
                        entry.base_offset, entry.end_offset, each.generation, each.created_ms,
                        each.object, len(self._shares),
                    )
                )  # fmt: skip
                self._shares.append(SegmentShare(each, entry))
            unnamed += taken
        if unnamed:
            self._plan.add_doubt(
                DoubtKind.UNNAMED,
                f"{unnamed} objects are newer than the manifest, which does not name them: taken",
            )
        for number, count in sorted(strangers.items()):
            self._plan.add_doubt(
                DoubtKind.TOPIC,
                f"partition {number} is of no topic that is known: {count} objects hold records of "
                "it, which are left out",
            )

    def _partitions(self) -> None:
        """Choose the objects of each partition, and where it begins and ends."""
        self._gather_pieces()
        for topic in self._plan.topics:
            for info in topic.partitions:
                partition = self._seen.partitions.get(info.number)
                pieces = self._pieces.get(info.number, [])
                if partition is not None or pieces:
                    self._partition(info, partition or PartitionSeen(info.number), pieces)

    def _partition(
        self, info: PartitionInfo, partition: PartitionSeen, pieces: list[ObjectRange]
    ) -> None:
        name, log_start = self._names[info.number], partition.log_start
        chosen = choose(pieces, log_start)
        for one, other in rivals([each for each in pieces if each.end > log_start]):
            self._plan.add_doubt(
                DoubtKind.OVERLAP,
                f"offsets {max(one.base, other.base)}-{min(one.end, other.end) - 1} of {name} are "
                f"in two objects of generation {one.generation}: {segment_key(one.uuid)} and "
                f"{segment_key(other.uuid)}",
            )
        end = max(partition.next_offset, log_start, chosen[-1].end if chosen else 0)
        first = max(chosen[0].base if chosen else end, log_start)
        missing = gaps(chosen, first, end) if chosen else []
        for base, stop in [(log_start, first), *missing]:
            if base < stop:
                text = f"offsets {base}-{stop - 1} of {name} are lost"
                self._plan.add_doubt(DoubtKind.GAP, text)
        log_start = first
        for depth, (base, stop) in enumerate(missing):
            if depth == len(self._plan.holes):
                self._plan.holes.append([])
            self._plan.holes[depth].append(Hole(info.number, base, stop))
        if chosen:
            self._plan.shares[info.number] = [self._shares[piece.key] for piece in chosen]
        epochs = [pair for pair in partition.epochs if pair[1] < end]
        self._plan.checkpoints.append(
            PartitionCheckpoint(
                info.number, end, log_start, [*epochs, (info.leader_epoch, end)],
                partition.producers.entries(),
            )
        )  # fmt: skip

    def _finish(self) -> RestorePlan:
        plan = self._plan
        for holes in plan.holes:
            holes.sort()
        plan.checkpoints.sort(key=lambda each: each.number)
        more = len(plan.doubts) - MAX_DOUBTS
        if more > 0:
            text = f"and {more} more, which are not listed"
            plan.doubts[MAX_DOUBTS:] = [Doubt(DoubtKind.GAP, text)]
        return plan
