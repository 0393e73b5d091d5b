"""ShareGroupDescribe (key 77): share groups with their members."""

from __future__ import annotations

from kafkawire.codec.schema import fresh, request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32
from kafkawire.messages.consumer_group_describe import Assignment


@request(key=77, versions=(1, 1), flexible_from=0)
class ShareGroupDescribeRequest:
    """Group ids."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False
    unknown_tags: UnknownTags = None


@struct
class Member:
    member_id: str = ""
    rack_id: str | None = None
    member_epoch: int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    assignment: Assignment = fresh(Assignment)
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


@response(key=77, versions=(1, 1), flexible_from=0)
class ShareGroupDescribeResponse:
    """Epochs, members and assignments."""

    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []
    unknown_tags: UnknownTags = None
