"""DescribeQuorum (key 55): the state of the metadata quorum."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, int64, uint16, uuid


@struct
class PartitionData:
    partition_index: int32 = 0
    unknown_tags: UnknownTags = None


@struct
class TopicData:
    topic_name: str = ""
    partitions: list[PartitionData] = []
    unknown_tags: UnknownTags = None


@request(key=55, versions=(0, 2), flexible_from=0)
class DescribeQuorumRequest:
    """Partitions of the metadata log."""

    topics: list[TopicData] = []
    unknown_tags: UnknownTags = None


@struct
class ReplicaState:
    """How far one voter or observer has come."""

    replica_id: int32 = 0
    replica_directory_id: Annotated[uuid, since(2)] = ZERO_UUID
    log_end_offset: int64 = 0
    last_fetch_timestamp: Annotated[int64, since(1)] = -1
    last_caught_up_timestamp: Annotated[int64, since(1)] = -1
    unknown_tags: UnknownTags = None


@struct
class ResponsePartitionData:
    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: Annotated[str | None, since(2)] = ""
    leader_id: int32 = 0
    leader_epoch: int32 = 0
    high_watermark: int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []
    unknown_tags: UnknownTags = None


@struct
class ResponseTopicData:
    """Results of one topic."""

    topic_name: str = ""
    partitions: list[ResponsePartitionData] = []
    unknown_tags: UnknownTags = None


@struct
class Listener:
    """One endpoint of a controller."""

    name: str = ""
    host: str = ""
    port: uint16 = 0
    unknown_tags: UnknownTags = None


@struct
class Node:
    """One controller with its endpoints."""

    node_id: int32 = 0
    listeners: list[Listener] = []
    unknown_tags: UnknownTags = None


@response(key=55, versions=(0, 2), flexible_from=0)
class DescribeQuorumResponse:
    """Voters and observers. v1 adds times (KIP-836); v2 messages, nodes and directory ids
    (KIP-853).
    """

    error_code: int16 = 0
    error_message: Annotated[str | None, since(2)] = ""
    topics: list[ResponseTopicData] = []
    nodes: Annotated[list[Node], since(2)] = []
    unknown_tags: UnknownTags = None
