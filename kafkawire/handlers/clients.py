"""Helpers of the group handlers: client identity, and topics of a request by name.

Groups keep offsets by topic name; from some version on clients name topics by id. Resolving them
against the catalog, and refusing those that do not exist, happens here and not in the groups,
which know nothing of topics.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.service import Client
from kafkawire.handlers.context import RequestContext
from kafkawire.metadata.catalog import TopicInfo

# Read, delete, describe, describe configs, alter configs: everything there is for a group
# (AclEntry.supportedOperations), as long as there is no authorizer.
GROUP_OPERATIONS = sum(1 << n for n in (3, 6, 8, 10, 11))


def client_of(ctx: RequestContext) -> Client:
    """The sender as groups note it: the address as Java's InetAddress prints it, with a slash,
    which is what DescribeGroups has always shown."""
    return Client(ctx.client_id, f"/{ctx.client_host}")


def topic_of(
    ctx: RequestContext, name: str, topic_id: bytes, by_id: bool
) -> tuple[TopicInfo | None, ErrorCode]:
    """The topic a request means, or None and the error of each of its partitions."""
    catalog = ctx.broker.catalog
    if by_id:
        info = catalog.by_id.get(topic_id)
        return info, ErrorCode.NONE if info else ErrorCode.UNKNOWN_TOPIC_ID
    info = catalog.by_name.get(name)
    return info, ErrorCode.NONE if info else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def partition_error(info: TopicInfo, index: int) -> ErrorCode:
    """NONE if the topic has this partition."""
    if 0 <= index < len(info.partitions):
        return ErrorCode.NONE
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
