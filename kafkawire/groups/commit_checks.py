"""Which offsets a member of a consumer or streams group may commit and read, by its epoch (KIP-848,
KIP-1251).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.consumer.group import ConsumerGroup
from kafkawire.groups.consumer.member import ConsumerMember
from kafkawire.groups.model.topics import ClusterTopics
from kafkawire.groups.streams.group import StreamsGroup
from kafkawire.groups.streams.member import StreamsMember

EPOCHS_FROM = 9
"""The first version of OffsetCommit that has member epochs."""


def check_commit(
    group: ConsumerGroup | StreamsGroup,
    topics: ClusterTopics,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    version: int,
    partitions: Iterable[tuple[str, int]],
    *,
    transactional: bool = False,
) -> ErrorCode:
    """Validate an OffsetCommit, or a TxnOffsetCommit (`transactional`), of these topics and
    partitions (Kafka: validateOffsetCommit of each group)."""
    # Of a tool, or of a consumer that assigns its partitions itself.
    if epoch < 0 and not group.members:
        return ErrorCode.NONE
    # Producers before KIP-447 know no member.
    if transactional and epoch == -1 and not member_id and instance_id is None:
        return ErrorCode.NONE
    member = group.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and member.classic is None and version < EPOCHS_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == member.epoch:
        return ErrorCode.NONE
    if epoch > member.epoch:
        return _stale(member)
    # The member has not seen its next epoch yet. What it had before, and still has, it may commit.
    for topic, partition in partitions:
        since = group.assigned_since(member_id, topic, partition, topics)
        if since is None or epoch < since:
            return _stale(member)
    return ErrorCode.NONE


def _stale(member: ConsumerMember | StreamsMember) -> ErrorCode:
    if member.classic is not None:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.STALE_MEMBER_EPOCH


def check_fetch(
    group: ConsumerGroup | StreamsGroup, member_id: str | None, epoch: int
) -> ErrorCode:
    """Validate an OffsetFetch (Kafka: validateOffsetFetch of each group)."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == member.epoch else _stale(member)
