"""AlterPartitionReassignments (key 45): replicas move between brokers."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int16, int32


@struct
class ReassignablePartition:
    """One partition with its new replicas; None cancels."""

    partition_index: int32 = 0
    replicas: list[int32] | None = None
    unknown_tags: UnknownTags = None


@struct
class ReassignableTopic:
    name: str = ""
    partitions: list[ReassignablePartition] = []
    unknown_tags: UnknownTags = None


@request(key=45, versions=(0, 1), flexible_from=0)
class AlterPartitionReassignmentsRequest:
    """New replicas; None cancels. v1 may forbid another replication factor."""

    timeout_ms: int32 = 60000
    allow_replication_factor_change: Annotated[bool, since(1)] = True
    topics: list[ReassignableTopic] = []
    unknown_tags: UnknownTags = None


@struct
class ReassignablePartitionResponse:
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class ReassignableTopicResponse:
    """Results of one topic."""

    name: str = ""
    partitions: list[ReassignablePartitionResponse] = []
    unknown_tags: UnknownTags = None


@response(key=45, versions=(0, 1), flexible_from=0)
class AlterPartitionReassignmentsResponse:
    """An error code per partition. v1 repeats what was allowed."""

    throttle_time_ms: int32 = 0
    allow_replication_factor_change: Annotated[bool, since(1)] = True
    error_code: int16 = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = []
    unknown_tags: UnknownTags = None
