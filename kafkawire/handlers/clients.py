"""Helpers of the group handlers: client identity, and topics of a request by name.

Groups store offsets by topic name; newer versions identify topics by id. Ids are resolved and
missing topics rejected here, because groups are independent of the catalog.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.service import Client
from kafkawire.handlers.context import RequestContext
from kafkawire.metadata.catalog import TopicInfo
from kafkawire.security.acls.model import Operation, ResourceKind


def client_of(ctx: RequestContext) -> Client:
    """Return the client for the group coordinator: the address as printed by Java's InetAddress,
    with a slash, as in DescribeGroups."""
    return Client(ctx.client_id, f"/{ctx.client_host}")


def topic_of(
    ctx: RequestContext, name: str, topic_id: bytes, by_id: bool
) -> tuple[TopicInfo | None, ErrorCode]:
    """Return the topic of a request, or None and the error for each of its partitions."""
    catalog = ctx.broker.catalog
    if by_id:
        info = catalog.with_source(catalog.by_id.get(topic_id))
        return info, ErrorCode.NONE if info else ErrorCode.UNKNOWN_TOPIC_ID
    info = catalog.with_source(catalog.by_name.get(name))
    return info, ErrorCode.NONE if info else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def readable_topic_of(
    ctx: RequestContext, name: str, topic_id: bytes, by_id: bool
) -> tuple[TopicInfo | None, ErrorCode]:
    """`topic_of` for a client that must have the right to read the topic: checked before a name is
    looked up, and after an id."""
    catalog = ctx.broker.catalog
    if by_id:
        info = catalog.with_source(catalog.by_id.get(topic_id))
        if info is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        name = info.name
    if not ctx.may(Operation.READ, ResourceKind.TOPIC, name):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not by_id:
        info = catalog.with_source(catalog.by_name.get(name))
    return info, ErrorCode.NONE if info else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def divided_groups(
    ctx: RequestContext, operation: Operation, groups: list[str]
) -> tuple[list[str], list[str]]:
    """Return the groups with which the client may do something, and the others, each once."""
    if ctx.rights is None:
        return groups, []
    both: tuple[list[str], list[str]] = [], []
    distinct = await ctx.count_keys(groups)
    for group in distinct:
        both[not ctx.may(operation, ResourceKind.GROUP, group)].append(group)
        await ctx.give_way()
    await ctx.empty_slowly(distinct)
    return both


def partition_error(info: TopicInfo, index: int) -> ErrorCode:
    """NONE if the topic has this partition."""
    if 0 <= index < len(info.partitions):
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
