"""RemoveRaftVoter (key 81): a controller leaves the quorum."""

from __future__ import annotations

from kafkawire.codec.schema import request, response
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@request(key=81, versions=(0, 0), flexible_from=0)
class RemoveRaftVoterRequest:
    """Id and directory of the voter."""

    cluster_id: str | None = ""
    voter_id: int32 = 0
    voter_directory_id: uuid = ZERO_UUID
    unknown_tags: UnknownTags = None


@response(key=81, versions=(0, 0), flexible_from=0)
class RemoveRaftVoterResponse:
    """An error code and message."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None
