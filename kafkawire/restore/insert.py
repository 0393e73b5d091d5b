"""Write a plan into empty tables: catalog, checkpoints, segments and their objects.

A gap in a log becomes a small segment file that covers its offsets without records.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.batches import empty_batches
from kafkawire.codec.segment.lost import GONE, LostRange
from kafkawire.log.io.ports import Env
from kafkawire.log.io.worker_jobs import Made, entries_of
from kafkawire.metadata.catalog import ALL_BROKERS, BROKER_RESOURCE, BrokerInfo, TopicInfo
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.metadata.directory import local_group
from kafkawire.metadata.rows import (
    Row,
    broker_row,
    config_rows,
    group_row,
    partition_rows,
    topic_row,
)
from kafkawire.metadata.session import Session, insert
from kafkawire.metadata.store import MetadataError
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
from kafkawire.progress import Progress, silent
from kafkawire.restore.log_objects import log_rows
from kafkawire.restore.plan import Hole, RestorePlan, UsedFile
from kafkawire.restore.segment_files import SegmentFiles, SegmentPart
from kafkawire.tiering.store.tiers import mark_move

SEGMENTS_AT_ONCE = 100
"""Segments per transaction."""
PARTITIONS_AT_ONCE = 10_000
"""Partitions per transaction, for checkpoints and tiering offsets."""
DUE_NOW = 0
"""Retention check time that is already due; the first check computes the next one."""
TIER = 0
"""Id of a broker's first tier."""


def enter_topics(session: Session, plan: RestorePlan, now_ms: int) -> None:
    """Insert what belongs to no offset storage: all leaders, topics with partitions and settings,
    the next numbers, and logs of log objects. Brokers register their addresses when they start.
    Raises MetadataError if the tables have topics."""
    if session.rows("SELECT 1 FROM topics LIMIT 1"):
        raise MetadataError("the metadata holds topics: restore into an empty database")
    # Deleted ones, too: their partition numbers may be in the log, and must not be used again.
    every = [*plan.topics, *plan.deleted]
    leaders = sorted({plan.node_id, *(p.leader for info in every for p in info.partitions)})
    groups = {leader: local_group(leader) for leader in leaders}
    brokers = [BrokerInfo(node, {}, None) for node in leaders]
    _insert(session, "brokers", [broker_row(each, now_ms, 1) for each in brokers])
    # With a lower one followers that know the lost broker refuse the log of the restored one.
    session.run("UPDATE brokers SET epoch = ? WHERE node_id = ?", (plan.broker_epoch, plan.node_id))
    _insert(session, "topics", [_topic_row(info, now_ms) for info in plan.topics])
    gone = [{**_topic_row(info, now_ms), "deleted_ms": now_ms} for info in plan.deleted]
    _insert(session, "topics", gone)
    _insert(session, "lead_groups", [group_row(group, 1) for group in groups.values()])
    partitions = [row for info in every for row in partition_rows(info.id, info.partitions, groups)]
    _insert(session, "partitions", partitions)
    _insert(session, "configs", [row for info in plan.topics for row in config_rows(info)])
    _insert(session, "configs", [_broker_setting(*pair) for pair in plan.configs.items()])
    if plan.cluster_id:
        session.run("UPDATE cluster SET cluster_id = ?", (plan.cluster_id,))
    session.run(
        "UPDATE cluster SET version = 1, next_partition = ?, next_producer_id = ?",
        (plan.next_partition, plan.next_producer_id),
    )
    if plan.tier:
        object_logs.enter(session, log_rows(plan.logs, plan.node_id, plan.tier, now_ms))


def _broker_setting(name: str, value: str) -> Row:
    return {
        "resource_type": BROKER_RESOURCE,
        "resource": ALL_BROKERS,
        "name": name,
        "value": value,
    }


def _topic_row(info: TopicInfo, now_ms: int) -> Row:
    """Return the row of a topic; without a known creation time it is now."""
    row = topic_row(info, 1)
    row["created_ms"] = info.created_ms or now_ms
    return row


def _insert(session: Session, table: str, rows: Sequence[Row]) -> None:
    if rows:
        columns = ", ".join(rows[0])
        values = [tuple(row.values()) for row in rows]
        insert(session, f"INSERT INTO {table} ({columns})", values)


async def enter_offsets(
    env: Env, storage: SegmentCatalog, home: str, plan: RestorePlan, progress: Progress = silent
) -> None:
    """Write the others; `home`: the broker's folder. Raises what the storage raises, and OSError.

    What is in the folders of other brokers is copied into the tier itself by a move that the
    broker continues when it starts; their log objects must have been copied before.
    """
    await _Entering(env, storage, home, plan).run(progress)


