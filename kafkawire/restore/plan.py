"""The plan of a restore: the rows that will be in SQL, and what is doubtful or lost. Pure.

Written by kafkawire.restore.insert.

Topics keep their ids, names, partition numbers and settings, and partitions their offsets. Leader
epochs rise above all that may have been assigned, so that clients detect where their log was
truncated. Partition numbers and producer ids continue above all that may have been assigned.

Two topics may have one name, or share a partition number: after a broker was started with other
metadata, its topics began again at the first number. Both are kept: the topic whose frames are
newest keeps the name, another becomes `<name>.recovered-<first characters of its id>`; a number
stays with one partition, the other gets a new one. Only topics that were deleted according to the
journals are left out; their numbers are not assigned again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from kafkawire.codec.types import uuid_text
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.restore.choose_segments import ObjectRange, choose_objects, find_gaps, find_rivals
from kafkawire.restore.evidence import (
    INTERNAL_TOPICS,
    BucketEvidence,
    Doubt,
    DoubtKind,
    FolderEvidence,
    LogSeen,
    PartitionSeen,
    SegmentSeen,
    SegmentShare,
    TopicSeen,
)

NUMBER_MARGIN = 1_000_000
"""Added to partition numbers and producer ids, which may have been assigned after the newest
evidence: of producer ids, a thousand blocks of a thousand."""
EPOCH_MARGIN = 1000
"""Added to leader epochs, which rise once with each start after a crash: more than the number of
such starts that are likely without an upload in between."""
MAX_EPOCH = (1 << 31) - 1
MAX_DOUBTS = 1000
"""Maximum number of doubts listed; more are only counted."""
MAX_NAME = 249
"""Most characters of a topic's name (Kafka: Topic.MAX_NAME_LENGTH)."""
ID_CHARS = 8
"""Characters of a topic's id in the name of a recovered one: 48 bits distinguish any two."""


class Hole(NamedTuple):
    """Offsets [base, end) of a partition that are in no segment."""

    number: int
    base: int
    end: int


class UsedFile(NamedTuple):
    """A segment that is read, and the shares in it, by the numbers of their partitions."""

    file: SegmentSeen
    shares: list[tuple[int, SegmentShare]]


@dataclass(slots=True)
class RestorePlan:
    """The metadata to store in SQL. `cluster_id` empty: a new one is made; `tier`: the URL of the
    tier with the objects and `logs`, empty: none; `shares`: those that are read, by partition in
    order of offsets; `holes`: the gaps of each segment to be written, at most one per partition, by
    ascending numbers; `logs`: those whose records the broker appends when it starts.

    From a data folder only: `aside`: segment files that no reader uses, although they may have the
    only copy of something; `copied`: those that no reader uses, because another broker's folder has
    copies of their records; `deleted`: topics that were deleted according to the journals;
    `numbers`: the partition number of each slot of the evidence; `mixed`: files contain partitions
    under numbers that are no longer theirs."""

    node_id: int
    cluster_id: str = ""
    tier: str = ""
    topics: list[TopicInfo] = field(default_factory=list)
    checkpoints: list[PartitionCheckpoint] = field(default_factory=list)
    shares: dict[int, list[SegmentShare]] = field(default_factory=dict)
    holes: list[list[Hole]] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)
    next_partition: int = 1
    next_producer_id: int = 0
    log_position: int = 0
    logs: list[LogSeen] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    deleted: list[TopicInfo] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    mixed: bool = False
    aside: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)

    def add_doubt(self, kind: DoubtKind, text: str) -> None:
        """Add something doubtful or lost."""
        self.doubts.append(Doubt(kind, text))

    def texts(self) -> list[str]:
        """Return the sentences of all doubts."""
        return [doubt.text for doubt in self.doubts]

    def names(self) -> dict[int, str]:
        """Return the names of all partitions by their numbers, as `topic-0`."""
        return {
            p.number: f"{topic.name}-{p.index}" for topic in self.topics for p in topic.partitions
        }

    def files(self) -> list[UsedFile]:
        """Return the segments that are read, the oldest first."""
        files: dict[bytes, UsedFile] = {}
        for number, shares in sorted(self.shares.items()):
            for share in shares:
                used = files.setdefault(share.file.uuid, UsedFile(share.file, []))
                used.shares.append((number, share))
        return sorted(files.values(), key=lambda used: (used.file.created_ms, used.file.uuid))

    def uploaded(self) -> dict[int, int]:
        """Return up to which offset each partition is in the tier without a gap from its first
        segment on."""
        ends: dict[int, int] = {}
        for number, shares in self.shares.items():
            for share in shares:
                first, end = share.offsets
                if not share.file.object or first > ends.get(number, first):
                    break
                ends[number] = end
        return ends


