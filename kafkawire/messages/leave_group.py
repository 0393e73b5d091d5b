"""LeaveGroup (key 13): members leave a classic group."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class MemberIdentity:
    member_id: str = ""
    group_instance_id: str | None = None
    reason: Annotated[str | None, since(5), ignorable] = None
    unknown_tags: UnknownTags = None


@request(key=13, versions=(0, 5), flexible_from=4)
class LeaveGroupRequest:
    """Who leaves. v3 takes many members with static ids; v5 adds the reason."""

    group_id: str = ""
    member_id: Annotated[str, until(2)] = ""
    members: Annotated[list[MemberIdentity], since(3)] = []
    unknown_tags: UnknownTags = None


@struct
class MemberResponse:
    """Result for one leaving member."""

    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@response(key=13, versions=(0, 5), flexible_from=4)
class LeaveGroupResponse:
    """v1 adds the throttle time; v3 answers for each member."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16 = 0
    members: Annotated[list[MemberResponse], since(3)] = []
    unknown_tags: UnknownTags = None
