"""DescribeLogDirs: disk usage of the partitions led by this broker (KIP-113)."""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.codec.compile import encode, part_encoder
from kafkawire.codec.errors import ErrorCode, code_of
from kafkawire.codec.schema import info_of
from kafkawire.codec.types import Buffer
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.slices import append_encoded, array_count, joining, split
from kafkawire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kafkawire.security.acls.model import Operation

TOPICS_AT_ONCE = 200
"""Topics whose partitions are looked up together: those not in memory need one query."""

Wanted = tuple[str, Sequence[int] | None]  # a topic's name; indexes, None: all


async def describe_log_dirs(ctx: RequestContext, req: DescribeLogDirsRequest) -> list[Buffer]:
    """DescribeLogDirs v1-5.

    v2 flexible; v3 top-level error; v4 size of the volume; v5 cordoned directories, of which there
    are none (KIP-1066). There is one log directory; a
    partition's size is that of its batches, although they share files with others; for one that is
    not in memory it is read from the offset storage. Null topics mean all; partitions of other
    brokers are left out, as in Kafka. Not done: moving
    partitions between directories.
    """
    if not ctx.may_cluster(Operation.DESCRIBE):
        refused = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return [encode(refused, ctx.version)]
    wanted: list[Wanted]
    if req.topics is None:
        wanted = await ctx.list_in_slices((name, None) for name in list(ctx.broker.catalog.by_name))
    else:
        wanted = await ctx.list_in_slices((topic.topic, topic.partitions) for topic in req.topics)
    directory = DescribeLogDirsResult(log_dir=ctx.broker.folder)
    rows: list[Buffer] = []
    count = 0
    try:
        total, usable = ctx.broker.env.fs.free_bytes(ctx.broker.folder)
        directory.total_bytes, directory.usable_bytes = total, usable
        count, rows = await _encode_topics(ctx, wanted)
    except OSError as error:
        directory.error_code = code_of(error)
    await ctx.empty_slowly(wanted)
    flexible = info_of(DescribeLogDirsResponse).flexible(ctx.version)
    # After the topics: total_bytes and usable_bytes (v4+), is_cordoned (v5+), the tags of the
    # directory (v2+).
    tail_bytes = 16 * (ctx.version >= 4) + (ctx.version >= 5) + flexible
    whole = encode(DescribeLogDirsResponse(results=[directory]), ctx.version)
    head, tail = split(whole, flexible, tail_bytes)
    return [head, array_count(count, flexible), *rows, tail]


async def _encode_topics(ctx: RequestContext, wanted: Sequence[Wanted]) -> tuple[int, list[Buffer]]:
    """Return the number of topics and the encoded topics. Raises MetadataError (an OSError) if SQL
    fails."""
    encode_topic = part_encoder(DescribeLogDirsResponse, DescribeLogDirsTopic, ctx.version)
    count = 0
    joined: list[Buffer] = []
    parts: list[Buffer] = []
    for start in range(0, len(wanted), TOPICS_AT_ONCE):
        topics = await _sizes(ctx, wanted[start : start + TOPICS_AT_ONCE])
        count += len(topics)
        await ctx.broker.env.slices.run(
            joining(append_encoded(topics, encode_topic, parts), parts, joined)
        )
    return count, joined + parts


async def _sizes(ctx: RequestContext, wanted: Sequence[Wanted]) -> list[DescribeLogDirsTopic]:
    """Yield topics with partitions led by this broker."""
    broker = ctx.broker
    loaded = broker.log.partitions
    topics: list[DescribeLogDirsTopic] = []
    absent: dict[int, DescribeLogDirsPartition] = {}
    for name, indexes in wanted:
        await ctx.give_way()
        info = broker.catalog.by_name.get(name)
        if info is None:
            continue
        chosen = info.partitions
        if indexes is not None:
            chosen = [chosen[i] for i in dict.fromkeys(indexes) if 0 <= i < len(chosen)]
        here = []
        for row in chosen:
            await ctx.give_way()
            if row.leader != broker.node_id:
                continue
            found = DescribeLogDirsPartition(partition_index=row.index, partition_size=0)
            partition = loaded.get(row.number)
            if partition is not None:
                found.partition_size = partition.size_bytes
            elif row.number < broker.log.loader.fresh_from:
                absent[row.number] = found
            here.append(found)
        if here:
            topics.append(DescribeLogDirsTopic(name=name, partitions=here))
    for stats in await broker.storage.stats(list(absent)) if absent else ():
        absent[stats.number].partition_size = stats.size_bytes
    return topics
