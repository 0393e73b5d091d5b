"""ShareFetch (key 78): a share group member acquires records."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import fresh, ignorable, request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, Records, UnknownTags, int8, int16, int32, int64, uuid
from kafkawire.messages.leaders import NodeEndpoint


@struct
class AcknowledgementBatch:
    """A run of offsets, and one type for all or one for each."""

    first_offset: int64 = 0
    last_offset: int64 = 0
    acknowledge_types: list[int8] = []
    unknown_tags: UnknownTags = None


@struct
class FetchPartition:
    """One partition to read."""

    partition_index: int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = []
    unknown_tags: UnknownTags = None


@struct
class FetchTopic:
    """One topic to read; an id in place of the name from v13 of Fetch."""

    topic_id: uuid = ZERO_UUID
    partitions: list[FetchPartition] = []
    unknown_tags: UnknownTags = None


@struct
class ForgottenTopic:
    """Partitions that leave the session."""

    topic_id: uuid = ZERO_UUID
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=78, versions=(1, 2), flexible_from=0)
class ShareFetchRequest:
    """Records to acquire, and acknowledgements to send along. v2 adds the acquire mode and
    renewals."""

    group_id: str | None = None
    member_id: str | None = ""
    share_session_epoch: int32 = 0
    max_wait_ms: int32 = 0
    min_bytes: int32 = 0
    max_bytes: int32 = 2147483647
    max_records: int32 = 0
    batch_size: int32 = 0
    share_acquire_mode: Annotated[int8, since(2), ignorable] = 0
    is_renew_ack: Annotated[bool, since(2)] = False
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []
    unknown_tags: UnknownTags = None


@struct
class LeaderIdAndEpoch:
    """The leader to turn to, -1 where unknown."""

    leader_id: int32 = 0
    leader_epoch: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class AcquiredRecords:
    """A run of offsets locked for this member."""

    first_offset: int64 = 0
    last_offset: int64 = 0
    delivery_count: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class PartitionData:
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    acknowledge_error_code: int16 = 0
    acknowledge_error_message: str | None = None
    current_leader: LeaderIdAndEpoch = fresh(LeaderIdAndEpoch)
    records: Records = b""
    acquired_records: list[AcquiredRecords] = []
    unknown_tags: UnknownTags = None


@struct
class ShareFetchableTopicResponse:
    """Results of one topic."""

    topic_id: uuid = ZERO_UUID
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@response(key=78, versions=(1, 2), flexible_from=0)
class ShareFetchResponse:
    """Records and which of them this member acquired."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    acquisition_lock_timeout_ms: int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []
    unknown_tags: UnknownTags = None
