"""ConsumerGroupDescribe v0-1: state, epochs, members and assignments of KIP-848 groups.

v1 the kind of each member: classic ones are in a group that changes its protocol (KIP-1099).
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.groups.model.request import CONSUMER_DESCRIBE
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.group_descriptions import Describer, describe_each
from kafkawire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

HIDDEN_TOPICS = (
    "The group has described topic(s) that the client is not authorized to describe."  # Kafka's
)


def _list_topics(group: DescribedGroup) -> Iterator[str]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            yield from (each.topic_name for each in assignment.topic_partitions)


_DESCRIBER = Describer(CONSUMER_DESCRIBE, DescribedGroup, _list_topics, HIDDEN_TOPICS)


async def consumer_group_describe(
    ctx: RequestContext, req: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group once, with an error for each."""
    enabled = ctx.broker.config.group_version
    return ConsumerGroupDescribeResponse(groups=await describe_each(ctx, req, enabled, _DESCRIBER))
