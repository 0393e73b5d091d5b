"""GroupActivity: who of a group has joined, and when offsets were committed; an API specific to
kafkawire that ApiVersions does not list."""

from __future__ import annotations

from kafkawire.handlers.context import RequestContext
from kafkawire.messages.group_activity import GroupActivityRequest, GroupActivityResponse


async def group_activity(ctx: RequestContext, req: GroupActivityRequest) -> GroupActivityResponse:
    """GroupActivity v0.

    What DescribeGroups and OffsetFetch of Kafka do not have, for `kafkawire groups lag` and `why`.
    GROUP_ID_NOT_FOUND for an unknown group. What is not yet durable is included.
    """
    return await ctx.broker.groups.activity(req.group_id, ctx.give_way)
