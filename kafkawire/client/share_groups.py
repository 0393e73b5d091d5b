"""Share groups (KIP-932): how far they have read, and where they are to continue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.client.offsets import Partition

DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS = 90, 91


class ShareOffset(NamedTuple):
    """The first record of a partition that a share group has not finished, and how many it has left
    to finish. None: not known, such as before its members have read from the partition."""

    start: int | None
    lag: int | None


def fetch_share_offsets(
    cluster: Cluster, group: str, node: int | None = None
) -> dict[Partition, ShareOffset]:
    """Return the offsets of all partitions that a share group has a state of. `node`: the
    coordinator; None: it is looked up. BrokerError for an unknown group."""
    from kafkawire.messages.describe_share_group_offsets import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
    )

    coordinator = cluster.coordinator(group) if node is None else cluster.node(node)
    groups = [DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
    asked = DescribeShareGroupOffsetsRequest(groups=groups)
    (answer,) = coordinator.request(DESCRIBE_SHARE_GROUP_OFFSETS, asked).groups
    check(f"group {group}", answer.error_code, answer.error_message)
    found: dict[Partition, ShareOffset] = {}
    for topic in answer.topics:
        for row in topic.partitions:
            place = topic.topic_name, row.partition_index
            check(f"group {group}, {place[0]}-{place[1]}", row.error_code, row.error_message)
            found[place] = ShareOffset(
                _none_if_negative(row.start_offset), _none_if_negative(row.lag)
            )
    return found


def _none_if_negative(number: int) -> int | None:
    return number if number >= 0 else None


def alter_share_offsets(
    cluster: Cluster, group: str, offsets: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Let a share group without members continue at these offsets; return error codes by
    partition. BrokerError if the group is refused."""
    from kafkawire.messages.alter_share_group_offsets import (
        AlterShareGroupOffsetsRequest,
        AlterShareGroupOffsetsRequestPartition,
        AlterShareGroupOffsetsRequestTopic,
    )

    topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
    for (name, index), offset in offsets.items():
        topic = topics.setdefault(name, AlterShareGroupOffsetsRequestTopic(name, []))
        topic.partitions.append(AlterShareGroupOffsetsRequestPartition(index, offset))
    asked = AlterShareGroupOffsetsRequest(group, list(topics.values()))
    answer = cluster.coordinator(group).request(ALTER_SHARE_GROUP_OFFSETS, asked)
    check(f"group {group}", answer.error_code, answer.error_message)
    return {
        (topic_answer.topic_name, row.partition_index): row.error_code
        for topic_answer in answer.responses
        for row in topic_answer.partitions
    }
