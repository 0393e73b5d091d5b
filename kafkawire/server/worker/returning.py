"""Ends a broker that runs on another machine than its own, when its own machine runs again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkawire.broker.liveness.takeover import is_returning

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
"""Between two checks of a setting in memory."""


def watch_return(broker: Broker, ended: Callable[[], object]) -> None:
    """Call `ended` when the machine of the broker asks for it."""
    broker.env.spawn(_watch(broker, ended), "return the broker")


async def _watch(broker: Broker, ended: Callable[[], object]) -> None:
    while not is_returning(broker.catalog, broker.node_id):
        await broker.env.sleep(INTERVAL_S)
    logger.warning("broker %d ends here: its own machine runs again, and starts it", broker.node_id)
    ended()
