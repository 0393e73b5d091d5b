"""Topics and partitions as journals, segments and the local manifest have them, before a rebuild.

Plain data, filled by kafkawire.restore.data_folder and read by kafkawire.restore.folder_plan.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.segment.format import PartitionEntry, TopicOrigin
from kafkawire.log.journal.losses import Damage
from kafkawire.log.partition.producers import Producers
from kafkawire.log.recovery.result import Recovered


@dataclass(slots=True)
class SegmentShare:
    """The part of a segment that belongs to one partition."""

    file: SegmentSeen
    entry: PartitionEntry


@dataclass(slots=True)
class SegmentSeen:
    """An intact segment, whether readers used it or not. `path` empty: it has no file and is only
    in the remote tier; `object`: the uuid of its object there, empty: none."""

    path: str
    uuid: bytes
    created_ms: int
    size_bytes: int
    object: bytes = b""
    generation: int = 0
    retention_class: str = ""


@dataclass(slots=True)
class PartitionSeen:
    """One partition number of one topic. `ranges`: [first, end) in the journals, in their order,
    joined; `places`, `ends`: log position and end of each of their frames; `next_offset`,
    `log_start`: the greatest found anywhere; `epochs`: the history of epochs; `replay_from`: the
    end of the newest segment, whose state has the transactions before it; `stored_start`: the log
    start that was stored, by journals and local manifest. A merge of an earlier version may have
    written a later one into a segment.
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


@dataclass(slots=True)
class Evidence:
    """Everything that was found. `topics` and `deleted` by id, from the newest frame of each;
    `log_position`: up to where the journals are known to be committed; `unreadable`: (path, why) of
    segment files.

    `partitions` by slot: the partition number, or a negative slot where the number belongs to
    another topic too, as after a start with other metadata; `slots` by number and topic id.
    `origins`: topics as the newest segment describes them; `clusters`: when each cluster id was
    first written; `bounds`: the ledger's; `configs`: dynamic settings of
    all brokers; `has_manifest`: whether the local manifest could be read."""

    partitions: dict[int, PartitionSeen] = field(default_factory=dict)
    topics: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)
    segments: list[SegmentSeen] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    log_position: int = 0
    journals: int = 0
    last_producer_id: int = -1
    slots: dict[tuple[int, bytes], int] = field(default_factory=dict)
    origins: dict[bytes, TopicOrigin] = field(default_factory=dict)
    clusters: dict[str, int] = field(default_factory=dict)
    recovered: Recovered = field(default_factory=Recovered)
    bounds: Mapping[int, int] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    next_partition: int = 1
    has_manifest: bool = False

    def of(self, number: int, topic_id: bytes = b"") -> PartitionSeen:
        """Facts known so far about a partition; `topic_id` empty: its topic is unknown."""
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
        """Return the slot of a partition number in a topic; None if another topic has the number
        and nothing is known of this one."""
        slot = self.slots.get((number, topic_id))
        if slot is not None:
            return slot
        holder = self.partitions.get(number)
        free = holder is None or not topic_id or holder.topic_id in (b"", topic_id)
        return number if free else None

    def cluster_id(self) -> str:
        """Return the cluster that the oldest segment was written for; empty: no segment has it."""
        return min(self.clusters, key=self.clusters.__getitem__, default="")
