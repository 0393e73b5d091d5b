"""DescribeGroups (key 15): DescribeGroups"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=15, versions=(0, 6), flexible_from=5)
class DescribeGroupsRequest:
    """DescribeGroupsRequest"""

    groups: list[str] = []
    include_authorized_operations: Annotated[bool, since(3)] = False
    unknown_tags: UnknownTags = None


@struct
class DescribedGroupMember:
    """One entry of `members`."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, since(4)] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""
    unknown_tags: UnknownTags = None


@struct
class DescribedGroup:
    """One entry of `groups`."""

    error_code: int16 = 0
    error_message: Annotated[str | None, since(6)] = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[int32, since(3)] = -2147483648
    unknown_tags: UnknownTags = None


@response(key=15, versions=(0, 6), flexible_from=5)
class DescribeGroupsResponse:
    """DescribeGroupsResponse"""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    groups: list[DescribedGroup] = []
    unknown_tags: UnknownTags = None
