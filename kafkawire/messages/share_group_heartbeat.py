"""ShareGroupHeartbeat (key 76): ShareGroupHeartbeat"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@request(key=76, versions=(1, 1), flexible_from=0)
class ShareGroupHeartbeatRequest:
    """ShareGroupHeartbeatRequest"""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None
    unknown_tags: UnknownTags = None


@struct
class TopicPartitions:
    """One entry of `topic_partitions`."""

    topic_id: uuid = ZERO_UUID
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class Assignment:
    """One entry of `assignment`."""

    topic_partitions: list[TopicPartitions] = []
    unknown_tags: UnknownTags = None


@response(key=76, versions=(1, 1), flexible_from=0)
class ShareGroupHeartbeatResponse:
    """ShareGroupHeartbeatResponse"""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None
    unknown_tags: UnknownTags = None
