"""DeleteRecords (key 21): everything before an offset goes."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class DeleteRecordsPartition:
    """The first offset to keep."""

    partition_index: int32 = 0
    offset: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class DeleteRecordsTopic:
    name: str = ""
    partitions: list[DeleteRecordsPartition] = []
    unknown_tags: UnknownTags = None


@request(key=21, versions=(0, 2), flexible_from=2)
class DeleteRecordsRequest:
    """The first offset to keep in each partition; -1 is the high watermark."""

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class DeleteRecordsPartitionResult:
    """The new log start."""

    partition_index: int32 = 0
    low_watermark: int64 = 0
    error_code: int16 = 0
    unknown_tags: UnknownTags = None


@struct
class DeleteRecordsTopicResult:
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=21, versions=(0, 2), flexible_from=2)
class DeleteRecordsResponse:
    """The new log start of each partition."""

    throttle_time_ms: int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
    unknown_tags: UnknownTags = None
