"""Removes the registration of a broker that does not come back (Kafka's UnregisterBroker).

Kafka removes any broker, and other replicas take over. Here a partition has one copy, so a broker
is removed only if nothing is lost by it: it is not alive, leads nothing, and has no segments,
objects or log objects that others read, or that only it deletes (kafkawire.metadata.statements,
`remove_broker`). Other brokers find that it is gone when they follow the catalog (applier.py).
A decommissioned broker removes itself (own_removal.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.catalog import BROKER_RESOURCE, DECOMMISSIONING, ConfigChange

if TYPE_CHECKING:
    from kafkawire.broker.change_log import ChangeLog
    from kafkawire.broker.following.lock import CatalogLock
    from kafkawire.broker.parts import BrokerParts


class BrokerRemoval:
    """Removes brokers from the catalog that `lock` serializes."""

    def __init__(self, broker: BrokerParts, lock: CatalogLock, log: ChangeLog) -> None:
        self._broker = broker
        self._lock = lock
        self._log = log

    async def remove(self, node_id: int, sender: str) -> None:
        """Remove a broker. Raises BROKER_ID_NOT_REGISTERED; INVALID_REQUEST if it may be alive, or
        has what no other broker serves or deletes; MetadataError."""
        await self._lock.change(lambda seen: self._remove(node_id, sender, seen))

    async def _remove(self, node_id: int, sender: str, seen: int) -> None:
        catalog = self._broker.catalog
        if node_id not in catalog.brokers:
            raise KafkaError(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"Broker ID {node_id} is not currently registered",
            )
        if node_id == self._broker.node_id or node_id not in catalog.silent:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Broker {node_id} is alive, or was a moment ago: stop it before it is removed.",
            )
        await self._broker.metadata.remove_broker(node_id, seen)
        name = str(node_id)
        for key in list(catalog.broker_overrides.get(name, {})):
            catalog.apply_config(ConfigChange(BROKER_RESOURCE, name, key, None))
        catalog.remove_broker(node_id)
        self._log.removed(node_id, sender)

    async def remove_itself(self) -> bool:
        """Remove this broker if it is still decommissioned, and have its process write nothing
        more; return whether it was removed. Raises as `remove`, and BrokerSuperseded."""
        return await self._lock.change(self._remove_itself)

    async def _remove_itself(self, seen: int) -> bool:
        broker, catalog, me = self._broker, self._broker.catalog, self._broker.node_id
        if not catalog.is_decommissioned(me):
            return False
        await broker.metadata.remove_broker(me, seen, catalog.brokers[me].epoch)
        # The catalog keeps this broker: what still runs until the end refers to it.
        broker.log.commit_log.stop_writing(f"broker {me} was removed from the cluster")
        self._log.removed(me, DECOMMISSIONING)
        return True
