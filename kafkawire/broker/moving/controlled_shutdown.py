"""Hands over the partitions of a broker that stops, so that clients do not wait until it is back
(Kafka: controlled shutdown).

What another machine can lead is moved there as by a drain (mover.py), while this broker still
serves; each of these moves stores another one, back to this broker, which waits until this broker
is alive again. The setting STOPPING keeps other brokers from moving partitions here meanwhile. The
next process of this broker removes it, on whichever machine, once it can acknowledge records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kafkawire.broker.moving.plan import STOPPING, is_set
from kafkawire.metadata.catalog import BROKER_RESOURCE, ConfigChange
from kafkawire.metadata.store import MetadataError
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire.broker.moving.mover import PartitionMover
    from kafkawire.broker.parts import BrokerParts

logger = logging.getLogger(__name__)

LEAVE_WITHIN_S = 20.0
"""Limit for the whole hand-over. The supervisor kills a worker after 30 s, as Kubernetes a pod;
what is left is taken over, or waits for this broker."""
POLL_S = 0.1
"""Between two checks of what is left: a move takes some tenths of a second."""
FOLLOWERS_S = 60.0
"""How long a broker that is back waits for followers: topics with durability=s3 do not need
them."""
RETRY_S = 1.0


class ControlledShutdown:
    """Hands over what one broker leads when it stops, and has it moved back at the next start."""

    def __init__(self, broker: BrokerParts, mover: PartitionMover) -> None:
        self._broker = broker
        self._mover = mover
        self._task: asyncio.Task[None] | None = None
        self._stops = False

    def check(self) -> None:
        """Have the partitions moved back that an earlier process has handed over. Called at the
        start and after each poll of the catalog: the process before, on another machine, may store
        STOPPING after this one has read the settings."""
        broker = self._broker
        if self._stops or not is_set(broker.catalog, broker.node_id, STOPPING):
            return
        if self._task is None or self._task.done():
            self._task = broker.env.spawn(self._take_back(), "take partitions back")

    async def close(self) -> None:
        """Stop what `check` has begun, and begin nothing more."""
        self._stops = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def hand_over(self) -> None:
        """Hand over what brokers on other machines can lead. Never raises for SQL or the remote
        tier."""
        broker, mover = self._broker, self._mover
        await self.close()
        if not broker.config.controlled_shutdown_enable or len(broker.catalog.brokers) < 2:
            return
        left = await mover.remaining()
        if not left:
            return
        logger.info("handing over %s before this broker stops", count(left, "partition"))
        try:
            async with asyncio.timeout(LEAVE_WITHIN_S):
                await self._note("true")
                mover.leave()
                while left := await mover.remaining():
                    await broker.env.sleep(POLL_S)
                    mover.check()
        except TimeoutError:
            why = f"it takes longer than {LEAVE_WITHIN_S:g} s"
        except MetadataError as failure:
            why = str(failure)
        else:
            logger.info("other brokers lead the partitions of this one until it is started again")
            return
        logger.warning(
            "%s not handed over before this broker stops: %s. Clients wait until another machine "
            "takes this broker over, or it is started again",
            count(left, "partition"),
            why,
        )

    async def _take_back(self) -> None:
        broker = self._broker
        replicas, clock = broker.log.commit_log.follower_sink, broker.env.clock
        until_s = clock.monotonic() + FOLLOWERS_S
        while replicas.began and replicas.refusal is not None and clock.monotonic() < until_s:
            await broker.env.sleep(POLL_S)
        while True:
            try:
                await self._note(None)
                return
            except MetadataError as failure:
                logger.warning("partitions cannot be moved back to this broker yet: %s", failure)
                await broker.env.sleep(RETRY_S)

    async def _note(self, value: str | None) -> None:
        """Store or remove the setting. Raises MetadataError."""
        name = str(self._broker.node_id)
        change = ConfigChange(BROKER_RESOURCE, name, STOPPING, value)
        await self._broker.metadata.alter_configs([change])
