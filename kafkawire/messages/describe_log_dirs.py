"""DescribeLogDirs (key 35): the folders of a broker and their partitions."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32, int64


@struct
class DescribableLogDirTopic:
    topic: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=35, versions=(1, 5), flexible_from=2)
class DescribeLogDirsRequest:
    """Partitions to show; None means all."""

    topics: list[DescribableLogDirTopic] | None = []
    unknown_tags: UnknownTags = None


@struct
class DescribeLogDirsPartition:
    """One partition in a folder: its size and lag."""

    partition_index: int32 = 0
    partition_size: int64 = 0
    offset_lag: int64 = 0
    is_future_key: bool = False
    unknown_tags: UnknownTags = None


@struct
class DescribeLogDirsTopic:
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = []
    unknown_tags: UnknownTags = None


@struct
class DescribeLogDirsResult:
    """One folder."""

    error_code: int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[int64, since(4)] = -1
    usable_bytes: Annotated[int64, since(4)] = -1
    is_cordoned: Annotated[bool, since(5)] = False
    unknown_tags: UnknownTags = None


@response(key=35, versions=(1, 5), flexible_from=2)
class DescribeLogDirsResponse:
    """v3 adds a top-level error; v4 total and usable bytes; v5 whether the folder takes no more
    replicas.
    """

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(3)] = 0
    results: list[DescribeLogDirsResult] = []
    unknown_tags: UnknownTags = None
