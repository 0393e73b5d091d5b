"""JoinGroup (key 11): a member enters a classic group, or enters its next generation."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, nullable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class JoinGroupRequestProtocol:
    """One protocol the member speaks, with its metadata."""

    name: str = ""
    metadata: bytes = b""
    unknown_tags: UnknownTags = None


@request(key=11, versions=(0, 9), flexible_from=6)
class JoinGroupRequest:
    """A member offers its protocols.

    v1 adds the rebalance timeout; v4 a second round with the id from the first answer; v5 the
    static member id; v8 the reason.
    """

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
    """One member, as the leader needs it."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, since(5)] = None
    metadata: bytes = b""
    unknown_tags: UnknownTags = None


@response(key=11, versions=(0, 9), flexible_from=6)
class JoinGroupResponse:
    """The new generation; for its leader also the members.

    v2 adds the throttle time; v5 static member ids; v7 the protocol type and a nullable protocol
    name; v9 tells a leader to keep the assignment.
    """

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
