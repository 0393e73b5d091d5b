"""Write a restore plan into empty tables: catalog, checkpoints, remote segments and their objects.

A gap in a log becomes a small segment file that covers its offsets without records.
"""

from __future__ import annotations

import os.path
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from kafkawire.codec.batches import empty_batches
from kafkawire.codec.configs.settings import resolve_topic
from kafkawire.codec.segment.format import PartitionState, TopicOrigin
from kafkawire.codec.segment.lost import GONE, LostRange
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import JobOrigin, Made, SegmentOutput, entries_of, pack
from kafkawire.log.segments.file.open import segment_path
from kafkawire.log.segments.file.writer import JobOrigins, SegmentWriter
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.metadata.checkpoint import Checkpoint, pack_epochs, pack_producers
from kafkawire.metadata.copies.entering import enter_catalog
from kafkawire.metadata.directory import TopicInfo
from kafkawire.metadata.session import Session
from kafkawire.metadata.store import SqlStore
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog import object_logs
from kafkawire.offsets.catalog.port import (
    BEING_LEFT,
    COPY_FINISHED,
    CURRENT,
    LIVE,
    ObjectRow,
    SegmentCatalog,
    SegmentRange,
    SegmentRow,
    Swap,
    TierRow,
    pack_ranges,
    range_of,
)
from kafkawire.offsets.storage.open import SQL, open_storage
from kafkawire.progress import Progress
from kafkawire.restore.bucket_plan import Hole, Restored, Used
from kafkawire.restore.log_objects import log_rows
from kafkawire.tiering.store.tiers import mark_move

SEGMENTS_AT_ONCE = 100
"""Segments per transaction."""
PARTITIONS_AT_ONCE = 10_000
"""Partitions per transaction, for checkpoints and tiering offsets."""
DUE_NOW = 0
"""Retention check time that is already due; the first check computes the next one."""
TIER = 0
"""Id of a broker's first tier."""


async def enter(
    env: Env, metadata: SqlStore, home: str, restored: Restored, url: str, progress: Progress
) -> None:
    """Write the whole plan; `home`: the broker's folder, `url`: of the tier. Raises MetadataError
    if the tables are not empty, OSError.

    What is in the folders of other brokers is copied into the tier itself by a move that the
    broker continues when it starts; their log objects must have been copied before.
    """
    now_ms, node = env.clock.now_ms(), restored.node_id

    def enter_all(session: Session) -> None:
        enter_catalog(
            session,
            node,
            restored.topics,
            restored.next_partition,
            restored.next_producer_id,
            now_ms,
            restored.cluster_id,
            restored.configs,
        )
        object_logs.enter(session, log_rows(restored.logs, node, url, now_ms))

    await metadata.transact(enter_all)
    storage = open_storage(SQL, metadata, home, node, env.clock.now_ms, lambda _: node)
    try:
        entering = _Entering(env, storage, home, restored, url, progress)
        folders = sorted({used.object.folder for used in restored.used} - {""})
        tiers = {"": TierRow(TIER, url, CURRENT, now_ms, node)}
        for number, folder in enumerate(folders, TIER + 1):
            inside = parse_tier(url).inside(folder).url
            tiers[folder] = TierRow(number, inside, BEING_LEFT, now_ms, node)
        if folders:
            env.fs.makedirs(home)
            mark_move(env.fs, home, url)
        await entering.run(tiers)
    finally:
        await storage.close()


