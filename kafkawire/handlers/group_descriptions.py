"""ConsumerGroupDescribe, ShareGroupDescribe and StreamsGroupDescribe: what they have in common.

Groups that the client may not describe are the first of the answer, as in Kafka. A group with a
topic that the client may not describe has an error instead of its members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.request import RequestKind
from kafkawire.handlers.clients import client_of, divided_groups
from kafkawire.handlers.context import RequestContext
from kafkawire.security.acls.model import Operation, ResourceKind


class DescribeRequest(Protocol):
    group_ids: list[str]
    include_authorized_operations: bool


@dataclass(frozen=True, slots=True)
class Describer:
    """One of the three APIs. `topics_of`: the names of topics that a group shows, repeated ones
    too; `hidden`: Kafka's text where the client may not describe one of them."""

    kind: RequestKind[Any, Any]
    description: Callable[..., Any]
    topics_of: Callable[[Any], Iterable[str]]
    hidden: str


async def describe_each(
    ctx: RequestContext, req: DescribeRequest, enabled: object, describer: Describer
) -> list[Any]:
    """Return the description of each group once, with an error for each. `enabled`: the level of
    the feature that has these groups; UNSUPPORTED_VERSION without it."""
    if not enabled:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    wanted, hidden = await divided_groups(ctx, Operation.DESCRIBE, req.group_ids)
    code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused = await ctx.list_in_slices(
        describer.description(group_id=group_id, error_code=code) for group_id in hidden
    )
    if "" in wanted:
        wanted = [group_id for group_id in wanted if group_id]
        refused.append(describer.description(error_code=int(ErrorCode.INVALID_GROUP_ID)))
    groups = await ctx.broker.groups.describe_each(
        describer.kind, client_of(ctx), ctx.version, wanted
    )
    allowed: dict[str, bool] = {}  # by topic
    for at, group in enumerate(groups):
        if req.include_authorized_operations and not group.error_code:
            group.authorized_operations = ctx.authorized_operations(
                ResourceKind.GROUP, group.group_id
            )
        names = describer.topics_of(group)
        if ctx.rights is not None and not await _may_describe_all(ctx, names, allowed):
            groups[at] = describer.description(
                group_id=group.group_id,
                error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
                error_message=describer.hidden,
            )
        await ctx.give_way()
    return refused + groups


async def _may_describe_all(
    ctx: RequestContext, names: Iterable[str], allowed: dict[str, bool]
) -> bool:
    for name in names:
        if name not in allowed:
            allowed[name] = ctx.may_topic(Operation.DESCRIBE, name)
        if not allowed[name]:
            return False
        await ctx.give_way()
    return True
