"""ShareGroupDescribe v1: state, epochs, members and assignments of share groups (KIP-932)."""

from __future__ import annotations

from collections.abc import Iterator

from kafkawire.groups.model.request import SHARE_DESCRIBE
from kafkawire.handlers.consumer_group_describe import HIDDEN_TOPICS
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.group_descriptions import Describer, describe_each
from kafkawire.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


def _list_topics(group: DescribedGroup) -> Iterator[str]:
    for member in group.members:
        yield from (each.topic_name for each in member.assignment.topic_partitions)


_DESCRIBER = Describer(SHARE_DESCRIBE, DescribedGroup, _list_topics, HIDDEN_TOPICS)


async def share_group_describe(
    ctx: RequestContext, req: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe each group once, with an error for each."""
    enabled = ctx.broker.config.share_version
    return ShareGroupDescribeResponse(groups=await describe_each(ctx, req, enabled, _DESCRIBER))
