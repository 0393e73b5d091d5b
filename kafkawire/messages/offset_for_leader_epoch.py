"""OffsetForLeaderEpoch (key 23): where a leader epoch ended."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class OffsetForLeaderPartition:
    """One partition with the requested epoch."""

    partition: int32 = 0
    current_leader_epoch: int32 = -1
    leader_epoch: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class OffsetForLeaderTopic:
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = []
    unknown_tags: UnknownTags = None


@request(key=23, versions=(2, 4), flexible_from=4)
class OffsetForLeaderEpochRequest:
    """Partitions with an epoch. v3 adds the replica id."""

    replica_id: Annotated[int32, since(3), ignorable] = -2
    topics: list[OffsetForLeaderTopic] = []
    unknown_tags: UnknownTags = None


@struct
class EpochEndOffset:
    error_code: int16 = 0
    partition: int32 = 0
    leader_epoch: int32 = -1
    end_offset: int64 = -1
    unknown_tags: UnknownTags = None


@struct
class OffsetForLeaderTopicResult:
    topic: str = ""
    partitions: list[EpochEndOffset] = []
    unknown_tags: UnknownTags = None


@response(key=23, versions=(2, 4), flexible_from=4)
class OffsetForLeaderEpochResponse:
    """The largest epoch not above the requested one, and its end offset."""

    throttle_time_ms: int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
    unknown_tags: UnknownTags = None
