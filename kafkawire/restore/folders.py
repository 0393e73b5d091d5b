"""One evidence from the folders of several brokers of one cluster.

A partition belongs to the broker in whose folder its leader epoch is highest: a move to another
broker raises it. What only an earlier leader's folder has, from the log start on, is `carried` into
segments of the new leader's folder (kafkawire.restore.carry); offsets that both have are those
of the new leader, because an earlier one may have written records that were never committed. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kafkawire.log.io.ports import LogError
from kafkawire.log.partition.damaged_ranges import uncovered
from kafkawire.restore.evidence import FolderEvidence, PartitionSeen
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
        """Return the part of a plan that is of the partitions that a broker leads."""
        return replace(
            plan,
            node_id=node,
            log_position=self.positions[node],
            checkpoints=[c for c in plan.checkpoints if self.leaders.get(c.number) == node],
            shares={n: s for n, s in plan.shares.items() if self.leaders.get(n) == node},
        )


def combine(found: Mapping[int, FolderEvidence]) -> Combined:
    """Combine the evidence of each broker's folder. Raises LogError where folders contradict each
    other: a partition number is of two topics."""
    seen = FolderEvidence(has_manifest=all(each.has_manifest for each in found.values()))
    combined = Combined(seen)
    for node, each in found.items():
        _add_facts(seen, each)
        combined.positions[node] = each.log_position
    _add_topics(seen, found)
    for number in sorted({number for each in found.values() for number in each.partitions}):
        those = {
            n: each.partitions[number] for n, each in found.items() if number in each.partitions
        }
        _check_topic(number, those)
        _add_partition(combined, number, those)
    return combined


def _add_facts(seen: FolderEvidence, each: FolderEvidence) -> None:
    """Add what is not of single partitions."""
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


def _add_topics(seen: FolderEvidence, found: Mapping[int, FolderEvidence]) -> None:
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


def _add_partition(combined: Combined, number: int, those: Mapping[int, PartitionSeen]) -> None:
    """Add a partition as its leader's folder has it, and what only other folders have."""
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
        _carry(combined, chosen, leader, node, other)
        _add_state(chosen, other)
    if chosen.topic_id:
        combined.seen.slots[number, chosen.topic_id] = number


def _carry(
    combined: Combined, chosen: PartitionSeen, leader: int, node: int, other: PartitionSeen
) -> None:
    """Note the offsets that another folder has and those before it in order have not."""
    for first, end in uncovered(chosen.log_start, chosen.next_offset, _ranges(chosen)):
        for begin, stop in _joined(_ranges(other)):
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


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Return sorted ranges with those joined that overlap or touch."""
    made: list[Range] = []
    for first, end in ranges:
        if made and first <= made[-1][1]:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((first, end))
    return made
