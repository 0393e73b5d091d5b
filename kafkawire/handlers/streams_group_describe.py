"""StreamsGroupDescribe v0-1: state, epochs, topology, members and tasks of streams groups
(KIP-1071).

v1 the assignor (KIP-1357), and the description of the topology (KIP-1331), which this broker never
has: its status says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.groups.model.request import STREAMS_DESCRIBE
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.group_descriptions import Describer, describe_each
from kafkawire.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

HIDDEN_TOPICS = (
    "The described group uses topics that the client is not authorized to describe."  # Kafka's
)
NOT_STORED = 1
"""The status of a topology's description that no plugin keeps (Kafka: NOT_STORED)."""


def _list_topics(group: DescribedGroup) -> Iterator[str]:
    for each in (None if group.topology is None else group.topology.subtopologies) or ():
        infos = (*each.repartition_source_topics, *each.state_changelog_topics)
        yield from (*each.source_topics, *each.repartition_sink_topics, *(i.name for i in infos))


_DESCRIBER = Describer(STREAMS_DESCRIBE, DescribedGroup, _list_topics, HIDDEN_TOPICS)


async def streams_group_describe(
    ctx: RequestContext, req: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Describe each group once, with an error for each."""
    groups = await describe_each(ctx, req, ctx.broker.config.streams_version, _DESCRIBER)
    if req.include_topology_description:
        for group in groups:
            if not group.error_code:
                group.topology_description_status = NOT_STORED
            await ctx.give_way()
    return StreamsGroupDescribeResponse(groups=groups)
