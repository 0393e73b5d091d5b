"""DescribeLogDirs (key 35): DescribeLogDirs"""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class DescribableLogDirTopic:
    """One entry of `topics`."""

    topic: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=35, versions=(1, 5), flexible_from=2)
class DescribeLogDirsRequest:
    """DescribeLogDirsRequest"""

    topics: list[DescribableLogDirTopic] | None = []
    unknown_tags: UnknownTags = None


@struct
class DescribeLogDirsPartition:
    """One entry of `partitions`."""

    partition_index: int32 = 0
    partition_size: int64 = 0
    offset_lag: int64 = 0
    is_future_key: bool = False
    unknown_tags: UnknownTags = None


@struct
class DescribeLogDirsTopic:
    """One entry of `topics`."""

    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []
    unknown_tags: UnknownTags = None


@struct
class DescribeLogDirsResult:
    """One entry of `results`."""

    error_code: int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[int64, since(4)] = -1
    usable_bytes: Annotated[int64, since(4)] = -1
    is_cordoned: Annotated[bool, since(5)] = False
    unknown_tags: UnknownTags = None


@response(key=35, versions=(1, 5), flexible_from=2)
class DescribeLogDirsResponse:
    """DescribeLogDirsResponse"""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(3)] = 0
    results: list[DescribeLogDirsResult] = []
    unknown_tags: UnknownTags = None
