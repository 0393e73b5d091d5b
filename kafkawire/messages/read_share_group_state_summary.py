"""ReadShareGroupStateSummary (key 87): share state without its batches. Broker to broker."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class PartitionData:
    partition: int32 = 0
    leader_epoch: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class ReadStateSummaryData:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=87, versions=(0, 1), flexible_from=0)
class ReadShareGroupStateSummaryRequest:
    """Share partitions with the reader's leader epoch."""

    group_id: str = ""
    topics: list[ReadStateSummaryData] = []
    unknown_tags: UnknownTags = None


@struct
class PartitionResult:
    partition: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    state_epoch: int32 = 0
    leader_epoch: int32 = 0
    start_offset: int64 = 0
    delivery_complete_count: Annotated[int32, since(1)] = -1
    unknown_tags: UnknownTags = None


@struct
class ReadStateSummaryResult:
    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=87, versions=(0, 1), flexible_from=0)
class ReadShareGroupStateSummaryResponse:
    """Start offset and epochs. v1 adds how many deliveries are complete (KIP-1226)."""

    results: list[ReadStateSummaryResult] = []
    unknown_tags: UnknownTags = None
