"""Register a broker in SQL at its start, which ends an earlier process of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from kafkawire.broker.liveness.waiting import end_returning

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.store import SqlStore
    from kafkawire.tiering.store.port import ObjectStore


def epoch_seen(config: BrokerConfig, catalog: Catalog) -> int:
    """Return the epoch that this broker must still have when it registers, or -1. Its data folder
    was compared with SQL at this epoch; where machines take over from each other, another start
    since then supersedes the folder."""
    known = catalog.brokers.get(config.node_id) if config.cluster_takeover_enable else None
    return -1 if known is None else known.epoch


async def register(
    env: Env,
    config: BrokerConfig,
    metadata: SqlStore,
    catalog: Catalog,
    listeners: Mapping[str, tuple[str, int]],
    folder: str,
    store: ObjectStore | None,
    after: int,
    unchanged: Callable[[], Awaitable[None]],
) -> None:
    """Register a broker whose addresses are `listeners`, when it can reach its tier; `after`: the
    epoch that it must have; 0 or less: that of `epoch_seen`; `unchanged` raises BrokerSuperseded if
    its data folder was superseded. Raises BrokerSuperseded, MetadataError, StoreError."""
    after = after if after > 0 else epoch_seen(config, catalog)
    if store is not None and config.cluster_takeover_enable:
        from kafkawire.log.objects.reachable import wait_until_reachable

        await wait_until_reachable(env, store)
    rack, place = config.broker_rack, env.fs.identity(folder)
    expected = after if after > 0 else None
    await unchanged()
    await metadata.register_broker(config.node_id, listeners, rack, place, expected)
    await unchanged()
    await end_returning(metadata, catalog, config.node_id)
