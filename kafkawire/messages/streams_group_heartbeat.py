"""StreamsGroupHeartbeat (key 88): a member of a streams group joins, reports, leaves."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import fresh, request, response, since, struct, until
from kafkawire.codec.types import UnknownTags, int8, int16, int32, int64
from kafkawire.messages.streams_group_describe import (
    Endpoint,
    KeyValue,
    TaskIds,
    TaskOffset,
    TopicInfo,
)


@struct
class CopartitionGroup:
    """Topics that need equally many partitions, by index in their lists."""

    source_topics: list[int16] = []
    source_topic_regex: list[int16] = []
    repartition_source_topics: list[int16] = []
    unknown_tags: UnknownTags = None


@struct
class Subtopology:
    """One independent part of the topology."""

    subtopology_id: str = ""
    source_topics: list[str] = []
    source_topic_regex: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_sink_topics: list[str] = []
    repartition_source_topics: list[TopicInfo] = []
    copartition_groups: list[CopartitionGroup] = []
    unknown_tags: UnknownTags = None


@struct
class Topology:
    """The topology of a streams application."""

    epoch: int32 = 0
    subtopologies: list[Subtopology] = []
    unknown_tags: UnknownTags = None


@request(key=88, versions=(0, 1), flexible_from=0)
class StreamsGroupHeartbeatRequest:
    """Everything on joining, later only what changed. v1 is the same (KIP-1331)."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: int32 = 0
    endpoint_information_epoch: int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int32 = -1
    topology: Topology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: bool = False
    unknown_tags: UnknownTags = None


@struct
class Status:
    """One thing about the group that the member should know."""

    status_code: int8 = 0
    status_detail: str = ""
    unknown_tags: UnknownTags = None


@struct
class TopicPartition:
    topic: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class EndpointToPartitions:
    """Partitions served by one endpoint."""

    user_endpoint: Endpoint = fresh(Endpoint)
    active_partitions: list[TopicPartition] = []
    standby_partitions: list[TopicPartition] = []
    unknown_tags: UnknownTags = None


@response(key=88, versions=(0, 1), flexible_from=0)
class StreamsGroupHeartbeatResponse:
    """Epoch, tasks and endpoints, each when it changed.

    v1 widens the acceptable lag and may ask for the topology's description (KIP-1331).
    """

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int32 = 0
    heartbeat_interval_ms: int32 = 0
    acceptable_recovery_lag_legacy: Annotated[int32, until(0)] = 0
    task_offset_interval_ms: int32 = 0
    acceptable_recovery_lag: Annotated[int64, since(1)] = -1
    status: list[Status] | None = []
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    topology_description_required: Annotated[bool, since(1)] = False
    endpoint_information_epoch: int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None
    unknown_tags: UnknownTags = None
