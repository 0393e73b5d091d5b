"""DescribeCluster: the brokers, without any topics (KIP-700)."""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.nodes import OPERATIONS_OMITTED, Nodes, cluster_operations
from kafkawire.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2  # EndpointType


async def describe_cluster(
    ctx: RequestContext, req: DescribeClusterRequest
) -> DescribeClusterResponse:
    """DescribeCluster v0-2.

    v1 endpoint type (KIP-919): controllers have no endpoints of their own here, so asking for
    them is MISMATCHED_ENDPOINT_TYPE, as on a Kafka broker; v2 fenced brokers on request
    (KIP-1073): those that are not alive (kafkawire.broker.liveness).
    """
    if req.endpoint_type != BROKERS:
        return _refuse_endpoint_type(ctx.version, req.endpoint_type)
    nodes = Nodes(ctx)
    fenced = nodes.fenced if req.include_fenced_brokers else []
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=ctx.broker.cluster_id,
        controller_id=nodes.controller,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id,
                host=node.host,
                port=node.port,
                rack=node.rack,
                is_fenced=node.node_id not in nodes.by_id,
            )
            for node in [*nodes.by_id.values(), *fenced]
        ],
        cluster_authorized_operations=(
            cluster_operations(ctx)
            if req.include_cluster_authorized_operations
            else OPERATIONS_OMITTED
        ),
    )


def _refuse_endpoint_type(version: int, endpoint_type: int) -> DescribeClusterResponse:
    known = endpoint_type == CONTROLLERS
    code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    message = (
        "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
        "CONTROLLER"
        if known
        else f"Unsupported endpoint type {endpoint_type}"
    )
    return DescribeClusterResponse(
        error_code=code if version > 0 else ErrorCode.INVALID_REQUEST, error_message=message
    )
