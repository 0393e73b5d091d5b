"""ElectLeaders (key 43): partitions elect a leader."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@struct
class TopicPartitions:
    topic: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@request(key=43, versions=(0, 2), flexible_from=2)
class ElectLeadersRequest:
    """Partitions; None means all. v1 adds the kind of election (KIP-460)."""

    election_type: Annotated[int8, since(1)] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: int32 = 60000
    unknown_tags: UnknownTags = None


@struct
class PartitionResult:
    partition_id: int32 = 0
    error_code: int16 = 0
    error_message: str | None = ""
    unknown_tags: UnknownTags = None


@struct
class ReplicaElectionResult:
    topic: str = ""
    partition_result: list[PartitionResult] = []
    unknown_tags: UnknownTags = None


@response(key=43, versions=(0, 2), flexible_from=2)
class ElectLeadersResponse:
    """An error code per partition. v1 adds a top-level error."""

    throttle_time_ms: int32 = 0
    error_code: Annotated[int16, since(1)] = 0
    replica_election_results: list[ReplicaElectionResult] = []
    unknown_tags: UnknownTags = None
