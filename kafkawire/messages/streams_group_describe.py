"""StreamsGroupDescribe (key 89): streams groups with topology and members."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import fresh, ignorable, request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32, int64, uint16
from kafkawire.messages.streams_group_topology_description_update import TopologyDescription


@request(key=89, versions=(0, 1), flexible_from=0)
class StreamsGroupDescribeRequest:
    """Group ids. v1 may ask for the topology's description (KIP-1331)."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False
    include_topology_description: Annotated[bool, since(1)] = False
    unknown_tags: UnknownTags = None


@struct
class KeyValue:
    """One name and value."""

    key: str = ""
    value: str = ""
    unknown_tags: UnknownTags = None


@struct
class TopicInfo:
    """One internal topic of a subtopology."""

    name: str = ""
    partitions: int32 = 0
    replication_factor: int16 = 0
    topic_configs: list[KeyValue] = []
    unknown_tags: UnknownTags = None


@struct
class Subtopology:
    """One independent part of the topology."""

    subtopology_id: str = ""
    source_topics: list[str] = []
    repartition_sink_topics: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_source_topics: list[TopicInfo] = []
    unknown_tags: UnknownTags = None


@struct
class Topology:
    """The topology of a streams application."""

    epoch: int32 = 0
    subtopologies: list[Subtopology] | None = None
    unknown_tags: UnknownTags = None


@struct
class Endpoint:
    """Where interactive queries are served."""

    host: str = ""
    port: uint16 = 0
    unknown_tags: UnknownTags = None


@struct
class TaskOffset:
    """How far one task has come."""

    subtopology_id: str = ""
    partition: int32 = 0
    offset: int64 = 0
    unknown_tags: UnknownTags = None


@struct
class TaskIds:
    subtopology_id: str = ""
    partitions: list[int32] = []
    unknown_tags: UnknownTags = None


@struct
class Assignment:
    """Assigned partitions of one member."""

    active_tasks: list[TaskIds] = []
    standby_tasks: list[TaskIds] = []
    warmup_tasks: list[TaskIds] = []
    unknown_tags: UnknownTags = None


@struct
class Member:
    member_id: str = ""
    member_epoch: int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int32 = 0
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = []
    task_offsets: list[TaskOffset] = []
    task_end_offsets: list[TaskOffset] = []
    assignment: Assignment = fresh(Assignment)
    target_assignment: Assignment = fresh(Assignment)
    is_classic: bool = False
    unknown_tags: UnknownTags = None


@struct
class DescribedGroup:
    """One group as its coordinator knows it."""

    error_code: int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: int32 = 0
    assignment_epoch: int32 = 0
    topology: Topology | None = None
    members: list[Member] = []
    authorized_operations: int32 = -2147483648
    topology_description: Annotated[TopologyDescription | None, since(1)] = None
    topology_description_status: Annotated[int8, since(1)] = 0
    assignor_name: Annotated[str | None, since(1), ignorable] = None
    unknown_tags: UnknownTags = None


@response(key=89, versions=(0, 1), flexible_from=0)
class StreamsGroupDescribeResponse:
    """Epochs, topology, members and tasks.

    v1 adds the topology's description (KIP-1331) and the assignor's name (KIP-1357).
    """

    throttle_time_ms: int32 = 0
    groups: list[DescribedGroup] = []
    unknown_tags: UnknownTags = None
