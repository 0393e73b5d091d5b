"""What was rebuilt, entered into an empty offset storage: checkpoints, segments, mappings.

Shell over offsets.storage. Called by kafkawire.cli.rebuilding, once the topics are in the catalog.
"""

from __future__ import annotations

from kafkawire.codec.configs import TopicConfig
from kafkawire.metadata.checkpoint import Checkpoint
from log.rebuild.evidence import SegmentSeen, Share
from log.rebuild.plan import Rebuilt, used_files
from log.segments.grouping import retention_class
from offsets.storage import Mapping, OffsetStorage, SegmentRow, Swap

SEGMENTS_AT_ONCE = 100
"""Of one transaction."""
DUE_NOW = 0
"""Retention looks at every mapping once and then knows when it should again."""


async def enter(storage: OffsetStorage, rebuilt: Rebuilt, node_id: int) -> None:
    """All rows. Raises what the storage raises."""
    kinds = {
        info.number: retention_class(TopicConfig(topic.configs))
        for topic in rebuilt.topics
        for info in topic.partitions
    }
    await storage.save_checkpoint(Checkpoint(node_id, rebuilt.place, rebuilt.checkpoints))
    files = used_files(rebuilt)
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


def _row(file: SegmentSeen, shares: list[tuple[int, Share]], node_id: int, kind: str) -> SegmentRow:
    newest = max(share.entry.max_timestamp for _, share in shares)
    return SegmentRow(
        file.uuid,
        node_id,
        file.created_ms,
        size_bytes=file.size_bytes,
        retention_class=kind,
        max_timestamp=newest,
    )


def _mapping(number: int, share: Share, segment_id: int) -> Mapping:
    entry = share.entry
    return Mapping(
        number,
        segment_id,
        entry.base_offset,
        entry.end_offset,
        entry.start,
        entry.length,
        entry.index_start,
        entry.index_length,
        entry.index_checksum,
        entry.max_timestamp,
        entry.batches,
        entry.records,
        DUE_NOW,
    )
