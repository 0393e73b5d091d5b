"""ConsumerGroupHeartbeat (key 68): a member of a KIP-848 group joins, reports, leaves."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@struct
class TopicPartitions:
    topic_id: uuid = ZERO_UUID
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=68, versions=(0, 1), flexible_from=0)
class ConsumerGroupHeartbeatRequest:
    """Everything on joining (epoch 0), later only what changed; -1 leaves, -2 leaves for a while.

    v1 adds a subscription by pattern, and the member makes its own id (KIP-1082).
    """

    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: Annotated[str | None, since(1)] = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None
    unknown_tags: UnknownTags = None


@struct
class Assignment:
    """Assigned partitions of one member."""

    topic_partitions: list[TopicPartitions] = []
    unknown_tags: UnknownTags = None


@response(key=68, versions=(0, 1), flexible_from=0)
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment when that changed."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    assignment: Assignment | None = None
    unknown_tags: UnknownTags = None
