"""ListPartitionReassignments: no replica ever moves here (KIP-455)."""

from __future__ import annotations

from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def list_partition_reassignments(
    ctx: RequestContext, req: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """ListPartitionReassignments v0.

    A partition has one replica, which never moves, so the response is empty, as in Kafka for
    partitions that are not being reassigned or do not exist. Not done: reassignments.
    """
    return ListPartitionReassignmentsResponse(error_message=None)
