"""A decommissioned broker removes itself from the cluster once nothing is left of it.

Its partitions are moved (kafkawire.broker.moving), their new leaders copy its segments
(kafkawire.log.segments.merge.decommissioned), and it deletes files, objects and log objects after
their delays, as always. This watches for the end of all that: then the broker is unregistered, in
the transaction that checks what it has, and its process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.codec.errors import KafkaError
from kafkawire.log_lines import reason_of
from kafkawire.metadata.statements import held_by_broker
from kafkawire.objectstore.errors import StoreError

if TYPE_CHECKING:
    from kafkawire.broker.following.removal import BrokerRemoval
    from kafkawire.broker.parts import BrokerParts

logger = logging.getLogger(__name__)

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
            left = await self._left()
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

    async def _left(self) -> str:
        """Return what is left of the broker; an empty string if nothing is. Begin what deletes it,
        where that would wait for an event that does not come any more."""
        broker, log = self._broker, self._broker.log
        if broker.catalog.leads(broker.node_id):
            return "it still leads partitions"
        if broker.tiering is not None:  # other brokers' uploads, of which it is not notified
            broker.tiering.remover.wake()
        if log.object_logs is not None:
            release, objects = log.object_logs.release, log.commit_log.objects
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
