"""The brokers of the cluster for clients of one listener.

A broker has an address per listener; a response has those of the listener of the request, so that
clients inside and outside a network get addresses they can reach (KIP-103). A broker without that
listener is invisible to the client, and its partitions have no leader. Shared by Metadata,
DescribeCluster and DescribeTopicPartitions, as are the fields of authorized operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kafkawire.broker.new_topics import INTERNAL_TOPICS
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.security.acls.model import CLUSTER_NAME, Operation, ResourceKind

OPERATIONS_OMITTED = -(2**31)  # the request did not ask


def cluster_operations(ctx: RequestContext) -> int:
    """Return what the client may do with the cluster, a bit for each operation: nothing unless it
    may describe it."""
    if not ctx.may_cluster(Operation.DESCRIBE, logged=False):
        return 0
    return ctx.authorized_operations(ResourceKind.CLUSTER, CLUSTER_NAME)


def topic_operations(ctx: RequestContext) -> Callable[[str], int]:
    """Return the function that gives the operations that are allowed on a topic."""
    if ctx.rights is None:
        every = ctx.authorized_operations(ResourceKind.TOPIC, "")
        return lambda _: every
    return partial(ctx.authorized_operations, ResourceKind.TOPIC)


class Node(NamedTuple):
    """A broker at one of its addresses."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Nodes:
    """The brokers with an address on the listener of a request."""

    __slots__ = ("_known", "by_id")

    def __init__(self, ctx: RequestContext) -> None:
        broker = ctx.broker
        self._known = broker.catalog.brokers
        self.by_id: dict[int, Node] = {}
        for info in self._known.values():
            # This broker's address is its start option; its row is for the others.
            addresses = broker.listeners if info.node_id == broker.node_id else info.listeners
            address = addresses.get(ctx.listener)
            if address is not None:
                self.by_id[info.node_id] = Node(info.node_id, address[0], address[1], info.rack)

    def leader_error(self, leader: int) -> ErrorCode:
        """Return NONE for a leader that the client can reach. Otherwise Metadata v6+ gets the
        specific error, older versions LEADER_NOT_AVAILABLE."""
        if leader in self.by_id:
            return ErrorCode.NONE
        if leader in self._known:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def offline(self, leader: int) -> list[int]:
        """Return the unreachable replicas of a partition: its only replica is its leader."""
        return [] if leader in self.by_id else [leader]


def is_internal(name: str) -> bool:
    """Return whether a topic is internal to the broker."""
    return name in INTERNAL_TOPICS
