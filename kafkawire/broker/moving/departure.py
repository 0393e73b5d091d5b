"""Hands over the partitions of a broker that stops, so that clients do not wait until it is back
(Kafka: controlled shutdown).

What another machine can lead is moved there as by a drain (mover.py), while this broker still
serves; each of these moves stores another one, back to this broker, which waits until this broker
is alive again. The setting STOPPING keeps other brokers from moving partitions here meanwhile. The
next start removes it, on whichever machine.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kafkawire.broker.moving.plan import STOPPING, is_set
from kafkawire.metadata.catalog import BROKER_RESOURCE, Catalog, ConfigChange
from kafkawire.metadata.store import MetadataError
from kafkawire.plural import count

if TYPE_CHECKING:
    from kafkawire.broker.moving.mover import PartitionMover
    from kafkawire.broker.parts import BrokerParts
    from kafkawire.metadata.store import Metadata

logger = logging.getLogger(__name__)

LEAVE_WITHIN_S = 20.0
"""Limit for all of it. The supervisor kills a worker after 30 s, as Kubernetes a pod; what is left
is taken over, or waits for this broker."""
POLL_S = 0.1
"""Between two checks of what is left: a move takes some tenths of a second."""


async def hand_over(broker: BrokerParts, mover: PartitionMover) -> None:
    """Hand over what brokers on other machines can lead. Never raises for SQL or the remote
    tier."""
    if not broker.config.controlled_shutdown_enable or len(broker.catalog.brokers) < 2:
        return
    left = await mover.remaining()
    if not left:
        return
    logger.info("handing over %s before this broker stops", count(left, "partition"))
    try:
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await _note(broker.metadata, broker.node_id, "true")
            mover.leave()
            while left := await mover.remaining():
                await broker.env.sleep(POLL_S)
                mover.check()
            logger.info("other brokers lead the partitions of this one until it is started again")
            return
    except TimeoutError:
        why = f"it takes longer than {LEAVE_WITHIN_S:g} s"
    except MetadataError as failure:
        why = str(failure)
    logger.warning(
        "%s not handed over before this broker stops: %s. Clients wait until another machine takes "
        "this broker over, or it is started again",
        count(left, "partition"),
        why,
    )


async def end_stopping(metadata: Metadata, catalog: Catalog, node_id: int) -> None:
    """Note that a broker runs again. Raises what SQL raises."""
    if is_set(catalog, node_id, STOPPING):
        await _note(metadata, node_id, None)


async def _note(metadata: Metadata, node_id: int, value: str | None) -> None:
    await metadata.alter_configs([ConfigChange(BROKER_RESOURCE, str(node_id), STOPPING, value)])
