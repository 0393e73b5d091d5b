"""The brokers of a cluster, found from one address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from kafkawire.client.address import parse_servers
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import ClientError, UnknownBroker, check
from kafkawire.client.security import NO_SECURITY, ClientSecurity

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators (FindCoordinator's key type)."""
DESCRIBE_CLUSTER = 60
LISTS_FENCED = 2
"""The first version of DescribeCluster with brokers that are not alive (KIP-1073)."""


class Cluster:
    """Connections to the brokers of one cluster; a context manager.

    `server`: HOST:PORT[,HOST:PORT...], of which the first reachable one is used; `option`: its name
    in error messages; `security`: encryption and log-in of every connection.
    """

    def __init__(
        self, server: str, option: str = "--server", security: ClientSecurity = NO_SECURITY
    ) -> None:
        self._servers = parse_servers(option, server)
        self._security = security
        self.first = _connect(self._servers, security)
        self._by_node: dict[int, ClientConnection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}

    def request(self, key: int, message: object, *, at_most: int | None = None) -> Any:
        """Send a request to the given broker; for APIs that any broker answers."""
        return self.first.request(key, message, at_most=at_most)

    def node(self, node_id: int) -> ClientConnection:
        """Return a connection to the broker `node_id`, by the address the cluster advertises.
        Raises UnknownBroker if the cluster's metadata does not list it."""
        if node_id not in self._by_node:
            if node_id not in self._addresses:
                self.metadata([])
            if node_id not in self._addresses:
                raise UnknownBroker(f"broker {node_id} is not in the cluster's metadata")
            self._by_node[node_id] = self._open(node_id)
        return self._by_node[node_id]

    def disconnect(self, node_id: int) -> None:
        """Close the connection to a broker, which is opened again when it is needed."""
        connection = self._by_node.pop(node_id, None)
        if connection is not None:
            connection.close()

    def reconnect(self) -> None:
        """Connect to the first reachable of the given brokers again; keeps the closed connection if
        none is."""
        self.first.close()
        with contextlib.suppress(ClientError):
            self.first = _connect(self._servers, self._security)

    def reset(self) -> None:
        """Close every connection, and connect to the first reachable broker again if there is one.
        Addresses are read again from the metadata when they are needed."""
        for node_id in list(self._by_node):
            self.disconnect(node_id)
        self._addresses.clear()
        self.reconnect()

    def separate(self, node_id: int) -> ClientConnection:
        """Return a connection to the broker `node_id` that the caller closes: for requests of which
        a broker may close the connection."""
        self.node(node_id)
        return self._open(node_id)

    def _open(self, node_id: int) -> ClientConnection:
        return ClientConnection(*self._addresses[node_id], security=self._security)

    def list_known_nodes(self) -> list[int]:
        """Return the IDs of the brokers of all answers so far, also of those that have ended since;
        those of `nodes` if there was none."""
        return sorted(self._addresses) or self.nodes()

    def nodes(self) -> list[int]:
        """Return the IDs of all brokers."""
        self.metadata([])
        return sorted(self._addresses)

    def metadata(self, topics: Iterable[str] | None, node: int | None = None) -> Any:
        """Return a MetadataResponse on these topics (None: all) without creating any, of the broker
        `node`, None: the first one."""
        from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic

        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        asked = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = (self.first if node is None else self.node(node)).request(3, asked)
        check("Metadata", answer.error_code)
        self._addresses.update({row.node_id: (row.host, row.port) for row in answer.brokers})
        return answer

    def coordinator(self, key: str, kind: int = GROUP) -> ClientConnection:
        """Return a connection to the coordinator of a group, or of a transactional id."""
        return self.node(self.coordinator_id(key, kind))

    def coordinator_id(self, key: str, kind: int = GROUP) -> int:
        """Return the ID of the broker that coordinates a group, or a transactional id."""
        from kafkawire.messages.find_coordinator import FindCoordinatorRequest

        asked = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
        if self.first.version(10) < 4:
            asked.coordinator_keys = []
            found = self.request(10, asked)
        else:
            asked.key = ""
            found = self.request(10, asked).coordinators[0]
        what = "group" if kind == GROUP else "transactional id"
        check(f"{what} {key}", found.error_code, found.error_message)
        self._addresses[found.node_id] = (found.host, found.port)
        return int(found.node_id)

    def close(self) -> None:
        """Close every connection."""
        for connection in (self.first, *self._by_node.values()):
            connection.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def find_registered_brokers(connection: ClientConnection) -> dict[int, bool]:
    """Return whether each broker of the cluster is alive, by id. Brokers of older versions name
    only those that are. ClientError."""
    from kafkawire.messages.describe_cluster import DescribeClusterRequest

    fenced = connection.version(DESCRIBE_CLUSTER) >= LISTS_FENCED
    asked = DescribeClusterRequest(include_fenced_brokers=fenced)
    answer = connection.request(DESCRIBE_CLUSTER, asked)
    check("DescribeCluster", answer.error_code, answer.error_message)
    return {row.broker_id: not row.is_fenced for row in answer.brokers}


def _connect(servers: list[tuple[str, int]], security: ClientSecurity) -> ClientConnection:
    failure: ClientError | None = None
    for host, port in servers:
        try:
            return ClientConnection(host, port, security=security)
        except ClientError as error:
            failure = failure or error
    assert failure is not None, "there is an address at least"
    raise failure
