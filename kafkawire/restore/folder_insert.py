"""Insertion of a rebuilt state into an empty offset storage: checkpoints, segments, mappings.

Shell over kafkawire.offsets.catalog.port. Called by kafkawire.cli.restore.from_log, once the
topics are in the catalog.
"""

from __future__ import annotations

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.log.segments.store.grouping import retention_class
from kafkawire.metadata.checkpoint import Checkpoint
from kafkawire.offsets.catalog.port import (
    COPY_FINISHED,
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
from kafkawire.restore.evidence import SegmentSeen, SegmentShare
from kafkawire.restore.folder_plan import Rebuilt, used_files

SEGMENTS_AT_ONCE = 100
"""Rows of one transaction."""
DUE_NOW = 0
"""Due time of mappings: retention checks each once and then sets the next time."""


TIER = 0
"""The first tier of a broker has this id."""

File = tuple[SegmentSeen, list[tuple[int, SegmentShare]]]


async def enter(
    storage: SegmentCatalog, rebuilt: Rebuilt, node_id: int, tier: TierRow | None = None
) -> None:
    """Insert all rows; `tier`: where the objects of `rebuilt` are. Raises what the storage
    raises."""
    kinds = {
        info.number: retention_class(TopicConfig(topic.configs))
        for topic in rebuilt.topics
        for info in topic.partitions
    }
    await storage.save_checkpoint(Checkpoint(node_id, rebuilt.log_position, rebuilt.checkpoints))
    files = used_files(rebuilt)
    if tier is not None:
        await storage.save_tier(tier)
        uploaded = [each for each in files if each[0].object]
        await _enter_objects(storage, uploaded, node_id, kinds)
        ends = {n: end for n, shares in rebuilt.shares.items() if (end := _committed(shares))}
        await storage.save_tiering_offsets({n: (end, end) for n, end in ends.items()})
        files = [each for each in files if not each[0].object]
    for start in range(0, len(files), SEGMENTS_AT_ONCE):
        part = files[start : start + SEGMENTS_AT_ONCE]
        rows = [_row(file, shares, node_id, kinds[shares[0][0]]) for file, shares in part]
        for row, segment_id in zip(rows, await storage.start_segments(rows), strict=True):
            row.id = segment_id
        finished = [
            (row, [_mapping(number, share, row.id) for number, share in shares])
            for row, (_, shares) in zip(rows, part, strict=True)
        ]
        await storage.finish_segments(Swap(finished))


async def _enter_objects(
    storage: SegmentCatalog, files: list[File], node_id: int, kinds: dict[int, str]
) -> None:
    """Insert segments that are in the remote tier, with or without a local file."""
    for start in range(0, len(files), SEGMENTS_AT_ONCE):
        part = files[start : start + SEGMENTS_AT_ONCE]
        rows = [_remote(file, shares, node_id, kinds[shares[0][0]]) for file, shares in part]
        ids = await storage.enter_remote(rows)
        local = [each for each, (file, _) in zip(ids, part, strict=True) if file.path]
        if local:
            await storage.set_local(local, True)


def _remote(
    file: SegmentSeen, shares: list[tuple[int, SegmentShare]], node_id: int, kind: str
) -> tuple[SegmentRow, ObjectRow, list[SegmentRange]]:
    row = _row(file, shares, node_id, file.retention_class or kind)
    row.state, row.generation, row.local = LIVE, file.generation, False
    row.object, row.tier = file.object, TIER
    entries = [(number, share.entry) for number, share in shares]
    ranges = pack_ranges((number, e.base_offset, e.end_offset) for number, e in entries)
    made = ObjectRow(
        file.object, 0, node_id, TIER, COPY_FINISHED, file.size_bytes, file.created_ms,
        ranges=ranges,
    )  # fmt: skip
    return row, made, [_mapping(number, share, 0) for number, share in shares]


def _committed(shares: list[SegmentShare]) -> int:
    """Return up to which offset a partition is in the remote tier without a gap from its first
    segment on."""
    end = 0
    for share in shares:
        if not share.file.object:
            break
        end = share.entry.end_offset
    return end


def _row(
    file: SegmentSeen, shares: list[tuple[int, SegmentShare]], node_id: int, kind: str
) -> SegmentRow:
    newest = max(share.entry.max_timestamp for _, share in shares)
    return SegmentRow(
        file.uuid,
        node_id,
        file.created_ms,
        size_bytes=file.size_bytes,
        retention_class=kind,
        max_timestamp=newest,
    )


def _mapping(number: int, share: SegmentShare, segment_id: int) -> SegmentRange:
    return range_of(share.entry, segment_id, DUE_NOW)._replace(number=number)
