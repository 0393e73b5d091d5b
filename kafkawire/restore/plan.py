"""The plan of a restore: the rows that will be in SQL, and what is doubtful or lost.

Made by `folder_plan` or `bucket_plan` from the evidence of their source, written by `insert`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kafkawire.metadata.checkpoint import PartitionCheckpoint
from kafkawire.metadata.directory import TopicInfo
from kafkawire.restore.evidence import Doubt, DoubtKind, LogSeen, SegmentSeen, SegmentShare

NUMBER_MARGIN = 1_000_000
"""Added to partition numbers and producer ids, which may have been assigned after the newest
evidence: of producer ids, a thousand blocks of a thousand."""


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
