"""The context of one request: its header fields, its connection and its broker.

The server creates one RequestContext per request and passes it to the handler with the decoded
message. It has no request state; that is local to the handler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kafkawire.broker.partitions import ViewTopic
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.exchange import ClientSoftware
from kafkawire.log.io import slices
from kafkawire.log_lines import shorten_for_log
from kafkawire.security.acls.model import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Operation,
    ResourceKind,
)
from kafkawire.security.audit import Caller, Sender
from kafkawire.security.principals import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.log.partition.partition import Partition
    from kafkawire.security.acls.rights import Rights
    from kafkawire.security.quotas.sensors import ClientQuotas, MutationQuota


T = TypeVar("T")

UNAUTHORIZED = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error code for a resource that a client may not use."""


class ClientGone(Exception):
    """The connection of a request was closed, so its response cannot be sent."""


class MalformedRequest(Exception):
    """A request that Kafka cannot parse: its connection is closed without a response."""


class ReconnectNeeded(Exception):
    """The client knows an address that is no longer valid, and requests metadata only after a loss
    of a connection: its connection is closed without a response."""


def _nothing() -> None:
    """Do nothing; for requests without a connection (tests, the broker itself)."""


def _never() -> bool:
    """Return False; for requests without a connection."""
    return False


@dataclass(slots=True)
class RequestContext:
    """One request: its broker, header fields and connection.

    `listener` is the name of the listener, a key of the broker's `listeners`; `client_host` the
    peer's address without port; `client_id` is null for clients that send none; `principal` is
    the client as it was identified when the request was received; `api`: the name of the API;
    `rights`: what the client may do, None without an authorizer; `quotas` are its quotas, None if
    no client has any, and `mutations` that of its changes, once a handler counts them;
    `park` marks this request as applied and only waiting: the next request of its connection may
    start before this one is answered; it may be called again.
    `connection` identifies the connection, and `closing` has what is called when it is closed.
    `releases` are called once the response was sent, or cannot be; `held_bytes`: the memory of
    responses that is released then; `fetch_delay_ms`: how long the client is throttled for bytes
    that it fetches.
    `connected_at`: when the connection was opened, in seconds of the monotonic clock; `withheld`:
    of the connection, see kafkawire.handlers.find_coordinator; `client_port`: the peer's;
    `software`: of the connection, set by ApiVersions.
    """

    broker: Broker
    version: int
    client_id: str | None
    client_host: str
    listener: str
    correlation_id: int
    park: Callable[[], None] = field(default=_nothing, repr=False)
    is_gone: Callable[[], bool] = field(default=_never, repr=False)
    principal: Principal = ANONYMOUS
    api: str = ""
    rights: Rights | None = field(default=None, repr=False)
    quotas: ClientQuotas | None = None
    connected_at: float = math.inf
    withheld: dict[int, float] = field(default_factory=dict, repr=False)
    client_port: int = 0
    software: ClientSoftware = field(default_factory=ClientSoftware, repr=False)
    connection: object = None
    closing: dict[Callable[[], None], None] = field(default_factory=dict, repr=False)
    mutations: MutationQuota | None = field(default=None, init=False)
    releases: list[Callable[[], None]] = field(default_factory=list, init=False, repr=False)
    held_bytes: int = field(default=0, init=False)
    fetch_delay_ms: int = field(default=0, init=False)

    @property
    def sender(self) -> str:
        """The client and its address, for log lines."""
        client = (
            "a client" if self.client_id is None else f"client {shorten_for_log(self.client_id)}"
        )
        return Sender.with_caller(f"{client} at {self.client_host}", self.caller)

    @property
    def caller(self) -> Caller:
        """The client, for the audit log."""
        return Caller(str(self.principal), self.client_host, self.listener)

    def may(
        self, operation: Operation, resource_type: ResourceKind, name: str, *, logged: bool = True
    ) -> bool:
        """Return whether the client may do something with a resource: always without an
        authorizer. A refusal is recorded in the audit log, unless not `logged`: where Kafka only
        finds out what to show."""
        if self.rights is None or self.rights.may(operation, resource_type, name):
            return True
        if logged:
            self.broker.counts.count_denial(operation.name.lower(), resource_type.name.lower())
            self.broker.security.audit.record_denial(
                self.caller, self.api, operation.name, resource_type.name, name
            )
        return False

    def check(self, operation: Operation, resource_type: ResourceKind, name: str) -> None:
        """Raise KafkaError with the code of the resource if the client may not do something."""
        if not self.may(operation, resource_type, name):
            raise KafkaError(UNAUTHORIZED[resource_type])

    def may_topic(self, operation: Operation, name: str, *, logged: bool = True) -> bool:
        """`may` for a topic."""
        return self.may(operation, ResourceKind.TOPIC, name, logged=logged)

    def may_cluster(self, operation: Operation, *, logged: bool = True) -> bool:
        """`may` for the cluster."""
        return self.may(operation, ResourceKind.CLUSTER, CLUSTER_NAME, logged=logged)

    def find_readable(self, topic: str, index: int, leader_epoch: int) -> Partition:
        """Return a partition for a client that may describe the topic: of a view that of its
        source, which it must be able to describe, too. Raises as PartitionTable.find."""
        table = self.broker.table
        try:
            return table.find(topic, index, leader_epoch)
        except ViewTopic as view:
            self.check(Operation.DESCRIBE, ResourceKind.TOPIC, view.source)
            return table.find(view.source, index, leader_epoch)

    async def find_topics(self, names: Iterable[str]) -> None:
        """Apply what other brokers changed until now if one of the topics is not in the catalog: it
        may have been created a moment ago. Free without other brokers."""
        catalog = self.broker.catalog
        if len(catalog.brokers) > 1:
            for name in names:
                if name not in catalog.by_name:
                    await self.broker.topics.follower.catch_up()
                    return
                await self.give_way()

    async def split_by_rights(
        self, operation: Operation, items: list[T], name: Callable[[T], str]
    ) -> tuple[list[T], list[T]]:
        """Return the items whose topic the client may use, and the others; in slices."""
        if self.rights is None:
            return items, []
        both: tuple[list[T], list[T]] = [], []
        for item in items:
            both[not self.may_topic(operation, name(item))].append(item)
            await self.give_way()
        return both

    def authorized_operations(self, resource_type: ResourceKind, name: str) -> int:
        """Return what the client may do with a resource, a bit for each operation."""
        if self.rights is None:
            return sum(1 << operation for operation in OPERATIONS_OF[resource_type])
        return self.rights.authorized_operations(resource_type, name)

    def charge(self, strict_from: int) -> Callable[[int], None] | None:
        """Return what counts the partitions of each topic that is created or deleted, and raises
        THROTTLING_QUOTA_EXCEEDED from version `strict_from` on; None: the client has no quota."""
        if self.quotas is None:
            return None
        self.mutations = self.quotas.mutation_quota(strict=self.version >= strict_from)
        return None if self.mutations is None else self.mutations.count_partitions

    def call_after_response(self, release: Callable[[], None]) -> None:
        """Have `release` called once the response was sent, or cannot be: it has views of memory
        that may not be used again before."""
        self.releases.append(release)

    def release_held(self) -> None:
        """Release what the response has held."""
        while self.releases:
            self.releases.pop()()

    async def give_way(self) -> None:
        """Yield to other tasks if this request's time slice is used up (kafkawire.log.io.slices).

        Awaited between any two elements of a request or response whose number depends on the
        client. Raises ClientGone if the connection was closed meanwhile.
        """
        computing = self.broker.env.slices
        if computing.over():
            await computing.pause()
            if self.is_gone():
                raise ClientGone

    async def duplicates(self, keys: Iterable[T]) -> set[T]:
        """Return the keys that occur more than once. Free the result with `empty_slowly`.
        Raises like `give_way`."""
        return await slices.duplicates(keys, self.give_way)

    async def count_keys(self, keys: Iterable[T]) -> dict[T, int]:
        """Return how often each key occurs, in the order of first occurrence. Free the result with
        `empty_slowly`. Raises like `give_way`."""
        return await slices.count_keys(keys, self.give_way)

    async def empty_slowly(self, *collections: list[Any] | set[Any] | dict[Any, Any]) -> None:
        """Remove all elements of the collections, in slices. Never raises ClientGone."""
        for collection in collections:
            await slices.empty_slowly(collection, self.broker.env.slices.give_way)

    async def list_in_slices(self, items: Iterable[T]) -> list[T]:
        """Return the items as a list, created in slices. Raises like `give_way`."""
        return await slices.collect(items, self.give_way)

    async def in_order(self, items: list[str]) -> list[str]:
        """Return the items in order, sorted in slices. Raises like `give_way`."""
        return await slices.in_order(items, self.give_way)
