"""OffsetFetch (key 9): OffsetFetch"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, nullable, request, response, since, struct, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class OffsetFetchRequestTopic:
    """One entry of `topics`."""

    name: str = ""
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchRequestTopics:
    """One entry of `topics`."""

    name: Annotated[str, until(9), ignorable] = ""
    topic_id: Annotated[uuid, since(10), ignorable] = ZERO_UUID
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchRequestGroup:
    """One entry of `groups`."""

    group_id: str = ""
    member_id: Annotated[str | None, since(9), ignorable] = None
    member_epoch: Annotated[int32, since(9), ignorable] = -1
    topics: list[OffsetFetchRequestTopics] | None = []
    unknown_tags: UnknownTags = None


@request(key=9, versions=(1, 10), flexible_from=6)
class OffsetFetchRequest:
    """OffsetFetchRequest"""

    group_id: Annotated[str, until(7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, until(7), nullable(2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[bool, since(7)] = False
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponsePartition:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: Annotated[int32, since(5)] = -1
    metadata: str | None = ""
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponseTopic:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponsePartitions:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: int32 = -1
    metadata: str | None = ""
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponseTopics:
    """One entry of `topics`."""

    name: Annotated[str, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponseGroup:
    """One entry of `groups`."""

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@response(key=9, versions=(1, 10), flexible_from=6)
class OffsetFetchResponse:
    """OffsetFetchResponse"""

    throttle_time_ms: Annotated[int32, since(3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], until(7)] = []
    error_code: Annotated[int16, since(2), until(7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], since(8)] = []
    unknown_tags: UnknownTags = None
