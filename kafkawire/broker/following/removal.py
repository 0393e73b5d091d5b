"""Removes the registration of a broker that does not come back (Kafka's UnregisterBroker).

Kafka removes any broker, and other replicas take over. Here a partition has one copy, so a broker
is removed only if nothing is lost by it: it is not alive, leads nothing, and has no segments,
objects or log objects that others read, or that only it deletes (kafkawire.metadata.statements,
`remove_broker`). Other brokers find that it is gone when they follow the catalog (applier.py).
A decommissioned broker removes itself (own_removal.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log_lines import reason_of
from kafkawire.metadata.catalog import BROKER_RESOURCE, DECOMMISSIONING, ConfigChange
from kafkawire.metadata.statements import held_by_broker
from kafkawire.objectstore.errors import StoreError

if TYPE_CHECKING:
    from kafkawire.broker.change_log import ChangeLog
    from kafkawire.broker.following.lock import CatalogLock
    from kafkawire.broker.parts import BrokerParts

logger = logging.getLogger(__name__)


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
        self._log.report_broker_removed(node_id, sender)

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
        self._log.report_broker_removed(me, DECOMMISSIONING)
        return True


# A decommissioned broker removes itself from the cluster once nothing is left of it.
#
# Its partitions are moved (kafkawire.broker.moving), their new leaders copy its segments
# (kafkawire.log.segments.merge.decommissioned), and it deletes files, objects and log objects after
# their delays, as always. This watches for the end of all that: then the broker is unregistered, in
# the transaction that checks what it has, and its process ends.


INTERVAL_S = 2.0
"""Between two checks, which count rows in SQL: a removal takes minutes, mostly delays."""
REPORTED_S = 60.0
"""Between two log lines with what is left."""


class OwnRemoval:
    """Removes one broker. `removed` is called with the reason for which the process is to end."""

    def __init__(
        self, broker: BrokerParts, removal: BrokerRemoval, removed: Callable[[str], object]
    ) -> None:
        self._broker = broker
        self._removal = removal
        self._removed = removed
        self._report_at = 0.0

    def start(self) -> None:
        """Check until the broker is removed, or its process ends."""
        self._broker.env.spawn(self._run(), "remove this broker")

    async def _run(self) -> None:
        while True:
            await self._broker.env.sleep(INTERVAL_S)
            if await self.check():
                return

    async def check(self) -> bool:
        """Remove the broker if it is decommissioned and nothing is left of it; return whether it
        was removed."""
        broker = self._broker
        if not broker.catalog.is_decommissioned(broker.node_id):
            return False
        try:
            left = await self._describe_remaining()
            if not left and await self._removal.remove_itself():
                self._removed(
                    f"broker {broker.node_id} was decommissioned and is removed from the cluster: "
                    "nothing is left of it, and this process ends"
                )
                return True
        except (KafkaError, OSError, StoreError) as failure:
            left = f"it cannot be removed now ({reason_of(failure)})"
        now = broker.env.clock.monotonic()
        if left and now >= self._report_at:
            self._report_at = now + REPORTED_S
            logger.info("this broker is decommissioned and waits: %s", left)
        return False

    async def _describe_remaining(self) -> str:
        """Return what is left of the broker; an empty string if nothing is. Begin what deletes it,
        where that would wait for an event that does not come any more."""
        broker, log = self._broker, self._broker.log
        if broker.catalog.leads(broker.node_id):
            return "it still leads partitions"
        if broker.tiering is not None:  # other brokers' uploads, of which it is not notified
            broker.tiering.remover.wake()
        if log.object_logs is not None:
            release, objects = log.object_logs.release, log.commit_log.object_sink
            if objects.queue.size_bytes or (release is not None and release.retained):
                await log.checkpoints.save()  # an object is needed until a checkpoint covers it
                return "it still needs log objects"
        me, epoch = broker.node_id, broker.catalog.brokers[broker.node_id].epoch
        held = await broker.metadata.transact(lambda session: held_by_broker(session, me, epoch))
        if held is not None:
            return f"it still has {held[0]}"
        if log.object_logs is not None:
            await log.object_logs.orphans.run_once()  # whose deletion failed before
        return ""
