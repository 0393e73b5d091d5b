"""DeleteShareGroupOffsets (key 92): DeleteShareGroupOffsets"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@struct
class DeleteShareGroupOffsetsRequestTopic:
    """One entry of `topics`."""

    topic_name: str = ""
    unknown_tags: UnknownTags = None


@request(key=92, versions=(0, 0), flexible_from=0)
class DeleteShareGroupOffsetsRequest:
    """DeleteShareGroupOffsetsRequest"""

    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []
    unknown_tags: UnknownTags = None


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """One entry of `responses`."""

    topic_name: str = ""
    topic_id: uuid = ZERO_UUID
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@response(key=92, versions=(0, 0), flexible_from=0)
class DeleteShareGroupOffsetsResponse:
    """DeleteShareGroupOffsetsResponse"""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
    unknown_tags: UnknownTags = None
