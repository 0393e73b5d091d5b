"""Waits until a broker that runs on another machine has ended there.

Of a machine whose broker was taken over: its data folder is superseded, so there is no lock by
which the start would know that the broker does not run any more. It is taken for ended if its
heartbeat is deleted, or was not seen to change for the lease; a start there stores heartbeats, too.
After `return_delay_s` it is asked to
return: the broker setting RETURNING, which it follows, has it end.
"""

from __future__ import annotations

import logging

from kafkawire.broker.liveness.watcher import HeartbeatWatcher
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.metadata import heartbeats
from kafkawire.metadata.catalog import BROKER_RESOURCE, Catalog, ConfigChange
from kafkawire.metadata.store import SqlStore

logger = logging.getLogger(__name__)

RETURNING = "broker.returning"
"""The setting of a broker that runs on another machine than its own, and is to end there."""
INTERVAL_S = 0.5
"""Between two reads of the heartbeat: a part of the second in which it rises."""
MAX_GAP_S = 3.0
"""Between two reads that count as continuous."""
NOBODY = -1
"""The node id that the watcher leaves out: it is to watch the broker itself."""


def is_returning(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker is to end, since its own machine is to run it again."""
    return catalog.broker_configs(node_id).get(RETURNING, "").lower() == "true"


async def wait_until_ended(env: Env, metadata: SqlStore, config: BrokerConfig) -> int:
    """Return when the broker of these settings runs nowhere; return its broker epoch then. Raises
    what SQL raises at first; later failures of SQL are waited for."""
    node_id, lease_s = config.node_id, config.lease_ms / 1000
    return_delay_s = config.cluster_return_delay_ms / 1000
    watcher = HeartbeatWatcher(NOBODY, lease_s, MAX_GAP_S)
    ask_s = env.clock.monotonic() + return_delay_s
    waits = False
    while True:
        try:
            epoch, number = await metadata.transact(
                lambda session: heartbeats.read(session, node_id)
            )
            now_s = env.clock.monotonic()
            watcher.observe(now_s, {} if number is None else {node_id: number}, [node_id])
            if number is None or node_id in watcher.silent - watcher.starting:
                return epoch
            if waits and now_s >= ask_s:
                await _ask(metadata, node_id, "true")
                ask_s = now_s + lease_s  # a start elsewhere since the last time has removed it
        except OSError:
            if not waits:
                raise
            watcher.failed()
        if not waits and node_id in watcher.beating | watcher.starting:
            waits = True
            logger.warning(
                "broker %d runs on another machine, which took it over: waiting until it ends "
                "there; it is asked to in %g s",
                node_id,
                return_delay_s,
            )
        await env.sleep(INTERVAL_S)


async def end_returning(metadata: SqlStore, catalog: Catalog, node_id: int) -> None:
    """Note that a broker runs on its own machine again. Raises what SQL raises."""
    if is_returning(catalog, node_id):
        await _ask(metadata, node_id, None)


async def _ask(metadata: SqlStore, node_id: int, value: str | None) -> None:
    await metadata.alter_configs([ConfigChange(BROKER_RESOURCE, str(node_id), RETURNING, value)])
