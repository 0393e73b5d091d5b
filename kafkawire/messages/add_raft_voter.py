"""AddRaftVoter (key 80): a controller joins the quorum."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid
from kafkawire.messages.describe_quorum import Listener


@request(key=80, versions=(0, 1), flexible_from=0)
class AddRaftVoterRequest:
    """Id, directory and endpoints of the voter. v1 chooses when to answer."""

    cluster_id: str | None = ""
    timeout_ms: int32 = 0
    voter_id: int32 = 0
    voter_directory_id: uuid = ZERO_UUID
    listeners: list[Listener] = []
    ack_when_committed: Annotated[bool, since(1)] = True
    unknown_tags: UnknownTags = None


@response(key=80, versions=(0, 1), flexible_from=0)
class AddRaftVoterResponse:
    """An error code and message."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None
