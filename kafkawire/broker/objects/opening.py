"""Create the logs of objects of a broker when it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kafkawire.broker.liveness.takeover import end_returning
from kafkawire.codec.configs.durability_rules import BEYOND_FOLDER, DURABILITY, REPLICATED, S3
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.object_logs import ObjectLogs
from kafkawire.log.recovery.identity import IdentityError

if TYPE_CHECKING:
    from kafkawire.broker.parts import BrokerParts
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.messages.create_topics import CreatableTopic
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.store import SqlStore
    from kafkawire.offsets.catalog.port import SegmentCatalog
    from kafkawire.tiering.store.metering import Meter
    from kafkawire.tiering.store.port import ObjectStore


# Register a broker in SQL at its start, which ends an earlier process of it.


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
        from kafkawire.log.objects.port import wait_until_reachable

        await wait_until_reachable(env, store)
    rack, place = config.broker_rack, env.fs.identity(folder)
    expected = after if after > 0 else None
    await unchanged()
    await metadata.register_broker(config.node_id, listeners, rack, place, expected)
    await unchanged()
    await end_returning(metadata, catalog, config.node_id)


# Check, before topics with durability=s3 are created, that the tier can have their log objects.


async def check_storage(broker: BrokerParts, topics: Iterable[CreatableTopic]) -> None:
    """Have the storage checked if one of these topics may need log objects; the first check of a
    process makes a request. Called before the catalog is locked."""
    logs = broker.log.object_logs
    if logs is None:
        return
    needed = broker.config.durability == S3
    for topic in topics:
        needed = needed or any(each.name == DURABILITY for each in topic.configs)
        await broker.env.slices.give_way()
    if needed:
        await logs.check()


def refuse_unusable(broker: BrokerParts, configs: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG if a topic with these settings needs log objects, which the storage
    cannot have according to the last check, or followers, of which this machine has none."""
    logs = broker.log.object_logs
    if logs is not None and logs.unusable and configs.get(DURABILITY) == S3:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{DURABILITY}={S3}: {logs.unusable}")
    if configs.get(DURABILITY) == REPLICATED and not broker.config.replication_listener.strip():
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{DURABILITY}={REPLICATED}: this broker's machine has no follower: start all brokers "
            "of the cluster with replication.listener",
        )


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
