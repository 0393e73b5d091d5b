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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from kafkawire.codec.types import uuid_text
from kafkawire.log.partition.damaged_ranges import find_uncovered
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.restore.choose_segments import choose_chain, choose_most, find_rivals
from kafkawire.restore.evidence import (
    INTERNAL_TOPICS,
    NUMBER_MARGIN,
    BucketEvidence,
    Doubt,
    DoubtKind,
    Evidence,
    FolderEvidence,
    LogSeen,
    PartitionSeen,
    SegmentSeen,
    SegmentShare,
)

MAX_EPOCH = (1 << 31) - 1
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
    ascending numbers; `broker_epoch`: the next start of `node_id` gets a higher one; `logs`: those
    whose records the broker appends when it starts.

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
    broker_epoch: int = 0
    logs: list[LogSeen] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    deleted: list[TopicInfo] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    mixed: bool = False
    aside: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)

    def add_doubt(self, kind: DoubtKind, text: str) -> None:
        self.doubts.append(Doubt(kind, text))

    def texts(self) -> list[str]:
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

    def find_uploaded_ends(self) -> dict[int, int]:
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


def plan_restore(
    seen: Evidence, node_id: int | None = None, leaders: Mapping[int, int] | None = None
) -> RestorePlan:
    """Plan all of it. `leaders` by partition number; `node_id` leads the others, None: the node
    that the evidence is of. Where sources differ, their `rule` says how."""
    plan = RestorePlan(
        node_id if node_id is not None else 1 if seen.node_id is None else seen.node_id,
        configs=dict(seen.configs),
        next_partition=seen.highest_number() + 1 + seen.rule.number_margin,
        next_producer_id=seen.last_producer_id + 1 + NUMBER_MARGIN,
        log_position=seen.log_position,
        logs=seen.logs,
        doubts=list(seen.doubts),
    )
    if isinstance(seen, BucketEvidence):
        plan.cluster_id = _choose_cluster(seen, plan)
    _TopicPlanner(seen, plan, leaders or {}).plan_topics()
    partitions = {number: seen.partitions[slot] for slot, number in plan.numbers.items()}
    if isinstance(seen, BucketEvidence):
        shares = _take_objects(seen, plan)
    else:
        shares = {number: partition.shares for number, partition in partitions.items()}
    for topic in plan.topics:
        for info in topic.partitions:
            partition = partitions.get(info.number)
            if partition is None and info.number in shares:
                partition = PartitionSeen(info.number)
            if partition is not None:
                # A slot of the evidence until now.
                partition.number = info.number
                name = f"{topic.name}-{info.index}"
                _plan_partition(name, partition, shares.get(info.number, []), info, seen, plan)
    for holes in plan.holes:
        holes.sort()
    plan.checkpoints.sort(key=lambda each: each.number)
    if isinstance(seen, FolderEvidence):
        _add_losses(seen, plan)
    return plan


