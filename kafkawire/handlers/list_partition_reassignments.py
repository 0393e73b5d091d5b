"""ListPartitionReassignments: the partitions that are being moved (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from kafkawire.metadata.catalog import Catalog


async def list_partition_reassignments(
    ctx: RequestContext, req: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """ListPartitionReassignments v0.

    A partition that is being moved has two replicas: the new leader, which is added, and the
    present one, which is removed. Partitions that are not moved are left out, as are those that do
    not exist. The changes of other brokers are applied first: clients ask any of them.
    """
    response = ListPartitionReassignmentsResponse(error_message=None)
    await ctx.broker.topics.follower.catch_up()
    catalog = ctx.broker.catalog
    if not catalog.moves:
        return response
    found: dict[str, OngoingTopicReassignment] = {}
    for name, index, number in _list_asked_partitions(catalog, req.topics):
        await ctx.give_way()
        target, leader = catalog.moves.get(number), catalog.leader_of(number)
        if target is None or leader is None:
            continue
        if name not in found:
            found[name] = OngoingTopicReassignment(name)
            response.topics.append(found[name])
        found[name].partitions.append(
            OngoingPartitionReassignment(index, [target, leader], [target], [leader])
        )
    return response


def _list_asked_partitions(
    catalog: Catalog, topics: list[ListPartitionReassignmentsTopics] | None
) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, index, number) of existing partitions; `topics` None: of all that move."""
    if topics is None:
        for number in list(catalog.moves):
            place = catalog.locate(number)
            if place is not None:
                yield place.topic, place.index, number
        return
    for topic in topics:
        for index in topic.partition_indexes:
            partition = catalog.by_name.partition_of(topic.name, index)
            yield topic.name, index, -1 if partition is None else partition.number
