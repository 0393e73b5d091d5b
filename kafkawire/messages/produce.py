"""Produce (key 0): Produce"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, tag, until
from kafkawire.codec.types import ZERO_UUID, Records, UnknownTags, int16, int32, int64, uuid


@struct
class PartitionProduceData:
    """One entry of `partition_data`."""

    index: int32 = 0
    records: Records | None = None
    unknown_tags: UnknownTags = None


@struct
class TopicProduceData:
    """One entry of `topic_data`."""

    name: Annotated[str, until(12), ignorable] = ""
    topic_id: Annotated[uuid, since(13), ignorable] = ZERO_UUID
    partition_data: list[PartitionProduceData] = []
    unknown_tags: UnknownTags = None


@request(key=0, versions=(3, 13), flexible_from=9)
class ProduceRequest:
    """ProduceRequest"""

    transactional_id: str | None = None
    acks: int16 = 0
    timeout_ms: int32 = 0
    topic_data: list[TopicProduceData] = []
    unknown_tags: UnknownTags = None


@struct
class BatchIndexAndErrorMessage:
    """One entry of `record_errors`."""

    batch_index: int32 = 0
    batch_index_error_message: str | None = None
    unknown_tags: UnknownTags = None


@struct
class LeaderIdAndEpoch:
    """One entry of `current_leader`."""

    leader_id: int32 = -1
    leader_epoch: int32 = -1
    unknown_tags: UnknownTags = None


@struct
class PartitionProduceResponse:
    """One entry of `partition_responses`."""

    index: int32 = 0
    error_code: int16 = 0
    base_offset: int64 = 0
    log_append_time_ms: int64 = -1
    log_start_offset: Annotated[int64, since(5)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], since(8)] = []
    error_message: Annotated[str | None, since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, since(10), tag(0)] = None
    unknown_tags: UnknownTags = None


@struct
class TopicProduceResponse:
    """One entry of `responses`."""

    name: Annotated[str, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = []
    unknown_tags: UnknownTags = None


@struct
class NodeEndpoint:
    """One entry of `node_endpoints`."""

    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None
    unknown_tags: UnknownTags = None


@response(key=0, versions=(3, 13), flexible_from=9)
class ProduceResponse:
    """ProduceResponse"""

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], since(10), tag(0)] = []
    unknown_tags: UnknownTags = None
