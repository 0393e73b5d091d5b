"""AlterShareGroupOffsets (key 91): share groups continue elsewhere."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uuid


@struct
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int32 = 0
    start_offset: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = []
    unknown_tags: UnknownTags = None


@request(key=91, versions=(0, 0), flexible_from=0)
class AlterShareGroupOffsetsRequest:
    """New start offsets."""

    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = []
    unknown_tags: UnknownTags = None


@struct
class AlterShareGroupOffsetsResponsePartition:
    """Result for one partition."""

    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@struct
class AlterShareGroupOffsetsResponseTopic:
    """Results of one topic."""

    topic_name: str = ""
    topic_id: uuid = ZERO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = []
    unknown_tags: UnknownTags = None


@response(key=91, versions=(0, 0), flexible_from=0)
class AlterShareGroupOffsetsResponse:
    """An error code per partition."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = []
    unknown_tags: UnknownTags = None
