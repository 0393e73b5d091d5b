"""Produce (key 0): clients append record batches."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, tag, until
from kafkawire.codec.types import ZERO_UUID, Records, UnknownTags, int16, int32, int64, uuid
from kafkawire.messages.leaders import LeaderIdAndEpoch, NodeEndpoint


@struct
class PartitionProduceData:
    """The batch for one partition."""

    index: int32 = 0
    records: Records | None = None
    unknown_tags: UnknownTags = None


@struct
class TopicProduceData:
    """Batches for one topic."""

    name: Annotated[str, until(12), ignorable] = ""
    topic_id: Annotated[uuid, since(13), ignorable] = ZERO_UUID
    partition_data: list[PartitionProduceData] = []
    unknown_tags: UnknownTags = None


@request(key=0, versions=(3, 13), flexible_from=9)
class ProduceRequest:
    """Record batches by topic and partition, to be stored as they are.

    v3 takes magic 2 only and adds the transactional id; v7 allows zstd; v12 adds partitions to the
    transaction by itself (KIP-890); v13 names topics by id. Brokers advertise 0 as the lowest
    version for the sake of librdkafka (KAFKA-18659).
    """

    transactional_id: str | None = None
    acks: int16 = 0
    timeout_ms: int32 = 0
    topic_data: list[TopicProduceData] = []
    unknown_tags: UnknownTags = None


@struct
class BatchIndexAndErrorMessage:
    """One refused record: its index in the batch, and why."""

    batch_index: int32 = 0
    batch_index_error_message: str | None = None
    unknown_tags: UnknownTags = None


@struct
class PartitionProduceResponse:
    """Where the batch was stored, or why it was not."""

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
    """Results of one topic."""

    name: Annotated[str, until(12)] = ""
    topic_id: Annotated[uuid, since(13)] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = []
    unknown_tags: UnknownTags = None


@response(key=0, versions=(3, 13), flexible_from=9)
class ProduceResponse:
    """Base offset or error of each batch. Not sent at all for acks=0.

    v5 adds the log start offset; v8 says which records were refused and why (KIP-467); v10 adds the
    leader to turn to (KIP-951); v11 may answer TRANSACTION_ABORTABLE; v13 names topics by id.
    """

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], since(10), tag(0)] = []
    unknown_tags: UnknownTags = None
