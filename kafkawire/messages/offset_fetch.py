"""OffsetFetch (key 9): a group asks how far it has read."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, nullable, request, response, since, struct, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic (to v7)."""

    name: str = ""
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic (v8+)."""

    name: Annotated[str, until(9), ignorable] = ""
    topic_id: Annotated[uuid, since(10), ignorable] = ZERO_UUID
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchRequestGroup:
    """One group (v8+)."""

    group_id: str = ""
    member_id: Annotated[str | None, since(9), ignorable] = None
    member_epoch: Annotated[int32, since(9), ignorable] = -1
    topics: list[OffsetFetchRequestTopics] | None = []
    unknown_tags: UnknownTags = None


@request(key=9, versions=(1, 10), flexible_from=6)
class OffsetFetchRequest:
    """Partitions whose committed offset is requested; None (v2+) means all.

    v7 can insist on offsets that no transaction may change; v8 asks for many groups at once; v9
    adds member and epoch (KIP-848); v10 names topics by id.
    """

    group_id: Annotated[str, until(7)] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, until(7), nullable(2)] = []
    groups: Annotated[list[OffsetFetchRequestGroup], since(8)] = []
    require_stable: Annotated[bool, since(7)] = False
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponsePartition:
    """One committed offset (to v7)."""

    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: Annotated[int32, since(5)] = -1
    metadata: str | None = ""
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponseTopic:
    """Offsets of one topic (to v7)."""

    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponsePartitions:
    """One committed offset (v8+)."""

    partition_index: int32 = 0
    committed_offset: int64 = 0
    committed_leader_epoch: int32 = -1
    metadata: str | None = ""
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponseTopics:
    """Offsets of one topic (v8+)."""

    name: Annotated[str, until(9)] = ""
    topic_id: Annotated[uuid, since(10)] = ZERO_UUID
    partitions: list[OffsetFetchResponsePartitions] = []
    unknown_tags: UnknownTags = None


@struct
class OffsetFetchResponseGroup:
    """One group (v8+)."""

    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = []
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@response(key=9, versions=(1, 10), flexible_from=6)
class OffsetFetchResponse:
    """Committed offsets, -1 where there is none.

    v2 adds a top-level error; v3 the throttle time; v5 the leader epoch; v8 answers by group; v10
    names topics by id.
    """

    throttle_time_ms: Annotated[int32, since(3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], until(7)] = []
    error_code: Annotated[int16, since(2), until(7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], since(8)] = []
    unknown_tags: UnknownTags = None
