"""DescribeLogDirs: how much disk the partitions led here take (KIP-113)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkawire.codec.errors import code_of
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import sliced
from kafkawire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from log.partition import Partition

FLEXIBLE_FROM = 2
Wanted = list[tuple[str, list["Partition"]]]


async def describe_log_dirs(ctx: RequestContext, req: DescribeLogDirsRequest) -> list[Buffer]:
    """DescribeLogDirs v1-4.

    v2 flexible; v3 top-level error; v4 size of the volume. There is one log directory; a
    partition's size is that of its batches, though they lie in files shared with others. Null
    topics mean all; partitions that are not here are left out, as in Kafka.
    Not done: v5 (cordoned directories), moving partitions between directories.
    """
    wanted = _all(ctx) if req.topics is None else _named(ctx, req)
    directory = DescribeLogDirsResult(log_dir=ctx.broker.folder)
    try:
        total, usable = ctx.broker.env.fs.free_bytes(ctx.broker.folder)
        directory.total_bytes, directory.usable_bytes = total, usable
    except OSError as error:
        directory.error_code, wanted = code_of(error), []
    flexible = ctx.version >= FLEXIBLE_FROM
    # After the topics: total_bytes and usable_bytes (v4+), the tags of the directory (v2+).
    tail_bytes = (16 if ctx.version >= 4 else 0) + int(flexible)
    return await sliced(
        ctx.broker.env,
        DescribeLogDirsResponse(results=[directory]),
        ctx.version,
        flexible,
        tail_bytes,
        DescribeLogDirsTopic,
        _topics(wanted),
        len(wanted),
    )


def _all(ctx: RequestContext) -> Wanted:
    found = []
    for topic in ctx.broker.catalog.by_id.values():
        here = [p for p in ctx.broker.table.by_id.get(topic.id, ()) if p is not None]
        if here:
            found.append((topic.name, here))
    return found


def _named(ctx: RequestContext, req: DescribeLogDirsRequest) -> Wanted:
    found: Wanted = []
    for topic in req.topics or ():
        rows = ctx.broker.table.by_name.get(topic.topic, [])
        here = [
            partition
            for index in dict.fromkeys(topic.partitions)
            if 0 <= index < len(rows) and (partition := rows[index]) is not None
        ]
        if here:
            found.append((topic.topic, here))
    return found


def _topics(wanted: Wanted) -> Iterator[DescribeLogDirsTopic]:
    for name, partitions in wanted:
        yield DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=partition.index, partition_size=partition.size_bytes
                )
                for partition in partitions
            ],
        )
