"""SyncGroup (key 14): members of a classic group hand in or get the assignment."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class SyncGroupRequestAssignment:
    """One member's assignment."""

    member_id: str = ""
    assignment: bytes = b""
    unknown_tags: UnknownTags = None


@request(key=14, versions=(0, 5), flexible_from=4)
class SyncGroupRequest:
    """The leader's assignments, nothing from the others.

    v3 adds the static member id; v5 protocol type and name, which must be the group's.
    """

    group_id: str = ""
    generation_id: int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, since(3)] = None
    protocol_type: Annotated[str | None, since(5), ignorable] = None
    protocol_name: Annotated[str | None, since(5), ignorable] = None
    assignments: list[SyncGroupRequestAssignment] = []
    unknown_tags: UnknownTags = None


@response(key=14, versions=(0, 5), flexible_from=4)
class SyncGroupResponse:
    """The member's own assignment. v1 adds the throttle time; v5 protocol type and name."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16 = 0
    protocol_type: Annotated[str | None, since(5)] = None
    protocol_name: Annotated[str | None, since(5)] = None
    assignment: bytes = b""
    unknown_tags: UnknownTags = None
