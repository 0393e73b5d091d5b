"""Where the records of a topic are: its segments, and what is only in journals. For the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafkawire.handlers.context import RequestContext
from kafkawire.security.acls.model import Operation

MAX_PARTITIONS = 200
"""Partitions of one answer: those that a page shows."""
MAX_SEGMENTS = 20_000
"""Segments of one answer, about 1 MB of JSON. Of a partition with more than its share, the newest
are listed; `segments_left_out` counts the others."""


async def read_map(ctx: RequestContext, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the partitions `partitions` of the topic `topic` that this broker leads. ValueError;
    a topic that the client may not describe does not exist for it.

    Each has its log start, the offset at which its journals begin, its high watermark, and its
    segments by offset: [base, end, id, bytes, has a file here, uuid of the object or null,
    creation in ms since 1970].
    """
    topic, indexes = arguments.get("topic"), arguments.get("partitions")
    if (
        not isinstance(topic, str)
        or not ctx.may_topic(Operation.DESCRIBE, topic)
        or topic not in ctx.broker.catalog.by_name
    ):
        raise ValueError(f"topic {topic!r} does not exist")
    if not isinstance(indexes, list) or not all(isinstance(each, int) for each in indexes):
        raise ValueError("partitions: it must be a list of partition numbers")
    if len(indexes) > MAX_PARTITIONS:
        raise ValueError(f"partitions: {len(indexes)}, at most {MAX_PARTITIONS} are allowed")
    most = MAX_SEGMENTS // max(1, len(indexes))
    numbers: dict[int, int] = {}
    for index in indexes:
        info = ctx.broker.catalog.by_name.partition_of(topic, index)
        if info is not None and info.leader == ctx.broker.node_id:
            numbers[info.number] = index
    loaded = ctx.broker.log.partitions
    absent = [number for number in numbers if number not in loaded]
    stored = {row.number: row for row in await ctx.broker.storage.load_partitions(absent)}
    found = []
    for number, index in numbers.items():
        partition, row = loaded.get(number), stored.get(number)
        if partition is not None:
            rows = partition.segments
            segments = list(zip(rows.base, rows.end, rows.segment, rows.length, strict=True))
            start, end = partition.log_start, partition.high_watermark
            cut = partition.cut_offset
        elif row is not None:  # all of it is in segments
            segments = [(m.base_offset, m.end_offset, m.segment_id, m.length) for m in row.mappings]
            start = row.checkpoint.log_start if row.checkpoint is not None else 0
            end = cut = segments[-1][1] if segments else start
        else:
            continue
        found.append(
            {
                "partition": index,
                "log_start": start,
                "journals_from": max(start, cut),
                "high_watermark": end,
                "segments": _segments(ctx, segments[-most:]),
                "segments_left_out": max(0, len(segments) - most),
            }
        )
        await ctx.give_way()
    return {"partitions": found}


def _segments(ctx: RequestContext, rows: Iterable[tuple[int, int, int, int]]) -> list[list[Any]]:
    find = ctx.broker.log.segments.store.find
    found: list[list[Any]] = []
    for base, end, segment_id, length in rows:
        segment = find(segment_id)
        if segment is None:
            found.append([base, end, segment_id, length, False, None, None])
        else:
            uuid = segment.row.object.hex() or None
            local, created = segment.row.local, segment.row.created_ms
            found.append([base, end, segment_id, length, local, uuid, created])
    return found


async def sum_bytes(ctx: RequestContext) -> dict[str, int]:
    """Return the bytes of this broker's journals, of segments that are only on its disk, of those
    with an object, too, and of those that are only objects."""
    log = ctx.broker.log
    found = {"journal": log.journals.size_bytes(), "local": 0, "both": 0, "remote": 0}
    for segment in list(log.segments.store.by_id.values()):
        row = segment.row
        place = ("both" if row.local else "remote") if row.object else "local"
        found[place] += row.size_bytes
        await ctx.give_way()
    return found
