"""The correction of SQL for a broker that starts with an empty data folder: opens the tiers for
kafkawire.restore.lost_files, before the broker's own service of the tier runs."""

from __future__ import annotations

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.metadata.catalog import Catalog
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.port import SegmentCatalog
from kafkawire.restore.lost_files import UnreadableRange, forget_lost_files
from kafkawire.tiering.store.metering import Meter
from kafkawire.tiering.store.open import open_store
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.tiers import Tiers


async def correct_rows(
    env: Env,
    config: BrokerConfig,
    storage: SegmentCatalog,
    catalog: Catalog,
    store: ObjectStore,
    home: str,
) -> list[UnreadableRange]:
    """Remove from SQL what only lost files of this broker had; see `forget_lost_files`. `store`: of
    `tier.url`; it stays open."""
    meter = Meter(env.clock.now_ms, env.clock.monotonic)
    tiers = Tiers(
        env, storage, meter, lambda url: open_store(url, config), parse_tier(config.tier_url).url,
        store, home, config.node_id,
    )  # fmt: skip
    try:
        await tiers.open()
        return await forget_lost_files(env, storage, catalog, config.node_id, home, tiers.store)
    finally:
        await tiers.close_others()
