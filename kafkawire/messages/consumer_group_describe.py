"""ConsumerGroupDescribe (key 69): KIP-848 groups with their members."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import fresh, request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int8, int16, int32, uuid


@request(key=69, versions=(0, 1), flexible_from=0)
class ConsumerGroupDescribeRequest:
    """Group ids."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False
    unknown_tags: UnknownTags = None


@struct
class TopicPartitions:
    topic_id: uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class Assignment:
    """Assigned partitions of one member."""

    topic_partitions: list[TopicPartitions] = []
    unknown_tags: UnknownTags = None


@struct
class Member:
    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    assignment: Assignment = fresh(Assignment)
    target_assignment: Assignment = fresh(Assignment)
    member_type: Annotated[int8, since(1)] = -1
    unknown_tags: UnknownTags = None


@struct
class DescribedGroup:
    """One group as its coordinator knows it."""

    error_code: int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    assignor_name: str = ""
    members: list[Member] = []
    authorized_operations: int32 = -2147483648
    unknown_tags: UnknownTags = None


@response(key=69, versions=(0, 1), flexible_from=0)
class ConsumerGroupDescribeResponse:
    """Epochs, members and assignments. v1 adds the kind of member (KIP-1099)."""

    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []
    unknown_tags: UnknownTags = None
