"""OffsetCommit (key 8): a group stores how far it has read."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class OffsetCommitRequestPartition:
    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: Annotated[int32, since(6), ignorable] = -1
    committed_metadata: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class OffsetCommitRequestTopic:
    name: Annotated[str, until(9), ignorable] = ""
    topic_id: Annotated[uuid, since(10), ignorable] = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = []
    unknown_tags: UnknownTags = None


@request(key=8, versions=(2, 10), flexible_from=8)
class OffsetCommitRequest:
    """Offsets to store for a group.

    v2-v4 carry a retention time; v6 adds the leader epoch; v7 the static member id; from v9 the
    generation may be a KIP-848 member epoch; v10 names topics by id.
    """

    group_id: str = ""
    generation_id_or_member_epoch: int32 = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, since(7)] = None
    retention_time_ms: Annotated[int64, until(4), ignorable] = -1
    topics: list[OffsetCommitRequestTopic] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetCommitResponsePartition:
    """Result for one partition."""

    partition_index: int32 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class OffsetCommitResponseTopic:
    """Results of one topic."""

    name: Annotated[str, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = []
    unknown_tags: UnknownTags = None


@response(key=8, versions=(2, 10), flexible_from=8)
class OffsetCommitResponse:
    """An error code per partition.

    v3 adds the throttle time; v9 may answer STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND; v10 names
    topics by id.
    """

    throttle_time_ms: Annotated[int32, since(3)] = 0
    topics: list[OffsetCommitResponseTopic] = []
    unknown_tags: UnknownTags = None