class _TopicPlanner:
    """Decides names and numbers of topics. `_names` by topic id, the newest first; `_slots`: by
    topic id and index the slot of the evidence, or the number that a description has where nothing
    else is known of the partition."""

    def __init__(self, seen: Evidence, plan: RestorePlan, leaders: Mapping[int, int]) -> None:
        self._seen = seen
        self._plan = plan
        self._leaders = leaders
        self._names: dict[bytes, str] = {}
        self._slots: dict[bytes, dict[int, int | None]] = {}
        self._taken: set[int] = set()

    def plan_topics(self) -> None:
        self._add_described()
        if isinstance(self._seen, FolderEvidence):
            self._add_recorded(self._seen)
            self._reserve_deleted(self._seen)
            self._plan.mixed |= any(slot < 0 for slot in self._seen.partitions)
        names: dict[str, bytes] = {}
        # The newest first, which keeps its name.
        for topic_id, name in self._names.items():
            if names.setdefault(name, topic_id) != topic_id:
                new = recovered_name(name, topic_id)
                names[new] = topic_id
                self._plan.add_doubt(
                    DoubtKind.TOPIC,
                    f"two topics are named {name}: the older one is kept as {new}; delete it if "
                    "you do not need it",
                )
        for name, topic_id in sorted(names.items()):
            self._plan_topic(name, topic_id)

    def _add_described(self) -> None:
        """Add topics that a manifest, an object or a catalog frame describes, the newest first."""
        for topic in reversed(self._seen.topics_by_age()):
            if topic.id not in self._seen.deleted:
                self._names[topic.id] = topic.name
                self._slots[topic.id] = {
                    index: self._seen.slot(number, topic.id)
                    for index, number in topic.numbers.items()
                }

    def _add_recorded(self, seen: FolderEvidence) -> None:
        """Add topics that only appear in records, and partitions that no frame lists."""
        for slot, partition in sorted(seen.partitions.items(), key=_by_slot):
            if partition.topic_id in seen.deleted:
                continue
            if not partition.topic:
                self._name_unknown(slot, partition)
            topic_id = partition.topic_id
            self._names.setdefault(topic_id, partition.topic)
            slots = self._slots.setdefault(topic_id, {})
            other = slots.get(partition.index)
            # A description may have a number that nothing was written under.
            if other is None or other not in seen.partitions:
                slots[partition.index] = slot
            elif other != slot:
                self._merge(seen.partitions[other], partition)

    def _name_unknown(self, slot: int, partition: PartitionSeen) -> None:
        """Create a topic for records whose topic is unknown."""
        partition.topic, partition.index = f"recovered-partition-{slot}", 0
        # From the name, so that a repeated restore makes the same topic.
        raw = bytearray(sha256(partition.topic.encode()).digest()[:16])
        # No id begins with a dash as text, which tools would take for an option.
        raw[0] &= 0x7F
        partition.topic_id = bytes(raw)
        self._plan.add_doubt(
            DoubtKind.TOPIC,
            f"nothing says which topic partition number {slot} belongs to: its records are in the "
            f"new topic {partition.topic}",
        )

    def _merge(self, into: PartitionSeen, other: PartitionSeen) -> None:
        """Merge a partition with two numbers, which an interrupted rebuild has written."""
        self._plan.mixed = True
        # The state of the part that was written last.
        if other.next_offset > into.next_offset:
            into.epochs, into.producers = other.epochs, other.producers
        into.shares += other.shares
        into.ranges = sorted([*into.ranges, *other.ranges])
        into.next_offset = max(into.next_offset, other.next_offset)
        into.log_start = max(into.log_start, other.log_start)
        into.epoch = max(into.epoch, other.epoch)

    def _reserve_deleted(self, seen: FolderEvidence) -> None:
        """Keep the numbers of deleted topics reserved, as SQL did."""
        parts: dict[bytes, dict[int, int]] = {}
        names: dict[bytes, str] = {}
        for slot, partition in seen.partitions.items():
            if partition.topic_id in seen.deleted and slot > 0:
                parts.setdefault(partition.topic_id, {})[partition.index] = slot
                names[partition.topic_id] = partition.topic
        for topic_id in sorted(parts):
            infos = [
                PartitionInfo(number, index, self._plan.node_id, 0)
                for index, number in sorted(parts[topic_id].items())
            ]
            self._taken.update(info.number for info in infos)
            self._plan.deleted.append(TopicInfo(topic_id, names[topic_id], False, infos, {}, 0))

    def _plan_topic(self, name: str, topic_id: bytes) -> None:
        topic, origin = self._seen.topics.get(topic_id), self._seen.origins.get(topic_id)
        described = topic is not None and topic.described
        source = origin if origin is not None and not described else topic
        configs = {} if source is None else dict(source.configs)
        created_ms = 0 if source is None else source.created_ms
        own_name = topic is not None and topic.internal and name == topic.name
        if not described:
            settings = "are lost" if origin is None else "are those of its newest segment"
            self._plan.add_doubt(
                DoubtKind.TOPIC,
                f"topic {name} is known from its records only: its settings {settings}, and if it "
                "was deleted before, delete it again",
            )
        internal = own_name or name in INTERNAL_TOPICS
        slots = self._slots[topic_id]
        partitions = max([-1 if topic is None else topic.count - 1, *slots]) + 1
        infos = self._plan_numbers(name, slots, partitions)
        self._plan.topics.append(TopicInfo(topic_id, name, internal, infos, configs, created_ms))

    def _plan_numbers(
        self, name: str, slots: Mapping[int, int | None], partitions: int
    ) -> list[PartitionInfo]:
        """Return the partitions of a topic, each in a new epoch."""
        rule, infos = self._seen.rule, []
        for index in range(partitions):
            slot = slots.get(index)
            partition = None if slot is None else self._seen.partitions.get(slot)
            if slot is None or slot < 0 or slot in self._taken:
                number = self._plan.next_partition
                self._plan.next_partition += 1
            else:
                number = slot
            self._taken.add(number)
            if slot is not None and partition is not None:
                self._plan.numbers.setdefault(slot, number)
            # In a bucket that means that nothing was ever uploaded.
            if slot is None and not rule.covers_gaps:
                self._plan.add_doubt(
                    DoubtKind.TOPIC, f"nothing is known of {name}-{index}: it is empty"
                )
            # Above every epoch that may have been used after the evidence: with a higher one
            # clients detect that their log was truncated.
            epoch = (0 if partition is None else partition.epoch) + rule.epoch_margin
            leader = self._leaders.get(number, self._plan.node_id)
            infos.append(PartitionInfo(number, index, leader, min(epoch, MAX_EPOCH)))
        return infos


