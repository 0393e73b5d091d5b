"""JoinGroup (key 11): JoinGroup"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, nullable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class JoinGroupRequestProtocol:
    """One entry of `protocols`."""

    name: str = ""
    metadata: bytes = b""
    unknown_tags: UnknownTags = None


@request(key=11, versions=(0, 9), flexible_from=6)
class JoinGroupRequest:
    """JoinGroupRequest"""

    group_id: str = ""
    session_timeout_ms: int32 = 0
    rebalance_timeout_ms: Annotated[int32, since(1), ignorable] = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, since(5)] = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[str | None, since(8), ignorable] = None
    unknown_tags: UnknownTags = None


@struct
class JoinGroupResponseMember:
    """One entry of `members`."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, since(5)] = None
    metadata: bytes = b""
    unknown_tags: UnknownTags = None


@response(key=11, versions=(0, 9), flexible_from=6)
class JoinGroupResponse:
    """JoinGroupResponse"""

    throttle_time_ms: Annotated[int32, since(2)] = 0
    error_code: int16 = 0
    generation_id: int32 = -1
    protocol_type: Annotated[str | None, since(7)] = None
    protocol_name: Annotated[str | None, nullable(7)] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, since(9)] = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []
    unknown_tags: UnknownTags = None
