"""DescribeProducers (key 61): producers active in partitions."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class TopicRequest:
    """One requested topic."""

    name: str = ""
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=61, versions=(0, 0), flexible_from=0)
class DescribeProducersRequest:
    """Partitions."""

    topics: list[TopicRequest] = []
    unknown_tags: UnknownTags = None


@struct
class ProducerState:
    """One producer in one partition."""

    producer_id: int64 = 0
    producer_epoch: int32 = 0
    last_sequence: int32 = -1
    last_timestamp: int64 = -1
    coordinator_epoch: int32 = 0
    current_txn_start_offset: int64 = -1
    unknown_tags: UnknownTags = None


@struct
class PartitionResponse:
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = []
    unknown_tags: UnknownTags = None


@struct
class TopicResponse:
    """Results of one topic."""

    name: str = ""
    partitions: list[PartitionResponse] = []
    unknown_tags: UnknownTags = None


@response(key=61, versions=(0, 0), flexible_from=0)
class DescribeProducersResponse:
    """The state kept for each producer."""

    throttle_time_ms: int32 = 0
    topics: list[TopicResponse] = []
    unknown_tags: UnknownTags = None
