"""OffsetDelete (key 47): a group forgets how far it has read."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import int16, int32


@struct
class OffsetDeleteRequestPartition:
    partition_index: int32 = 0


@struct
class OffsetDeleteRequestTopic:
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


@request(key=47, versions=(0, 0), flexible_from=None)
class OffsetDeleteRequest:
    """Partitions whose committed offset goes."""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


@struct
class OffsetDeleteResponsePartition:
    """Result for one partition."""

    partition_index: int32 = 0
    error_code: int16 = 0


@struct
class OffsetDeleteResponseTopic:
    """Results of one topic."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


@response(key=47, versions=(0, 0), flexible_from=None)
class OffsetDeleteResponse:
    """An error code per partition."""

    error_code: int16 = 0
    throttle_time_ms: int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
