"""ShareAcknowledge (key 79): ShareAcknowledge"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import fresh, request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, int64, uuid


@struct
class AcknowledgementBatch:
    """One entry of `acknowledgement_batches`."""

    first_offset: int64 = 0
    last_offset: int64 = 0
    acknowledge_types: list[int8] = []
    unknown_tags: UnknownTags = None


@struct
class AcknowledgePartition:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []
    unknown_tags: UnknownTags = None


@struct
class AcknowledgeTopic:
    """One entry of `topics`."""

    topic_id: uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = []
    unknown_tags: UnknownTags = None


@request(key=79, versions=(1, 2), flexible_from=0)
class ShareAcknowledgeRequest:
    """ShareAcknowledgeRequest"""

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int32 = 0
    is_renew_ack: Annotated[bool, since(2)] = False
    topics: list[AcknowledgeTopic] = []
    unknown_tags: UnknownTags = None


@struct
class LeaderIdAndEpoch:
    """One entry of `current_leader`."""

    leader_id: int32 = 0
    leader_epoch: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class PartitionData:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = fresh(LeaderIdAndEpoch)
    unknown_tags: UnknownTags = None


@struct
class ShareAcknowledgeTopicResponse:
    """One entry of `responses`."""

    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@struct
class NodeEndpoint:
    """One entry of `node_endpoints`."""

    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None
    unknown_tags: UnknownTags = None


@response(key=79, versions=(1, 2), flexible_from=0)
class ShareAcknowledgeResponse:
    """ShareAcknowledgeResponse"""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Annotated[int32, since(2)] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
    unknown_tags: UnknownTags = None
