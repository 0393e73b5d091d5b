"""Metadata (key 3): brokers, topics, partitions and their leaders."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import ignorable, nullable, request, response, since, struct, until
from kafkawire.codec.types import ZERO_UUID, UnknownTags, int16, int32, uuid


@struct
class MetadataRequestTopic:
    """One requested topic, by name or (v10+) id."""

    topic_id: Annotated[uuid, since(10), ignorable] = ZERO_UUID
    name: Annotated[str | None, nullable(10)] = ""
    unknown_tags: UnknownTags = None


@request(key=3, versions=(0, 13), flexible_from=9)
class MetadataRequest:
    """Which topics to describe. None (v1+): all. An empty list: all in v0, none from v1.

    v4 lets the client refuse auto-creation; v8 asks for authorized operations; v10 has topic ids,
    and v12 asks by id with a null name.
    """

    topics: Annotated[list[MetadataRequestTopic] | None, nullable(1)] = []
    allow_auto_topic_creation: Annotated[bool, since(4)] = True
    include_cluster_authorized_operations: Annotated[bool, since(8), until(10)] = False
    include_topic_authorized_operations: Annotated[bool, since(8)] = False
    unknown_tags: UnknownTags = None


@struct
class MetadataResponseBroker:
    """One broker, at the address of the listener that was asked."""

    node_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: Annotated[str | None, since(1)] = None
    unknown_tags: UnknownTags = None


@struct
class MetadataResponsePartition:
    error_code: int16 = 0
    partition_index: int32 = 0
    leader_id: int32 = 0
    leader_epoch: Annotated[int32, since(7)] = -1
    replica_nodes: list[int32] = []
    isr_nodes: list[int32] = []
    offline_replicas: Annotated[list[int32], since(5)] = []
    unknown_tags: UnknownTags = None


@struct
class MetadataResponseTopic:
    error_code: int16 = 0
    name: Annotated[str | None, nullable(12)] = ""
    topic_id: Annotated[uuid, since(10)] = ZERO_UUID
    is_internal: Annotated[bool, since(1)] = False
    partitions: list[MetadataResponsePartition] = []
    topic_authorized_operations: Annotated[int32, since(8)] = -2147483648
    unknown_tags: UnknownTags = None


@response(key=3, versions=(0, 13), flexible_from=9)
class MetadataResponse:
    """Brokers, controller, topics with their partitions.

    v1 adds rack, controller and internal flag; v2 the cluster id; v3 the throttle time; v5 offline
    replicas; v7 leader epochs; v8 authorized operations (of the cluster only to v10); v10 topic
    ids; v13 a top-level error.
    """

    throttle_time_ms: Annotated[int32, since(3)] = 0
    brokers: list[MetadataResponseBroker] = []
    cluster_id: Annotated[str | None, since(2)] = None
    controller_id: Annotated[int32, since(1)] = -1
    topics: list[MetadataResponseTopic] = []
    cluster_authorized_operations: Annotated[int32, since(8), until(10)] = -2147483648
    error_code: Annotated[int16, since(13)] = 0
    unknown_tags: UnknownTags = None
