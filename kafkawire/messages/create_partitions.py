"""CreatePartitions (key 37): a topic gets more partitions."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class CreatePartitionsTopic:
    """One topic with its new total."""

    name: str = ""
    count: int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = []
    unknown_tags: UnknownTags = None


@request(key=37, versions=(0, 3), flexible_from=2)
class CreatePartitionsRequest:
    """The new total of each topic."""

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: int32 = 0
    validate_only: bool = False
    unknown_tags: UnknownTags = None


@struct
class CreatePartitionsTopicResult:
    name: str = ""
    error_code: int16 = 0
    error_message: str | None = None
    unknown_tags: UnknownTags = None


@response(key=37, versions=(0, 3), flexible_from=2)
class CreatePartitionsResponse:
    """An error code per topic. v3 may be throttled."""

    throttle_time_ms: int32 = 0
    results: list[CreatePartitionsTopicResult] = []
    unknown_tags: UnknownTags = None
