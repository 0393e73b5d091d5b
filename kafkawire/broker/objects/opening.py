"""Create the logs of objects of a broker when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkawire.codec.configs.durability_rules import BEYOND_FOLDER, DURABILITY, S3
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.recovery.identity import IdentityError

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.store import SqlStore
    from kafkawire.offsets.catalog.port import SegmentCatalog
    from kafkawire.tiering.store.metering import Meter
    from kafkawire.tiering.store.port import ObjectStore


def leads_in_objects(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker leads partitions with durability=s3."""
    return any(
        info.configs.get(DURABILITY) == S3 and any(row.leader == node_id for row in info.partitions)
        for info in catalog.by_name.values()
    )


def leads_movable(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker leads partitions with durability=s3 or replicated, so that it may be
    started with another data folder."""
    return any(
        info.configs.get(DURABILITY) in BEYOND_FOLDER
        and any(row.leader == node_id for row in info.partitions)
        for info in catalog.by_name.values()
    )


async def open_object_logs(
    env: Env,
    config: BrokerConfig,
    store: ObjectStore | None,
    metadata: SqlStore,
    storage: SegmentCatalog,
    catalog: Catalog,
) -> tuple[ObjectLogs | None, Meter | None]:
    """Return the logs of objects of a broker, and the counters of requests to its tier; None
    without a tier. Raises IdentityError if topics need log objects, and the tier cannot have
    them."""
    if store is None:
        return None, None
    from kafkawire.tiering.store.log_stores import LogStores
    from kafkawire.tiering.store.metering import Meter
    from kafkawire.tiering.store.open import open_store

    node_id, meter = config.node_id, Meter(env.clock.now_ms, env.clock.monotonic)
    stores = LogStores(store, config.tier_url, node_id, meter, lambda url: open_store(url, config))
    epoch = catalog.brokers[node_id].epoch
    logs = ObjectLogs(env, stores, metadata, storage, node_id, epoch)
    if config.durability == S3 or leads_in_objects(catalog, node_id):
        await logs.check()
        if logs.unusable:
            raise IdentityError(logs.unusable)
    return logs, meter
