"""ListOffsets (key 2): ListOffsets"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32, int64


@struct
class ListOffsetsPartition:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    current_leader_epoch: Annotated[int32, since(4), ignorable] = -1
    timestamp: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class ListOffsetsTopic:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[ListOffsetsPartition] = []
    unknown_tags: UnknownTags = None


@request(key=2, versions=(1, 11), flexible_from=6)
class ListOffsetsRequest:
    """ListOffsetsRequest"""

    replica_id: int32 = 0
    isolation_level: Annotated[int8, since(2)] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[int32, since(10), ignorable] = 0
    unknown_tags: UnknownTags = None


@struct
class ListOffsetsPartitionResponse:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    error_code: int16 = 0
    timestamp: int64 = -1
    offset: int64 = -1
    leader_epoch: Annotated[int32, since(4)] = -1
    unknown_tags: UnknownTags = None


@struct
class ListOffsetsTopicResponse:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []
    unknown_tags: UnknownTags = None


@response(key=2, versions=(1, 11), flexible_from=6)
class ListOffsetsResponse:
    """ListOffsetsResponse"""

    throttle_time_ms: Annotated[int32, since(2)] = 0
    topics: list[ListOffsetsTopicResponse] = []
    unknown_tags: UnknownTags = None
