"""ShareGroupHeartbeat (key 76): a member of a share group joins, reports, leaves."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import UnknownTags, int16, int32
from kafkawire.messages.consumer_group_heartbeat import Assignment


@request(key=76, versions=(1, 1), flexible_from=0)
class ShareGroupHeartbeatRequest:
    """Everything on joining, later only what changed."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    rack_id: str | None = None
    subscribed_topic_names: list[str] | None = None
    unknown_tags: UnknownTags = None


@response(key=76, versions=(1, 1), flexible_from=0)
class ShareGroupHeartbeatResponse:
    """The member's epoch, and its assignment when that changed."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None
    unknown_tags: UnknownTags = None
