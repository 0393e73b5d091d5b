"""WriteShareGroupState (key 85): share state is written. Broker to broker."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, int64, uuid


@struct
class StateBatch:
    """A run of offsets in one delivery state."""

    first_offset: int64 = 0
    last_offset: int64 = 0
    delivery_state: int8 = 0
    delivery_count: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class PartitionData:
    partition: int32 = 0
    state_epoch: int32 = 0
    leader_epoch: int32 = 0
    start_offset: int64 = 0
    delivery_complete_count: Annotated[int32, since(1), ignorable] = -1
    state_batches: list[StateBatch] = []
    unknown_tags: UnknownTags = None


@struct
class WriteStateData:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=85, versions=(0, 1), flexible_from=0)
class WriteShareGroupStateRequest:
    """State batches to store. v1 adds how many deliveries are complete (KIP-1226)."""

    group_id: str = ""
    topics: list[WriteStateData] = []
    unknown_tags: UnknownTags = None


@struct
class PartitionResult:
    partition: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@struct
class WriteStateResult:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=85, versions=(0, 1), flexible_from=0)
class WriteShareGroupStateResponse:
    """An error code per partition."""

    results: list[WriteStateResult] = []
    unknown_tags: UnknownTags = None
