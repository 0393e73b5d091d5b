"""DescribeShareGroupOffsets (key 90): how far share groups have read."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = []
    unknown_tags: UnknownTags = None


@request(key=90, versions=(0, 1), flexible_from=0)
class DescribeShareGroupOffsetsRequest:
    """Groups and partitions; None means all topics."""

    groups: list[DescribeShareGroupOffsetsRequestGroup] = []
    unknown_tags: UnknownTags = None


@struct
class DescribeShareGroupOffsetsResponsePartition:
    """Result for one partition."""

    partition_index: int32 = 0
    start_offset: int64 = 0
    leader_epoch: int32 = 0
    lag: Annotated[int64, since(1)] = -1
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@struct
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: uuid = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = []
    unknown_tags: UnknownTags = None


@struct
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = []
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@response(key=90, versions=(0, 1), flexible_from=0)
class DescribeShareGroupOffsetsResponse:
    """Start offsets. v1 adds the lag (KIP-1226)."""

    throttle_time_ms: int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []
    unknown_tags: UnknownTags = None
