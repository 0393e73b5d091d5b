"""TxnOffsetCommit (key 28): offsets committed within a transaction."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: Annotated[int32, since(2), ignorable] = -1
    committed_metadata: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class TxnOffsetCommitRequestTopic:
    name: Annotated[str, until(5), ignorable] = ""
    topic_id: Annotated[uuid, since(6), ignorable] = ZERO_UUID
    partitions: list[TxnOffsetCommitRequestPartition] = []
    unknown_tags: UnknownTags = None


@request(key=28, versions=(0, 6), flexible_from=3)
class TxnOffsetCommitRequest:
    """v2 adds the leader epoch; v3 member, static id and generation; v5 adds the group to the
    transaction by itself (KIP-890); v6 names topics by id (KIP-1319).
    """

    transactional_id: str = ""
    group_id: str = ""
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    generation_id: Annotated[int32, since(3)] = -1
    member_id: Annotated[str, since(3)] = ""
    group_instance_id: Annotated[str | None, since(3)] = None
    topics: list[TxnOffsetCommitRequestTopic] = []
    unknown_tags: UnknownTags = None


@struct
class TxnOffsetCommitResponsePartition:
    """Result for one partition."""

    partition_index: int32 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class TxnOffsetCommitResponseTopic:
    """Results of one topic."""

    name: Annotated[str, until(5)] = ""
    topic_id: Annotated[uuid, since(6)] = ZERO_UUID
    partitions: list[TxnOffsetCommitResponsePartition] = []
    unknown_tags: UnknownTags = None


@response(key=28, versions=(0, 6), flexible_from=3)
class TxnOffsetCommitResponse:
    """v3 may answer errors about the member, v4 TRANSACTION_ABORTABLE; v6 names topics by id."""

    throttle_time_ms: int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
    unknown_tags: UnknownTags = None
