"""ReadShareGroupState (key 84): ReadShareGroupState"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, int64, uuid


@struct
class PartitionData:
    """One entry of `partitions`."""

    partition: int32 = 0
    leader_epoch: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class ReadStateData:
    """One entry of `topics`."""

    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=84, versions=(0, 0), flexible_from=0)
class ReadShareGroupStateRequest:
    """ReadShareGroupStateRequest"""

    group_id: str = ""
    topics: list[ReadStateData] = []
    unknown_tags: UnknownTags = None


@struct
class StateBatch:
    """One entry of `state_batches`."""

    first_offset: int64 = 0
    last_offset: int64 = 0
    delivery_state: int8 = 0
    delivery_count: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class PartitionResult:
    """One entry of `partitions`."""

    partition: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    state_epoch: int32 = 0
    start_offset: int64 = 0
    state_batches: list[StateBatch] = []
    unknown_tags: UnknownTags = None


@struct
class ReadStateResult:
    """One entry of `results`."""

    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=84, versions=(0, 0), flexible_from=0)
class ReadShareGroupStateResponse:
    """ReadShareGroupStateResponse"""

    results: list[ReadStateResult] = []
    unknown_tags: UnknownTags = None
