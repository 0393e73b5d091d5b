"""DescribeCluster (key 60): the brokers of the cluster."""

from __future__ import annotations

from typing import Annotated

from kafkawire.codec.schema import request, response, since, struct
from kafkawire.codec.types import UnknownTags, int8, int16, int32


@request(key=60, versions=(0, 2), flexible_from=0)
class DescribeClusterRequest:
    """v1 asks for brokers or controllers (KIP-919); v2 for fenced brokers too (KIP-1073)."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[int8, since(1)] = 1
    include_fenced_brokers: Annotated[bool, since(2)] = False
    unknown_tags: UnknownTags = None


@struct
class DescribeClusterBroker:
    """One broker or controller."""

    broker_id: int32 = 0
    host: str = ""
    port: int32 = 0
    rack: str | None = None
    is_fenced: Annotated[bool, since(2)] = False
    unknown_tags: UnknownTags = None


@response(key=60, versions=(0, 2), flexible_from=0)
class DescribeClusterResponse:
    """v1 repeats the endpoint type; v2 marks fenced brokers."""

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: str | None = None
    endpoint_type: Annotated[int8, since(1)] = 1
    cluster_id: str = ""
    controller_id: int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: int32 = -2147483648
    unknown_tags: UnknownTags = None
