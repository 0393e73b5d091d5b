"""SyncGroup (key 14): SyncGroup"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class SyncGroupRequestAssignment:
    """One entry of `assignments`."""

    member_id: str = ""
    assignment: bytes = b""
    unknown_tags: UnknownTags = None


@request(key=14, versions=(0, 5), flexible_from=4)
class SyncGroupRequest:
    """SyncGroupRequest"""

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
    """SyncGroupResponse"""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16 = 0
    protocol_type: Annotated[str | None, since(5)] = None
    protocol_name: Annotated[str | None, since(5)] = None
    assignment: bytes = b""
    unknown_tags: UnknownTags = None
