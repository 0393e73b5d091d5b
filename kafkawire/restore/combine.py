"""Combine the evidence of several brokers, and that of a data folder with that of its bucket. Pure.

Three cases: the folders of several brokers of one cluster (`combine_folders`), their manifests and
objects in one tier (`combine_brokers`), and a data folder whose older records are only in the
bucket (`add_bucket`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafkawire.log.io.ports import LogError
from kafkawire.log.partition.damaged_ranges import find_uncovered
from kafkawire.restore.evidence import (
    BucketEvidence,
    FolderEvidence,
    PartitionSeen,
    SegmentShare,
    TopicSeen,
)
from kafkawire.restore.plan import RestorePlan

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Carried:
    """Offsets [first, end) of a partition, led by `leader`, that are in the folder of `source`."""

    number: int
    leader: int
    source: int
    first: int
    end: int


@dataclass(slots=True)
class Combined:
    """The evidence of all folders. `leaders` by partition number; `positions`: the log position of
    each broker."""

    seen: FolderEvidence
    leaders: dict[int, int] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    carried: list[Carried] = field(default_factory=list)

    def part_of(self, plan: RestorePlan, node: int) -> RestorePlan:
        return replace(
            plan,
            node_id=node,
            log_position=self.positions[node],
            checkpoints=[c for c in plan.checkpoints if self.leaders.get(c.number) == node],
            shares={n: s for n, s in plan.shares.items() if self.leaders.get(n) == node},
        )


def combine_folders(found: Mapping[int, FolderEvidence]) -> Combined:
    """Combine the evidence of each broker's folder. Raises LogError where folders contradict each
    other: a partition number is of two topics.

    A partition belongs to the broker in whose folder its leader epoch is highest. What only an
    earlier leader's folder has, from the log start on, is `carried` into segments of the new
    leader's folder."""
    seen = FolderEvidence(has_manifest=all(each.has_manifest for each in found.values()))
    combined = Combined(seen)
    for node, each in found.items():
        _add_facts(seen, each)
        combined.positions[node] = each.log_position
    _add_folder_topics(seen, found)
    for number in sorted({number for each in found.values() for number in each.partitions}):
        those = {
            n: each.partitions[number] for n, each in found.items() if number in each.partitions
        }
        _check_topic(number, those)
        _add_folder_partition(combined, number, those)
    return combined


def _add_facts(seen: FolderEvidence, each: FolderEvidence) -> None:
    seen.deleted |= each.deleted
    seen.segments += each.segments
    seen.unreadable += each.unreadable
    seen.damage += each.damage
    seen.journals += each.journals
    seen.raise_numbers(each)
    seen.origins = {**each.origins, **seen.origins}
    seen.configs = {**each.configs, **seen.configs}
    for cluster_id, written in each.clusters.items():
        seen.clusters[cluster_id] = min(written, seen.clusters.get(cluster_id, written))


def _add_folder_topics(seen: FolderEvidence, found: Mapping[int, FolderEvidence]) -> None:
    """Add the topics of catalog frames: of several the one with the most partitions, which is the
    newest as far as can be seen."""
    for each in found.values():
        for topic in each.topics.values():
            before = seen.topics.get(topic.id)
            if before is None or topic.count > before.count:
                seen.topics[topic.id] = topic


def _check_topic(number: int, those: Mapping[int, PartitionSeen]) -> None:
    ids = {partition.topic_id for partition in those.values()} - {b""}
    if number < 0 or len(ids) > 1:
        raise LogError(
            f"the folders of brokers {sorted(those)} have partition number {abs(number)} for "
            "different topics: restore each folder without the others"
        )


def _add_folder_partition(
    combined: Combined, number: int, those: Mapping[int, PartitionSeen]
) -> None:
    """Add a partition as its leader's folder has it, and what only other folders have."""
    # A move to another broker raises the epoch.
    order = sorted(those, key=lambda n: (those[n].epoch, those[n].next_offset, -n), reverse=True)
    leader = order[0]
    chosen = those[leader]
    combined.seen.partitions[number] = chosen
    combined.leaders[number] = leader
    for node in order[1:]:
        other = those[node]
        if not chosen.topic:
            chosen.topic, chosen.topic_id, chosen.index = other.topic, other.topic_id, other.index
        chosen.log_start = max(chosen.log_start, other.log_start)
        _carry_missing(combined, chosen, leader, node, other)
        _add_state(chosen, other)
    if chosen.topic_id:
        combined.seen.slots[number, chosen.topic_id] = number


def _carry_missing(
    combined: Combined, chosen: PartitionSeen, leader: int, node: int, other: PartitionSeen
) -> None:
    """Note the offsets that another folder has and those before it in order have not."""
    # Offsets that both have are those of the new leader: an earlier one may have written records
    # that were never committed.
    for first, end in find_uncovered(chosen.log_start, chosen.next_offset, _ranges(chosen)):
        for begin, stop in _join_ranges(_ranges(other)):
            begin, stop = max(first, begin), min(end, stop)
            if begin < stop:
                combined.carried.append(Carried(chosen.number, leader, node, begin, stop))
                chosen.ranges.append((begin, stop))
    chosen.ranges.sort()


def _add_state(chosen: PartitionSeen, other: PartitionSeen) -> None:
    """Complete epochs and producers by those of an earlier leader."""
    since = min((epoch for epoch, _ in chosen.epochs), default=chosen.epoch + 1)
    earlier = [pair for pair in other.epochs if pair[0] < since and pair[1] < chosen.next_offset]
    chosen.epochs = [*earlier, *chosen.epochs]
    known = set(chosen.producers.states)
    entries = [each for each in other.producers.entries() if each.producer_id not in known]
    chosen.producers.load([replace(each, open_offset=-1) for each in entries])


