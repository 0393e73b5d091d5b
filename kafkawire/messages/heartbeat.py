"""Heartbeat (key 12): a member of a classic group is alive."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since
from kafkawire.codec.types import UnknownTags, int16, int32


@request(key=12, versions=(0, 4), flexible_from=4)
class HeartbeatRequest:
    """Proof of life. v3 adds the static member id."""

    group_id: str = ""
    generation_id: int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, since(3)] = None
    unknown_tags: UnknownTags = None


@response(key=12, versions=(0, 4), flexible_from=4)
class HeartbeatResponse:
    """An error code, REBALANCE_IN_PROGRESS among them. v1 adds the throttle time."""

    throttle_time_ms: Annotated[int32, since(1)] = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None
