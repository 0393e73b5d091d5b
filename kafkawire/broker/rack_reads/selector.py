"""Which broker of a rack serves old records of a partition that another broker leads.

As Kafka's RackAwareReplicaSelector, where the replicas of a partition are its leader and one broker
of each other rack. Every broker computes the same readers from the catalog, except for seconds
after one has ended. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafkawire.broker.moving.plan import is_draining
from kafkawire.metadata.catalog import Catalog

Racks = dict[str, list[int]]


class ReplicaSelector:
    """The readers of all partitions. Without `enabled` there are none."""

    __slots__ = ("_catalog", "_listeners", "_node_id", "_racks", "_version", "enabled")

    def __init__(
        self,
        catalog: Catalog,
        node_id: int,
        listeners: Mapping[str, tuple[str, int]],
        *,
        enabled: bool,
    ) -> None:
        """`listeners`: the addresses of this broker, `node_id`."""
        self._catalog = catalog
        self._node_id = node_id
        self._listeners = listeners
        self.enabled = enabled
        self._version = -1
        self._racks: dict[str, Racks] = {}

    def reader(self, number: int, leader: int, rack: str, listener: str) -> int | None:
        """Return the broker of a rack that serves the partition `number` to clients of a listener;
        None: the leader does."""
        return self.reader_among(self._catalog.brokers, number, leader, rack, listener)

    def reader_among(
        self, nodes: Collection[int], number: int, leader: int, rack: str, listener: str
    ) -> int | None:
        """Do as `reader`, with one of these brokers."""
        if not self.enabled or rack == self._rack_of(leader):
            return None
        found = [node for node in self._on(listener).get(rack, ()) if node in nodes]
        return found[number % len(found)] if found else None

    def replicas(self, number: int, leader: int, listener: str) -> list[int]:
        """Return the brokers that serve a partition to clients of a listener, the leader first."""
        if not self.enabled:
            return [leader]
        found = [leader]
        own = self._rack_of(leader)
        for rack, nodes in self._on(listener).items():
            if rack != own:
                found.append(nodes[number % len(nodes)])
        return found

    def _rack_of(self, node_id: int) -> str | None:
        info = self._catalog.brokers.get(node_id)
        return None if info is None else info.rack

    def _on(self, listener: str) -> Racks:
        """Return the brokers of each rack that clients of a listener can be sent to, in order."""
        if self._version != self._catalog.version:
            self._version = self._catalog.version
            self._racks.clear()
        racks = self._racks.get(listener)
        if racks is None:
            racks = self._racks[listener] = self._find(listener)
        return racks

    def _find(self, listener: str) -> Racks:
        catalog = self._catalog
        racks: Racks = {}
        for node_id, info in sorted(catalog.brokers.items()):
            own = node_id == self._node_id
            if not info.rack or listener not in (self._listeners if own else info.listeners):
                continue
            if node_id not in catalog.silent and not is_draining(catalog, node_id):
                racks.setdefault(info.rack, []).append(node_id)
        return racks
