"""ListGroups v0-5: the groups this broker coordinates.

v1 throttle time; v3 flexible; v4 states in filter and answer; v5 types in filter and answer.
"""

from __future__ import annotations

from kafkawire.groups.consumer.group import ConsumerState
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.streams.group import StreamsState
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from kafkawire.security.acls.model import Operation, ResourceKind

_STATES = frozenset(state.value.lower() for state in (*GroupState, *ConsumerState, *StreamsState))
_TYPES = frozenset(("classic", "consumer", "share", "streams"))
NO_NAME = "-"
MAX_NAME_CHARS = 100
"""Maximum length of a state or type name."""


async def list_groups(ctx: RequestContext, req: ListGroupsRequest) -> ListGroupsResponse:
    """List all groups that match the filters; COORDINATOR_LOAD_IN_PROGRESS while any is loading."""
    req.states_filter = await _normalize_filter(ctx, req.states_filter, _STATES)
    req.types_filter = await _normalize_filter(ctx, req.types_filter, _TYPES)
    response = await ctx.broker.groups.list_groups(client_of(ctx), ctx.version, req)
    if ctx.rights is not None and not ctx.may_cluster(Operation.DESCRIBE, logged=False):
        response.groups = await ctx.list_in_slices(
            group for group in response.groups
            if ctx.may(Operation.DESCRIBE, ResourceKind.GROUP, group.group_id, logged=False)
        )  # fmt: skip
    return response


async def _normalize_filter(
    ctx: RequestContext, names: list[str], known: frozenset[str]
) -> list[str]:
    """Return a filter with each known name once, and one name in place of all unknown ones."""
    folded: set[str] = set()
    for name in names:
        lower = name[:MAX_NAME_CHARS].lower()
        folded.add(lower if lower in known else NO_NAME)
        await ctx.give_way()
    return sorted(folded)