def assign_topics(seen: FolderEvidence, plan: RestorePlan, leaders: Mapping[int, int]) -> None:
    """Decide names and numbers of the topics in `plan`; `leaders` by partition number, the node of
    the plan leads the others."""
    _Assigning(seen, plan, leaders).run()


class _Assigning:
    """`_names` by topic id, the newest first; `_slots`: by topic id and index the slot of the
    evidence, or the number in a frame where nothing else is known of the partition."""

    def __init__(self, seen: FolderEvidence, plan: RestorePlan, leaders: Mapping[int, int]) -> None:
        self._seen = seen
        self._leaders = leaders
        self._names: dict[bytes, str] = {}
        self._slots: dict[bytes, dict[int, int | None]] = {}
        self._taken: set[int] = set()
        self._plan = plan
        self._plan.next_partition = seen.highest_number() + 1

    def run(self) -> None:
        self._frames()
        self._records()
        self._deleted()
        names: dict[str, bytes] = {}
        for topic_id, name in self._names.items():
            if names.setdefault(name, topic_id) != topic_id:
                new = recovered_name(name, topic_id)
                names[new] = topic_id
                self._names[topic_id] = new
                self._plan.add_doubt(
                    DoubtKind.TOPIC,
                    f"two topics are named {name}: the older one is kept as {new}; delete it if "
                    "you do not need it",
                )
        for name, topic_id in sorted(names.items()):
            self._topic(name, topic_id)
        self._plan.mixed |= any(slot < 0 for slot in self._seen.partitions)

    def _frames(self) -> None:
        """Add topics with a catalog frame, the newest first."""
        for topic_id, topic in reversed(self._seen.topics.items()):
            if topic_id not in self._seen.deleted:
                self._names[topic_id] = topic.name
                self._slots[topic_id] = {
                    index: self._seen.slot(number, topic_id)
                    for index, number in topic.numbers.items()
                }

    def _records(self) -> None:
        """Add topics that only appear in records, and partitions that no frame lists."""
        for slot, partition in sorted(self._seen.partitions.items(), key=_newest_slot):
            if partition.topic_id in self._seen.deleted:
                continue
            if not partition.topic:
                self._nameless(slot, partition)
            topic_id = partition.topic_id
            self._names.setdefault(topic_id, partition.topic)
            slots = self._slots.setdefault(topic_id, {})
            other = slots.get(partition.index)
            if other is None or other not in self._seen.partitions:
                slots[partition.index] = slot
            elif other != slot:
                self._merge(self._seen.partitions[other], partition)

    def _nameless(self, slot: int, partition: PartitionSeen) -> None:
        """Create a topic for records whose topic is unknown."""
        partition.topic, partition.index = f"recovered-partition-{slot}", 0
        raw = bytearray(sha256(partition.topic.encode()).digest()[:16])
        raw[0] &= 0x7F  # no id begins with a dash as text
        partition.topic_id = bytes(raw)
        self._plan.add_doubt(
            DoubtKind.TOPIC,
            f"nothing says which topic partition number {slot} belongs to: its records are in the "
            f"new topic {partition.topic}",
        )

    def _merge(self, into: PartitionSeen, other: PartitionSeen) -> None:
        """Merge a partition with two numbers, which an interrupted rebuild has written."""
        self._plan.mixed = True
        if other.next_offset > into.next_offset:
            into.epochs, into.producers = other.epochs, other.producers
        into.shares += other.shares
        into.ranges = sorted([*into.ranges, *other.ranges])
        into.next_offset = max(into.next_offset, other.next_offset)
        into.log_start = max(into.log_start, other.log_start)
        into.epoch = max(into.epoch, other.epoch)

    def _topic(self, name: str, topic_id: bytes) -> None:
        frame, origin = self._seen.topics.get(topic_id), self._seen.origins.get(topic_id)
        internal, configs, created_ms = name in INTERNAL_TOPICS, {}, 0
        if frame is not None:
            configs, created_ms = dict(frame.configs), frame.created_ms
        elif origin is not None:
            configs, created_ms = dict(origin.configs), origin.created_ms
        if frame is None:
            settings = "are lost" if origin is None else "are those of its newest segment"
            self._plan.add_doubt(
                DoubtKind.TOPIC,
                f"topic {name} is known from its records only: its settings {settings}, and if it "
                "was deleted before, delete it again",
            )
        infos = self._partitions(name, self._slots[topic_id])
        self._plan.topics.append(TopicInfo(topic_id, name, internal, infos, configs, created_ms))

    def _partitions(self, name: str, slots: dict[int, int | None]) -> list[PartitionInfo]:
        """Return the partitions of a topic, one for each index up to the greatest, in a new
        epoch."""
        infos = []
        for index in range(max(slots) + 1):
            slot = slots.get(index)
            partition = None if slot is None else self._seen.partitions.get(slot)
            if slot is None or slot < 0 or slot in self._taken:
                number = self._plan.next_partition
                self._plan.next_partition += 1
            else:
                number = slot
            self._taken.add(number)
            if slot is not None and partition is not None:
                self._plan.numbers[slot] = number
                epoch = partition.epoch + 1
            else:
                epoch = 1
                if slot is None:
                    self._plan.add_doubt(
                        DoubtKind.TOPIC, f"nothing is known of {name}-{index}: it is empty"
                    )
            leader = self._leaders.get(number, self._plan.node_id)
            infos.append(PartitionInfo(number, index, leader, epoch))
        return infos

    def _deleted(self) -> None:
        """Keep the numbers of deleted topics reserved, as SQL did."""
        parts: dict[bytes, dict[int, int]] = {}
        names: dict[bytes, str] = {}
        for slot, partition in self._seen.partitions.items():
            if partition.topic_id in self._seen.deleted and slot > 0:
                parts.setdefault(partition.topic_id, {})[partition.index] = slot
                names[partition.topic_id] = partition.topic
        for topic_id in sorted(parts):
            infos = [
                PartitionInfo(number, index, self._plan.node_id, 0)
                for index, number in sorted(parts[topic_id].items())
            ]
            self._taken.update(info.number for info in infos)
            self._plan.deleted.append(TopicInfo(topic_id, names[topic_id], False, infos, {}, 0))


