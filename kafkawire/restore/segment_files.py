"""New segment files with parts of the partitions of a plan."""

from __future__ import annotations

import os.path
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.configs.settings import resolve_topic
from kafkawire.codec.control import Aborted
from kafkawire.codec.segment.format import PartitionState, TopicOrigin
from kafkawire.codec.segment.lost import LostRange
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import JobOrigin, Made, SegmentOutput, pack
from kafkawire.log.segments.file.open import segment_path
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers
from kafkawire.metadata.directory import TopicInfo
from kafkawire.restore.plan import RestorePlan


@dataclass(slots=True)
class SegmentPart:
    """The part of a new segment that belongs to one partition: whole batches that cover [first,
    end). `aborted`: the aborted transactions that the old segment listed; None: of journals;
    `lost`: the offsets in it that are lost."""

    number: int
    first: int
    end: int
    batches: list[memoryview] = field(default_factory=list)
    aborted: list[Aborted] | None = None
    lost: list[LostRange] = field(default_factory=list)


class SegmentFiles:
    """Writes segment files into a broker's folder, `home`. `tier`: its tier.url, empty: none."""

    def __init__(self, env: Env, home: str, plan: RestorePlan, node_id: int) -> None:
        self.folder = os.path.join(home, "segments")
        self.topics = {p.number: (t, p.index) for t in plan.topics for p in t.partitions}
        self._fs = env.fs
        self._node_id = node_id
        self._states = {each.number: each for each in plan.checkpoints}
        self._broker = {"tier.url": plan.tier} if plan.tier else {}
        order = JobOrigin(plan.cluster_id, pack(map(_origin, plan.topics)))
        self._origin = order if plan.cluster_id else None

    def by_class(self, parts: Iterable[SegmentPart]) -> list[list[SegmentPart]]:
        """Group the parts by the retention class of their segments, by ascending numbers."""
        classes: dict[str, list[SegmentPart]] = defaultdict(list)
        for part in sorted(parts, key=lambda part: part.number):
            classes[self.retention_class(part.number)].append(part)
        return list(classes.values())

    def retention_class(self, number: int) -> str:
        """Return the retention class of a partition's segments."""
        return retention_class(resolve_topic(self.topics[number][0].configs, self._broker))

    def write(
        self,
        uuid: bytes,
        created_ms: int,
        parts: Sequence[SegmentPart],
        suffix: str = "",
        *,
        has_records: bool = True,
    ) -> Made:
        """Write one segment with parts of one retention class, by ascending numbers. `suffix`: of
        the file's name. Blocks."""
        path = segment_path(self.folder, uuid) + suffix
        output = SegmentOutput(path, uuid, [], 0, self.retention_class(parts[0].number))
        origins = JobOrigins(self._origin, may_index_keys=has_records)
        with SegmentWriter(self._fs, output, self._node_id, created_ms, origins) as writer:
            for part in parts:
                (topic, index), known = self.topics[part.number], self._states[part.number]
                state = PartitionState(
                    known.log_start,
                    pack_epochs(known.leader_epochs),
                    pack_producers(known.producers),
                    part.aborted or [],
                    part.lost,
                )
                writer.begin(part.number, (topic.id, topic.name, index), part.first, state)
                writer.write(part.batches)
                writer.end(part.end)
            return writer.finish()


def _origin(topic: TopicInfo) -> TopicOrigin:
    return TopicOrigin(
        topic.id, len(topic.partitions), topic.created_ms, topic.internal, topic.configs
    )