def _by_slot(item: tuple[int, PartitionSeen]) -> tuple[bool, int]:
    """Order by number; the slots of numbers that belong to two topics are the last ones."""
    slot, _ = item
    return slot < 0, abs(slot)


def recovered_name(name: str, topic_id: bytes) -> str:
    """Return the name of a topic whose own name is taken."""
    end = f".recovered-{uuid_text(topic_id)[:ID_CHARS]}"
    return name[: MAX_NAME - len(end)] + end


def _plan_partition(
    name: str,
    partition: PartitionSeen,
    shares: Sequence[SegmentShare],
    info: PartitionInfo,
    seen: Evidence,
    plan: RestorePlan,
) -> None:
    """Plan which segments are read, where the log begins, and where it continues."""
    if seen.rule.covers_gaps:
        chosen, start, end = _cover_gaps(name, partition, shares, plan)
    else:
        chosen, start, end = _begin_after_gaps(name, partition, shares, seen.has_damage(), plan)
    if chosen:
        plan.shares[info.number] = chosen
    epochs = [pair for pair in partition.epochs if pair[1] < end]
    plan.checkpoints.append(
        PartitionCheckpoint(
            info.number, end, start, [*epochs, (info.leader_epoch, end)],
            partition.producers.entries(),
        )
    )  # fmt: skip


Coverage = tuple[list[SegmentShare], int, int]
"""The segments to read, first offset and end of a log."""


def _cover_gaps(
    name: str, partition: PartitionSeen, shares: Sequence[SegmentShare], plan: RestorePlan
) -> Coverage:
    """Choose as many offsets as possible. What is missing between them is lost."""
    log_start = partition.log_start
    chosen = choose_most(shares, log_start)
    for one, other in find_rivals([each for each in shares if each.end > log_start]):
        (base, stop), (other_base, other_stop) = one.offsets, other.offsets
        plan.add_doubt(
            DoubtKind.OVERLAP,
            f"offsets {max(base, other_base)}-{min(stop, other_stop) - 1} of {name} are in two "
            f"objects of generation {one.file.generation}: {segment_key(one.file.object)} and "
            f"{segment_key(other.file.object)}",
        )
    end = max(partition.next_offset, log_start, chosen[-1].end if chosen else 0)
    start = max(chosen[0].base if chosen else end, log_start)
    missing = list(find_uncovered(start, end, [share.offsets for share in chosen]))
    for base, stop in [(log_start, start), *missing]:
        if base < stop:
            plan.add_doubt(DoubtKind.GAP, f"offsets {base}-{stop - 1} of {name} are lost")
    # Covered by segments without records, as after compaction, so that readers pass the gaps. A
    # segment has one range of a partition, so the gaps of one are in different segments.
    for depth, (base, stop) in enumerate(missing):
        if depth == len(plan.holes):
            plan.holes.append([])
        plan.holes[depth].append(Hole(partition.number, base, stop))
    return chosen, start, end


