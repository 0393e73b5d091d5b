"""DeleteShareGroupOffsets (key 92): share groups forget topics."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@struct
class DeleteShareGroupOffsetsRequestTopic:
    """Partitions of one topic."""

    topic_name: str = ""
    unknown_tags: UnknownTags = None


@request(key=92, versions=(0, 0), flexible_from=0)
class DeleteShareGroupOffsetsRequest:
    """Topics to forget."""

    group_id: str = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = []
    unknown_tags: UnknownTags = None


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """Results of one topic."""

    topic_name: str = ""
    topic_id: uuid = ZERO_UUID
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@response(key=92, versions=(0, 0), flexible_from=0)
class DeleteShareGroupOffsetsResponse:
    """An error code per topic."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = []
    unknown_tags: UnknownTags = None