def _newest_slot(item: tuple[int, PartitionSeen]) -> tuple[bool, int]:
    """Return numbers in order, then the slots of numbers that belong to two topics."""
    slot, _ = item
    return slot < 0, abs(slot)


def recovered_name(name: str, topic_id: bytes) -> str:
    """Return the name of a topic whose own name is taken."""
    end = f".recovered-{uuid_text(topic_id)[:ID_CHARS]}"
    return name[: MAX_NAME - len(end)] + end


def plan_from_folder(
    seen: FolderEvidence, node_id: int, leaders: Mapping[int, int] | None = None
) -> RestorePlan:
    """Plan all of it; `leaders` by partition number, `node_id` leads the others."""
    plan = RestorePlan(node_id, log_position=seen.log_position, configs=dict(seen.configs))
    plan.next_producer_id = seen.last_producer_id + 1 + NUMBER_MARGIN
    assign_topics(seen, plan, leaders or {})
    sources = {number: seen.partitions[slot] for slot, number in plan.numbers.items()}
    damaged = bool(seen.damage or seen.unreadable)
    for topic in plan.topics:
        for info in topic.partitions:
            partition = sources.get(info.number)
            if partition is not None and partition.next_offset:
                partition.number = info.number
                _plan_partition(f"{topic.name}-{info.index}", partition, info, damaged, plan)
    _add_losses(seen, plan)
    return plan


def _plan_partition(
    name: str, partition: PartitionSeen, info: PartitionInfo, damaged: bool, plan: RestorePlan
) -> None:
    chain = _chain_of(partition)
    known = partition.log_start
    covered = [share.offsets for share in chain]
    start = _run_start([*covered, *partition.ranges], partition.next_offset)
    if damaged:  # a gap may be damage: nothing before it is given up
        first = [begin for begin, _ in covered[:1] or partition.ranges[:1]]
        start = min([start, *first])
    if start > known:
        partition.log_start = start
    partition.log_start = min(partition.log_start, partition.next_offset)
    chain = [share for share in chain if share.entry.end_offset > partition.log_start]
    if chain:
        plan.shares[partition.number] = chain
    _note_unread(name, partition, chain, known, plan)
    epochs = [*partition.epochs, (info.leader_epoch, partition.next_offset)]
    plan.checkpoints.append(
        PartitionCheckpoint(
            partition.number,
            partition.next_offset,
            partition.log_start,
            epochs,
            partition.producers.entries(),
        )
    )


