"""DescribeGroups (key 15): classic groups with their members."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=15, versions=(0, 6), flexible_from=5)
class DescribeGroupsRequest:
    """Group ids. v3 asks for authorized operations."""

    groups: list[str] = []
    include_authorized_operations: Annotated[bool, since(3)] = False
    unknown_tags: UnknownTags = None


@struct
class DescribedGroupMember:
    """One member with its client, subscription and assignment."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, since(4)] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""
    unknown_tags: UnknownTags = None


@struct
class DescribedGroup:
    """One group as its coordinator knows it."""

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
    """State, protocol and members of each group.

    v1 adds the throttle time; v3 authorized operations; v4 static member ids; v6 an error message,
    and GROUP_ID_NOT_FOUND in place of the state Dead.
    """

    throttle_time_ms: Annotated[int32, since(1)] = 0
    groups: list[DescribedGroup] = []
    unknown_tags: UnknownTags = None
