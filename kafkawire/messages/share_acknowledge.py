"""ShareAcknowledge (key 79): a share group member settles records."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import fresh, request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid
from kafkawire.messages.leaders import NodeEndpoint
from kafkawire.messages.share_fetch import AcknowledgementBatch, LeaderIdAndEpoch


@struct
class AcknowledgePartition:
    partition_index: int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []
    unknown_tags: UnknownTags = None


@struct
class AcknowledgeTopic:
    topic_id: uuid = ZERO_UUID
    partitions: list[AcknowledgePartition] = []
    unknown_tags: UnknownTags = None


@request(key=79, versions=(1, 2), flexible_from=0)
class ShareAcknowledgeRequest:
    """Accept, release, reject or, from v2, renew."""

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int32 = 0
    is_renew_ack: Annotated[bool, since(2)] = False
    topics: list[AcknowledgeTopic] = []
    unknown_tags: UnknownTags = None


@struct
class PartitionData:
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch = fresh(LeaderIdAndEpoch)
    unknown_tags: UnknownTags = None


@struct
class ShareAcknowledgeTopicResponse:
    """Results of one topic."""

    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@response(key=79, versions=(1, 2), flexible_from=0)
class ShareAcknowledgeResponse:
    """An error code per partition. v2 adds how long a lock lasts."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: Annotated[int32, since(2)] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
    unknown_tags: UnknownTags = None