def _ranges(partition: PartitionSeen) -> list[Range]:
    return sorted([*(share.offsets for share in partition.shares), *partition.ranges])


def _join_ranges(ranges: Iterable[Range]) -> list[Range]:
    made: list[Range] = []
    for first, end in ranges:
        if made and first <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((first, end))
    return made


def combine_brokers(parts: list[BucketEvidence]) -> BucketEvidence:
    """Return the evidence of several brokers of a tier, each with its manifest and objects, as
    that of one. A partition in several of them begins at the highest log start and ends at the
    highest end; of objects with the same offsets the plan uses the highest generation."""
    seen = parts[0] if parts else BucketEvidence()
    for part in parts[1:]:
        seen.cluster_id = seen.cluster_id or part.cluster_id
        seen.node_id = part.node_id if seen.node_id is None else seen.node_id
        seen.has_manifest |= part.has_manifest
        seen.raise_numbers(part)
        seen.configs = seen.configs or part.configs
        _add_bucket_partitions(seen, part)
        _add_bucket_topics(seen, part.topics.values())
        seen.segments += part.segments
        seen.deleted_objects += part.deleted_objects
        seen.doubts += part.doubts
    return seen


def _add_bucket_topics(seen: BucketEvidence, topics: Iterable[TopicSeen]) -> None:
    """Add topics. Of two descriptions the one with the most partitions was written last."""
    for topic in topics:
        known = seen.topics.get(topic.id)
        if known is None:
            seen.topics[topic.id] = topic
            continue
        newer, older = (topic, known) if _age(topic) > _age(known) else (known, topic)
        newer.numbers = {**older.numbers, **newer.numbers}
        newer.count = max(newer.count, older.count)
        seen.topics[topic.id] = newer


def _age(topic: TopicSeen) -> tuple[bool, int, int]:
    return topic.described, topic.count, topic.seen_ms


def _add_bucket_partitions(seen: BucketEvidence, part: BucketEvidence) -> None:
    """Add partitions; the state of the one with the newest records holds."""
    ends = _newest_ends(seen), _newest_ends(part)
    for number, other in part.partitions.items():
        known = seen.partitions.get(number)
        if known is None:
            seen.partitions[number] = other
            continue
        newest = other if ends[1].get(number, 0) > ends[0].get(number, 0) else known
        seen.partitions[number] = PartitionSeen(
            number,
            log_start=max(known.log_start, other.log_start),
            next_offset=max(known.next_offset, other.next_offset),
            epoch=max(known.epoch, other.epoch),
            epochs=sorted({*known.epochs, *other.epochs}),
            producers=newest.producers,
        )


def _newest_ends(seen: BucketEvidence) -> dict[int, int]:
    ends: dict[int, int] = {}
    for found in seen.segments:
        for entry in found.entries:
            ends[entry.number] = max(ends.get(entry.number, 0), entry.end_offset)
    return ends


Owner = tuple[TopicSeen, int]
"""Topic and index of a partition number."""


def add_bucket(seen: FolderEvidence, bucket: BucketEvidence) -> None:
    """Add all evidence of the bucket of a broker to that of its folder: records without local files
    are only in the bucket. An object is another copy of the segment file with its segment's uuid;
    without a file it becomes a remote segment. Topics, log starts, epochs and producers of the
    manifest complete those of the log."""
    owners = {
        number: (topic, index)
        for topic in bucket.topics.values()
        for index, number in topic.numbers.items()
    }
    # Topics that the log does not describe are treated as oldest; those of log objects have
    # durability=s3.
    more = {t.id: t for t in bucket.topics.values() if t.described or t.configs}
    seen.topics = {**{each: more[each] for each in more if each not in seen.topics}, **seen.topics}
    _add_objects(seen, bucket, owners)
    for number, partition in bucket.partitions.items():
        if number in owners:
            _complete_partition(_partition_of(seen, number, owners[number]), partition)
    seen.raise_numbers(bucket)
    seen.configs = dict(seen.configs or bucket.configs)
    seen.logs = bucket.logs
    # The oldest of all: the tier belongs to that cluster, whatever segments say.
    if bucket.cluster_id:
        seen.clusters[bucket.cluster_id] = 0


def _partition_of(seen: FolderEvidence, number: int, owner: Owner) -> PartitionSeen:
    topic, index = owner
    partition = seen.get_or_add(number, topic.id)
    partition.topic, partition.index = partition.topic or topic.name, index
    return partition


def _complete_partition(partition: PartitionSeen, bucket: PartitionSeen) -> None:
    if bucket.next_offset > partition.next_offset or not partition.epochs:
        partition.epochs = list(bucket.epochs)
        partition.producers.load(bucket.producers.entries())
    partition.next_offset = max(partition.next_offset, bucket.next_offset)
    partition.log_start = max(partition.log_start, bucket.log_start)
    partition.epoch = max(partition.epoch, bucket.epoch)


def _add_objects(seen: FolderEvidence, bucket: BucketEvidence, owners: dict[int, Owner]) -> None:
    files = {segment.uuid: segment for segment in seen.segments}
    for each in bucket.objects_of(bucket.cluster_id):
        # An object is another copy of the segment file with its segment's uuid.
        file = files.get(each.uuid)
        if file is None:
            for entry in each.entries:
                if entry.number in owners:
                    partition = _partition_of(seen, entry.number, owners[entry.number])
                    partition.shares.append(SegmentShare(each, entry))
                    partition.next_offset = max(partition.next_offset, entry.end_offset)
        elif not file.object and file.size_bytes == each.size_bytes:
            file.object = each.object
            file.generation, file.retention_class = each.generation, each.retention_class