class _Entering:
    """`_tiers`: the numbers of tiers by their folder in the tier."""

    def __init__(self, env: Env, storage: SegmentCatalog, home: str, plan: RestorePlan) -> None:
        self._env = env
        self._storage = storage
        self._home = home
        self._plan = plan
        self._files = SegmentFiles(env, home, plan, plan.node_id)
        self._tiers: dict[str, int] = {}

    async def run(self, progress: Progress) -> None:
        plan, storage, files = self._plan, self._storage, self._plan.files()
        if plan.tier:
            await self._enter_tiers({used.file.folder for used in files} - {""})
        # The log position is stored with the first checkpoint, also of a log without partitions.
        for at in range(0, max(len(plan.checkpoints), 1), PARTITIONS_AT_ONCE):
            part = plan.checkpoints[at : at + PARTITIONS_AT_ONCE]
            await storage.save_checkpoint(Checkpoint(plan.node_id, plan.log_position, part))
        for at in range(0, len(files), SEGMENTS_AT_ONCE):
            progress("rows", at, len(files))
            some = files[at : at + SEGMENTS_AT_ONCE]
            if remote := [used for used in some if used.file.object]:
                await self._enter_remote(remote)
            if local := [used for used in some if not used.file.object]:
                await self._enter_local(local)
        progress("rows", len(files), len(files))
        for holes in plan.holes:
            await self._cover(holes)
        ends = sorted(plan.find_uploaded_ends().items())
        for at in range(0, len(ends), PARTITIONS_AT_ONCE):
            pairs = ends[at : at + PARTITIONS_AT_ONCE]
            await storage.save_tiering_offsets({number: (end, end) for number, end in pairs})

    async def _enter_tiers(self, folders: set[str]) -> None:
        now_ms, node, tier = self._env.clock.now_ms(), self._plan.node_id, self._plan.tier
        await self._storage.save_tier(TierRow(TIER, tier, CURRENT, now_ms, node))
        self._tiers[""] = TIER
        for number, folder in enumerate(sorted(folders), TIER + 1):
            inside = parse_tier(tier).inside(folder).url
            await self._storage.save_tier(TierRow(number, inside, BEING_LEFT, now_ms, node))
            self._tiers[folder] = number
        # The broker continues this move when it starts: it copies the objects into its own tier.
        if folders:
            self._env.fs.makedirs(self._home)
            mark_move(self._env.fs, self._home, tier)

    async def _enter_remote(self, files: Sequence[UsedFile]) -> None:
        ids = await self._storage.enter_remote([self._remote_row(used) for used in files])
        local = [each for each, used in zip(ids, files, strict=True) if used.file.path]
        if local:
            await self._storage.set_local(local, True)

    def _remote_row(self, used: UsedFile) -> tuple[SegmentRow, ObjectRow, list[SegmentRange]]:
        row, file = self._row(used), used.file
        row.state, row.local, row.object = LIVE, False, file.object
        row.tier = self._tiers[file.folder]
        ranges = pack_ranges((number, *share.offsets) for number, share in used.shares)
        made = ObjectRow(
            file.object, 0, row.node_id, row.tier, COPY_FINISHED, file.size_bytes, file.created_ms,
            ranges=ranges,
        )  # fmt: skip
        return row, made, _mappings(used, 0)

    async def _enter_local(self, files: Sequence[UsedFile]) -> None:
        rows = [self._row(used) for used in files]
        for row, segment_id in zip(rows, await self._storage.start_segments(rows), strict=True):
            row.id = segment_id
        finished = [(row, _mappings(used, row.id)) for row, used in zip(rows, files, strict=True)]
        await self._storage.finish_segments(Swap(finished))

    def _row(self, used: UsedFile) -> SegmentRow:
        file = used.file
        newest = max(share.entry.max_timestamp for _, share in used.shares)
        return SegmentRow(
            file.uuid,
            self._plan.node_id,
            file.created_ms,
            size_bytes=file.size_bytes,
            generation=file.generation,
            retention_class=file.retention_class or self._files.retention_class(used.shares[0][0]),
            max_timestamp=max(file.max_timestamp, newest),
        )

    async def _cover(self, holes: Sequence[Hole]) -> None:
        """Write a segment for each retention class that covers the gaps."""
        env = self._env
        env.fs.makedirs(self._files.folder)
        now_ms = env.clock.now_ms()
        for parts in self._files.by_class(_without_records(hole, now_ms) for hole in holes):
            uuid, kind = env.random.randbytes(16), self._files.retention_class(parts[0].number)
            row = SegmentRow(uuid, self._plan.node_id, now_ms, retention_class=kind)

            def write(uuid: bytes = uuid, parts: Sequence[SegmentPart] = parts) -> Made:
                return self._files.write(uuid, now_ms, parts, has_records=False)

            made = await env.offload.submit("files", write)
            (row.id,) = await self._storage.start_segments([row])
            row.size_bytes = made.size_bytes
            mappings = [range_of(entry, row.id, DUE_NOW) for entry in entries_of(made)]
            await self._storage.finish_segments(Swap([(row, mappings)]))


def _mappings(used: UsedFile, segment_id: int) -> list[SegmentRange]:
    return [
        range_of(share.entry, segment_id, DUE_NOW)._replace(number=number)
        for number, share in used.shares
    ]


def _without_records(hole: Hole, now_ms: int) -> SegmentPart:
    batches = [memoryview(empty_batches(hole.base, hole.end))]
    lost = [LostRange(hole.base, hole.end, now_ms, GONE)]
    return SegmentPart(hole.number, hole.base, hole.end, batches, [], lost)