def _begin_after_gaps(
    name: str,
    partition: PartitionSeen,
    shares: Sequence[SegmentShare],
    damaged: bool,
    plan: RestorePlan,
) -> Coverage:
    """Choose segments without a gap between them, up to where the journals continue."""
    known, end = partition.log_start, partition.next_offset
    chain = choose_chain(shares, known)
    covered = [share.offsets for share in chain]
    # The stored log start may be older than the last deletion: retention and DeleteRecords remove
    # records from the front. So the log begins where the offsets begin that are present without a
    # gap up to its end.
    start = _run_start([*covered, *partition.ranges], end)
    # A gap may be damage: nothing before it is given up.
    if damaged:
        start = min([start, *(begin for begin, _ in covered[:1] or partition.ranges[:1])])
    start = min(max(known, start), end)
    if start > known:
        plan.add_doubt(
            DoubtKind.GAP,
            f"{name} starts at offset {start}: of those between {known} and there, not all are in "
            "a segment or a journal. They were deleted, are in a remote tier only (name it with "
            "--tier), or are lost",
        )
    chain = [share for share in chain if share.end > start]
    read = [*(share.offsets for share in chain), *partition.ranges]
    # What is not read then, although a file has it, is set aside: it may be the only copy.
    for share in shares:
        base, stop = share.offsets
        inside = _run_start([pair for pair in read if pair[0] < stop], stop)
        if share.file.path and stop > known and inside > max(base, known):
            plan.aside.append(share.file.path)
    return chain, start, end


def _run_start(ranges: Iterable[tuple[int, int]], end: int) -> int:
    """Return where the offsets begin that are without a gap up to `end`; `end` if none are."""
    start = end
    for begin, stop in sorted(ranges, key=lambda each: each[1], reverse=True):
        if stop < start:
            break
        start = min(start, begin)
    return start


def _choose_cluster(seen: BucketEvidence, plan: RestorePlan) -> str:
    """Return the cluster whose objects are taken; empty: unknown."""
    reported = Counter(each.cluster_id for each in seen.segments if each.cluster_id is not None)
    ours = seen.cluster_id or ""
    if seen.cluster_id is None and reported:
        ours = reported.most_common(1)[0][0]
    for cluster_id, count in sorted(reported.items()):
        if cluster_id != ours:
            plan.add_doubt(
                DoubtKind.CLUSTER,
                f"{count} objects are of cluster {cluster_id}, not of {ours}: left out",
            )
    silent = sum(each.cluster_id is None for each in seen.segments)
    if silent:
        plan.add_doubt(
            DoubtKind.CLUSTER, f"{silent} objects do not say of which cluster they are: taken"
        )
    if seen.deleted_objects:
        plan.add_doubt(
            DoubtKind.DELETED,
            f"{seen.deleted_objects} objects are there that the manifest calls deleted: left out",
        )
    return ours


def _take_objects(seen: BucketEvidence, plan: RestorePlan) -> dict[int, list[SegmentShare]]:
    """Return what objects have of each partition; what they have of unknown ones is left out."""
    shares: dict[int, list[SegmentShare]] = defaultdict(list)
    known, strangers, unnamed = plan.names(), Counter[int](), 0
    for each in seen.objects_of(plan.cluster_id):
        taken = False
        for entry in each.entries:
            if entry.number not in known:
                strangers[entry.number] += 1
                continue
            partition = seen.partitions.get(entry.number)
            # For these offsets the manifest is authoritative: the object was replaced or deleted.
            if not each.named and partition and entry.end_offset <= partition.next_offset:
                continue
            taken = taken or not each.named
            shares[entry.number].append(SegmentShare(each, entry))
        unnamed += taken
    if unnamed:
        plan.add_doubt(
            DoubtKind.UNNAMED,
            f"{unnamed} objects are newer than the manifest, which does not name them: taken",
        )
    for number, count in sorted(strangers.items()):
        plan.add_doubt(
            DoubtKind.TOPIC,
            f"partition {number} is of no topic that is known: {count} objects hold records of "
            "it, which are left out",
        )
    return shares


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
        what = damage.description(lambda number: names.get(number, f"partition {number}"))
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
