"""ListOffsets (key 2): which offset stands for a time, or for a named place in a partition."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32, int64


@struct
class ListOffsetsPartition:
    """One partition, and the timestamp or -1 to -6."""

    partition_index: int32 = 0
    current_leader_epoch: Annotated[int32, since(4), ignorable] = -1
    timestamp: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class ListOffsetsTopic:
    name: str = ""
    partitions: list[ListOffsetsPartition] = []
    unknown_tags: UnknownTags = None


@request(key=2, versions=(1, 11), flexible_from=6)
class ListOffsetsRequest:
    """Timestamps to find offsets for; -1 latest, -2 earliest, -3 largest timestamp, -4 earliest on
    local disk, -5 last tiered, -6 earliest not yet tiered.

    v2 adds the isolation level; v4 the leader epoch; v7 allows -3, v8 -4, v9 -5, v11 -6; v10 adds
    the time to wait for remote storage.
    """

    replica_id: int32 = 0
    isolation_level: Annotated[int8, since(2)] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[int32, since(10), ignorable] = 0
    unknown_tags: UnknownTags = None


@struct
class ListOffsetsPartitionResponse:
    """One offset found."""

    partition_index: int32 = 0
    error_code: int16 = 0
    timestamp: int64 = -1
    offset: int64 = -1
    leader_epoch: Annotated[int32, since(4)] = -1
    unknown_tags: UnknownTags = None


@struct
class ListOffsetsTopicResponse:
    """Results of one topic."""

    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []
    unknown_tags: UnknownTags = None


@response(key=2, versions=(1, 11), flexible_from=6)
class ListOffsetsResponse:
    """One offset with its timestamp per partition, -1 where there is none.

    v2 adds the throttle time; v4 the leader epoch; v5 may answer OFFSET_NOT_AVAILABLE.
    """

    throttle_time_ms: Annotated[int32, since(2)] = 0
    topics: list[ListOffsetsTopicResponse] = []
    unknown_tags: UnknownTags = None
