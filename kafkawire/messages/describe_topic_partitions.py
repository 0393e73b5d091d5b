"""DescribeTopicPartitions (key 75): topics and partitions, page by page."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@struct
class TopicRequest:
    """One requested topic."""

    name: str = ""
    unknown_tags: UnknownTags = None


@struct
class Cursor:
    """A topic and partition to continue from."""

    topic_name: str = ""
    partition_index: int32 = 0
    unknown_tags: UnknownTags = None


@request(key=75, versions=(0, 0), flexible_from=0)
class DescribeTopicPartitionsRequest:
    """Topics, a position to continue from, and a limit."""

    topics: list[TopicRequest] = []
    response_partition_limit: int32 = 2000
    cursor: Cursor | None = None
    unknown_tags: UnknownTags = None


@struct
class DescribeTopicPartitionsResponsePartition:
    """Result for one partition."""

    error_code: int16 = 0
    partition_index: int32 = 0
    leader_id: int32 = 0
    leader_epoch: int32 = -1
    replica_nodes: list[int32] = []
    isr_nodes: list[int32] = []
    eligible_leader_replicas: list[int32] | None = None
    last_known_elr: list[int32] | None = None
    offline_replicas: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: int16 = 0
    name: str | None = ""
    topic_id: uuid = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: int32 = -2147483648
    unknown_tags: UnknownTags = None


@response(key=75, versions=(0, 0), flexible_from=0)
class DescribeTopicPartitionsResponse:
    """Topics in name order, and where to continue if there are more."""

    throttle_time_ms: int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
    unknown_tags: UnknownTags = None
