"""AlterReplicaLogDirs: move replicas of this broker to another of its folders (KIP-113)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kafkawire.security.acls.model import Operation


async def alter_replica_log_dirs(
    ctx: RequestContext, req: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """AlterReplicaLogDirs v1-2.

    A broker has one log directory, which DescribeLogDirs names: a partition that it leads is there
    already, and any other directory is LOG_DIR_NOT_FOUND. A partition of another broker is
    REPLICA_NOT_AVAILABLE, as in Kafka (ReplicaManager.alterReplicaLogDirs).
    """
    allowed = ctx.may_cluster(Operation.ALTER)
    found: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in req.dirs:
        await ctx.give_way()
        for topic in directory.topics:
            await ctx.give_way()
            result = found.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name))
            for index in topic.partitions:
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                if allowed:
                    error = _outcome(ctx, directory.path, topic.name, index)
                result.partitions.append(AlterReplicaLogDirPartitionResult(index, error))
                await ctx.give_way()
    results = [*found.values()]
    await ctx.empty_slowly(found)
    return AlterReplicaLogDirsResponse(results=results)


def _outcome(ctx: RequestContext, path: str, topic: str, index: int) -> ErrorCode:
    """Return the result for one partition."""
    if path != ctx.broker.folder:
        return ErrorCode.LOG_DIR_NOT_FOUND
    partition = ctx.broker.catalog.by_name.partition_of(topic, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader != ctx.broker.node_id:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    return ErrorCode.NONE
