"""The brokers of the cluster for clients of one listener.

A broker has an address per listener; a response has those of the listener of the request, so that
clients inside and outside a network get addresses they can reach (KIP-103). A broker without that
listener is invisible to the client, and its partitions have no leader; so is one that is not alive
(kafkawire.broker.liveness). Shared by Metadata, DescribeCluster, DescribeTopicPartitions and leader
hints, as are the fields of authorized operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.broker.new_topics import INTERNAL_TOPICS
from kafkawire.codec.configs.durability_rules import DURABILITY, REPLICATED
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.security.acls.model import CLUSTER_NAME, Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.metadata.catalog import BrokerInfo, TopicInfo

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


def node_on(broker: Broker, info: BrokerInfo, listener: str) -> Node | None:
    """Return a broker at its address on a listener; None: it does not have this listener."""
    # This broker's address is its start option; its row is for the others.
    addresses = broker.listeners if info.node_id == broker.node_id else info.listeners
    address = addresses.get(listener)
    return None if address is None else Node(info.node_id, address[0], address[1], info.rack)


class Nodes:
    """The brokers with an address on the listener of a request: `by_id` those that are alive,
    `fenced` the others."""

    __slots__ = (
        "_known", "_listener", "_me", "_replicas", "_selector", "_silent", "by_id", "fenced",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext) -> None:
        broker = ctx.broker
        self._known = broker.catalog.brokers
        self._silent = broker.catalog.silent
        self._me = broker.node_id
        self._selector = broker.replica_selector
        self._replicas = broker.catalog.replicas
        self._listener = ctx.listener
        self.by_id: dict[int, Node] = {}
        self.fenced: list[Node] = []
        for info in self._known.values():
            node = node_on(broker, info, ctx.listener)
            if node is None:
                continue
            if info.node_id in self._silent:
                self.fenced.append(node)
            else:
                self.by_id[info.node_id] = node

    @property
    def controller(self) -> int:
        """This broker: every broker can change the catalog, and this one is certainly alive. The
        brokers of Kafka with KRaft name a random one that is alive."""
        return self._me

    def leader_error(self, leader: int) -> ErrorCode:
        """Return NONE for a leader that the client can reach, LEADER_NOT_AVAILABLE for one that is
        not alive. Otherwise Metadata v6+ gets the specific error, older versions
        LEADER_NOT_AVAILABLE."""
        if leader in self.by_id:
            return ErrorCode.NONE
        if leader in self._known and leader not in self._silent:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def replicas(self, number: int, leader: int, replicated: bool) -> tuple[list[int], list[int]]:
        """Return the replicas of a partition and those in sync, the leader first. `replicated`: its
        topic has durability=replicated. Brokers that consumers may read it from are among them,
        since Java clients send to no other one (kafkawire.broker.rack_reads)."""
        readers = self._selector.replicas(number, leader, self._listener)
        found = self._replicas.get(leader) if replicated else None
        if found is None:
            return readers, readers
        every = found.every + [node for node in readers if node not in found.every]
        return every, found.in_sync

    def offline(self, replicas: Sequence[int]) -> list[int]:
        """Return the unreachable replicas of a partition."""
        return [node for node in replicas if node not in self.by_id]


def is_replicated(topic: TopicInfo) -> bool:
    """Return whether followers have copies of a topic."""
    return topic.configs.get(DURABILITY) == REPLICATED


def is_internal(name: str) -> bool:
    """Return whether a topic is internal to the broker."""
    return name in INTERNAL_TOPICS
