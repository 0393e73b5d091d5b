"""GroupActivity (key 10001): who of a group has joined, and when offsets were committed. An API of
our own, no Kafka's."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@request(key=10001, versions=(0, 0), flexible_from=0)
class GroupActivityRequest:
    """One group; the broker must be its coordinator."""

    group_id: str = ""
    unknown_tags: UnknownTags = None


@struct
class ActiveMember:
    """One member. `rejoined`: its JoinGroup of the rebalance in progress has arrived. `synced`: it
    has requested its assignment."""

    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int32 = 0
    rebalance_timeout_ms: int32 = 0
    rejoined: bool = False
    synced: bool = False
    unknown_tags: UnknownTags = None


@struct
class CommittedPartition:
    """One committed offset, and when it was committed."""

    partition_index: int32 = 0
    committed_offset: int64 = -1
    commit_timestamp: int64 = -1
    unknown_tags: UnknownTags = None


@struct
class CommittedTopic:
    name: str = ""
    partitions: list[CommittedPartition] = []
    unknown_tags: UnknownTags = None


@struct
class PendingProducer:
    """A producer whose open transaction has offsets of the group."""

    producer_id: int64 = -1
    partitions: int32 = 0
    unknown_tags: UnknownTags = None


@response(key=10001, versions=(0, 0), flexible_from=0)
class GroupActivityResponse:
    """State with the time since when, members, committed offsets. Times are milliseconds since
    1970, -1 if unknown."""

    error_code: int16 = 0
    group_state: str = ""
    since_timestamp: int64 = -1
    generation: int32 = 0
    leader: str = ""
    joining_members: int32 = 0
    members: list[ActiveMember] = []
    topics: list[CommittedTopic] = []
    pending_producers: list[PendingProducer] = []
    unknown_tags: UnknownTags = None