class _Entering:
    def __init__(
        self,
        env: Env,
        storage: SegmentCatalog,
        home: str,
        restored: Restored,
        url: str,
        progress: Progress,
    ) -> None:
        self._env = env
        self._storage = storage
        self._folder = os.path.join(home, "segments")
        self._broker = {"tier.url": url}
        self._restored = restored
        self._progress = progress
        self._topics = {
            info.number: (topic, info.index)
            for topic in restored.topics
            for info in topic.partitions
        }

    async def run(self, tiers: Mapping[str, TierRow]) -> None:
        """Write all rows; `tiers`: by folder."""
        restored, storage = self._restored, self._storage
        self._tiers = tiers
        for tier in tiers.values():
            await storage.save_tier(tier)
        for at in range(0, len(restored.checkpoints), PARTITIONS_AT_ONCE):
            part = restored.checkpoints[at : at + PARTITIONS_AT_ONCE]
            await storage.save_checkpoint(Checkpoint(restored.node_id, 0, part))
        for at in range(0, len(restored.used), SEGMENTS_AT_ONCE):
            self._progress("rows", at, len(restored.used))
            part_used = restored.used[at : at + SEGMENTS_AT_ONCE]
            await storage.enter_remote([self._rows(used) for used in part_used])
        self._progress("rows", len(restored.used), len(restored.used))
        self._env.fs.makedirs(self._folder)
        for holes in restored.holes:
            for kind, alike in self._by_class(holes):
                await self._cover(kind, alike)
        committed = sorted(restored.committed.items())
        for at in range(0, len(committed), PARTITIONS_AT_ONCE):
            ends = committed[at : at + PARTITIONS_AT_ONCE]
            await storage.save_tiering_offsets({number: (end, end) for number, end in ends})

    def _rows(self, used: Used) -> tuple[SegmentRow, ObjectRow, list[SegmentRange]]:
        each, node = used.object, self._restored.node_id
        tier = self._tiers[each.folder].id
        segment = SegmentRow(
            each.segment,
            node,
            each.created_ms,
            state=LIVE,
            size_bytes=each.size_bytes,
            generation=each.generation,
            retention_class=each.retention_class or self._class(used.entries[0].number),
            max_timestamp=each.max_timestamp,
            local=False,
            object=each.uuid,
            tier=tier,
        )
        ranges = pack_ranges((e.number, e.base_offset, e.end_offset) for e in used.entries)
        made = ObjectRow(
            each.uuid, 0, node, tier, COPY_FINISHED, each.size_bytes, each.created_ms, ranges=ranges
        )
        return segment, made, [range_of(entry, 0, DUE_NOW) for entry in used.entries]

    def _class(self, number: int) -> str:
        return retention_class(resolve_topic(self._topics[number][0].configs, self._broker))

    def _by_class(self, holes: Sequence[Hole]) -> Iterator[tuple[str, list[Hole]]]:
        """Group gaps by the retention class of their segments."""
        classes: dict[str, list[Hole]] = defaultdict(list)
        for hole in holes:
            classes[self._class(hole.number)].append(hole)
        yield from classes.items()

    async def _cover(self, kind: str, holes: list[Hole]) -> None:
        """Write a segment that covers the gaps."""
        env, node = self._env, self._restored.node_id
        uuid = env.random.randbytes(16)
        row = SegmentRow(uuid, node, env.clock.now_ms(), retention_class=kind)
        output = SegmentOutput(segment_path(self._folder, uuid), uuid, [], 0, kind)
        made = await env.offload.submit("files", self._write, output, row.created_ms, holes)
        (row.id,) = await self._storage.start_segments([row])
        row.size_bytes = made.size_bytes
        mappings = [range_of(entry, row.id, DUE_NOW) for entry in entries_of(made)]
        await self._storage.finish_segments(Swap([(row, mappings)]))

    def _write(self, output: SegmentOutput, created_ms: int, holes: list[Hole]) -> Made:
        """Write the file; runs in a thread."""
        states = {each.number: each for each in self._restored.checkpoints}
        topics = {self._topics[hole.number][0].id: self._topics[hole.number][0] for hole in holes}
        order = JobOrigin(self._restored.cluster_id, pack(map(_origin, topics.values())))
        fs, node = self._env.fs, self._restored.node_id
        origins = JobOrigins(order, may_index_keys=False)
        with SegmentWriter(fs, output, node, created_ms, origins) as writer:
            for hole in holes:
                known = states[hole.number]
                state = PartitionState(
                    known.log_start,
                    pack_epochs(known.leader_epochs),
                    pack_producers(known.producers),
                    lost=[LostRange(hole.base, hole.end, created_ms, GONE)],
                )
                topic, index = self._topics[hole.number]
                writer.begin(hole.number, (topic.id, topic.name, index), hole.base, state)
                writer.write([memoryview(empty_batches(hole.base, hole.end))])
                writer.end(hole.end)
            return writer.finish()


def _origin(topic: TopicInfo) -> TopicOrigin:
    return TopicOrigin(
        topic.id, len(topic.partitions), topic.created_ms, topic.internal, topic.configs
    )
