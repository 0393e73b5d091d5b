"""Topics and partition numbers of rebuilt metadata: every topic of which the log has records.

Two topics may have one name, or share a partition number: after a broker was started with other
metadata, its topics began again at the first number. Both are kept: the topic whose frames are
newest keeps the name, another becomes `<name>.recovered-<first characters of its id>`; a number
stays with one partition, the other gets a new one. Only topics that were deleted according to the
journals are left out; their numbers are not assigned again. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from kafkawire.codec.types import uuid_text
from kafkawire.metadata.directory import PartitionInfo, TopicInfo
from kafkawire.restore.evidence import DoubtKind, FolderEvidence, PartitionSeen
from kafkawire.restore.plan import RestorePlan

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__schedule_state"})
"""Topics that clients may not write to; the log does not say of a topic that it is one."""
MAX_NAME = 249
"""Most characters of a topic's name (Kafka: Topic.MAX_NAME_LENGTH)."""
ID_CHARS = 8
"""Characters of a topic's id in the name of a recovered one: 48 bits distinguish any two."""


def assign(seen: FolderEvidence, plan: RestorePlan, leaders: Mapping[int, int]) -> None:
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