def _chain_of(partition: PartitionSeen) -> list[SegmentShare]:
    """Return the shares to read: without a gap between them, as far to the end as there are any,
    and from there as far to the front; the newest where two have the same offsets."""
    best: dict[int, tuple[tuple[int, bool, int, bytes], SegmentShare | None]] = {}
    shares = [share for share in partition.shares if share.entry.end_offset > partition.log_start]
    shares.sort(key=lambda share: (share.entry.end_offset, share.entry.base_offset))
    for share in shares:
        entry = share.entry
        begin = entry.base_offset
        if begin in best:
            begin = -best[begin][0][0]
        rank = (-begin, bool(share.file.path), share.file.created_ms, share.file.uuid)
        if entry.end_offset not in best or rank > best[entry.end_offset][0]:
            best[entry.end_offset] = rank, share
    chain: list[SegmentShare] = []
    end = max(best, default=-1)
    while end in best:
        share_or_none = best[end][1]
        assert share_or_none is not None
        chain.append(share_or_none)
        end = share_or_none.entry.base_offset
    return chain[::-1]


def _run_start(ranges: Iterable[tuple[int, int]], end: int) -> int:
    """Return where the offsets begin that are present without a gap up to `end`; `end` if that is
    not."""
    start = end
    for begin, stop in sorted(ranges, key=lambda each: each[1], reverse=True):
        if stop < start:
            break
        start = min(start, begin)
    return start


def _note_unread(
    name: str, partition: PartitionSeen, chain: list[SegmentShare], known: int, plan: RestorePlan
) -> None:
    """Note what is not read although a file has or should have it."""
    if partition.log_start > known:
        plan.add_doubt(
            DoubtKind.GAP,
            f"{name} starts at offset {partition.log_start}: of those between {known} and there, "
            "not all are in a segment or a journal. They were deleted, are in a remote tier only "
            "(name it with --tier), or are lost",
        )
    covered = [share.offsets for share in chain]
    read = [*covered, *partition.ranges]
    for share in partition.shares:
        entry = share.entry
        inside = _run_start([pair for pair in read if pair[0] < entry.end_offset], entry.end_offset)
        lost = entry.end_offset > known and inside > max(entry.base_offset, known)
        if lost and share.file.path:
            plan.aside.append(share.file.path)


def _add_losses(seen: FolderEvidence, plan: RestorePlan) -> None:
    """Note losses: facts that journals and segments do not have, or that were unreadable."""
    used = {share.file.path for shares in plan.shares.values() for share in shares}
    unreached = sorted(set(plan.aside) - used)
    for path, why in seen.unreadable:
        text = f"{why if path in why else f'{path}: {why}'}; it is set aside"
        plan.add_doubt(DoubtKind.UNREADABLE, text)
    for path in unreached:
        text = f"{path} holds offsets that cannot be reached; it is set aside"
        plan.add_doubt(DoubtKind.UNUSED, text)
    plan.aside = [*unreached, *(path for path, _ in seen.unreadable)]
    names = {p.number: f"{p.topic}-{p.index}" for p in seen.partitions.values() if p.topic}
    for damage in seen.damage:
        what = damage.text(lambda number: names.get(number, f"partition {number}"))
        plan.add_doubt(DoubtKind.DAMAGED, f"journal {damage.gap.journal} {what}")
    if not seen.has_manifest:
        plan.add_doubt(
            DoubtKind.LOST, "dynamic settings of brokers are in SQL only: set them again"
        )
        plan.add_doubt(
            DoubtKind.LOST,
            "log starts that DeleteRecords or retention moved since a partition was last named in "
            "a journal or cut are as they were before: such records are back until they are "
            "deleted",
        )


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
        chosen = choose_objects(pieces, log_start)
        for one, other in find_rivals([each for each in pieces if each.end > log_start]):
            self._plan.add_doubt(
                DoubtKind.OVERLAP,
                f"offsets {max(one.base, other.base)}-{min(one.end, other.end) - 1} of {name} are "
                f"in two objects of generation {one.generation}: {segment_key(one.uuid)} and "
                f"{segment_key(other.uuid)}",
            )
        end = max(partition.next_offset, log_start, chosen[-1].end if chosen else 0)
        first = max(chosen[0].base if chosen else end, log_start)
        missing = find_gaps(chosen, first, end) if chosen else []
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
