"""OffsetDelete (key 47): OffsetDelete"""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import int16, int32


@struct
class OffsetDeleteRequestPartition:
    """One entry of `partitions`."""

    partition_index: int32 = 0


@struct
class OffsetDeleteRequestTopic:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


@request(key=47, versions=(0, 0), flexible_from=None)
class OffsetDeleteRequest:
    """OffsetDeleteRequest"""

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


@struct
class OffsetDeleteResponsePartition:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    error_code: int16 = 0


@struct
class OffsetDeleteResponseTopic:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


@response(key=47, versions=(0, 0), flexible_from=None)
class OffsetDeleteResponse:
    """OffsetDeleteResponse"""

    error_code: int16 = 0
    throttle_time_ms: int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
