"""ListPartitionReassignments (key 46): replicas that are moving."""

from __future__ import annotations

from kafkawire.codec.schema import request, response, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class ListPartitionReassignmentsTopics:
    name: str = ""
    partition_indexes: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=46, versions=(0, 0), flexible_from=0)
class ListPartitionReassignmentsRequest:
    """Partitions; None means all."""

    timeout_ms: int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None
    unknown_tags: UnknownTags = None


@struct
class OngoingPartitionReassignment:
    """Replicas of one partition, those coming and those going."""

    partition_index: int32 = 0
    replicas: list[int32] = []
    adding_replicas: list[int32] = []
    removing_replicas: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class OngoingTopicReassignment:
    """Results of one topic."""

    name: str = ""
    partitions: list[OngoingPartitionReassignment] = []
    unknown_tags: UnknownTags = None


@response(key=46, versions=(0, 0), flexible_from=0)
class ListPartitionReassignmentsResponse:
    """Partitions with replicas that come and go."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = []
    unknown_tags: UnknownTags = None
