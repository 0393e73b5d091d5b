"""A worker that is more than `--workers` asks for: it hands over what it leads, and ends.

The data folder had more workers once. Whether a worker is drained is a setting in SQL, so that
other workers give it no new partitions; it is set and removed here, at each start of a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.broker.config_service import Resource
from kafkawire.broker.moving.plan import DRAINING, is_set
from kafkawire.broker.overrides import AlterConfigOp, Op, ResourceType
from kafkawire.codec.errors import KafkaError
from kafkawire.metadata.store import MetadataError

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

logger = logging.getLogger(__name__)


async def store_role(broker: Broker, drained: bool, ended: Callable[[], object]) -> None:
    """Store whether a worker is drained; `ended` is called when it leads nothing any more."""
    node_id = broker.node_id
    if is_set(broker.catalog, node_id, DRAINING) != drained:
        op = AlterConfigOp(DRAINING, Op.SET if drained else Op.DELETE, "true" if drained else None)
        wish = Resource(ResourceType.BROKER, str(node_id), [op])
        try:
            (error,) = await broker.topics.configs.alter([wish], False)
            if error is not None:
                raise error
        except (KafkaError, MetadataError) as failure:
            logger.error(
                "cannot store that worker %d is %s: %s; set %s with `kafkawire configs`",
                node_id, "drained" if drained else "not drained any more", failure, DRAINING,
            )  # fmt: skip
    if drained and not broker.catalog.is_decommissioned(node_id):  # that ends when it is removed
        broker.mover.when_idle(ended)
