"""Create the replication of a broker when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkawire.broker.followers.install import install
from kafkawire.broker.followers.own import own_follower, register_follower
from kafkawire.codec.configs.durability_rules import COMMIT, DURABILITY, FLUSH, REPLICATED
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.log.replicas.service import ReplicatingProcess, Replication
from kafkawire.log.replicas.source import CopyReader
from kafkawire.offsets.catalog import replica_sets

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.session import Session
    from kafkawire.metadata.store import SqlStore
    from kafkawire.offsets.catalog.replica_sets import FollowerRow, ReplicaSet


def leads_replicated(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker leads partitions with durability=replicated."""
    return any(
        info.configs.get(DURABILITY) == REPLICATED
        and any(row.leader == node_id for row in info.partitions)
        for info in catalog.by_name.values()
    )


async def open_replication(
    env: Env,
    config: BrokerConfig,
    metadata: SqlStore,
    catalog: Catalog,
    listeners: Mapping[str, tuple[str, int]],
    data: str,
    home: str,
    *,
    fresh: bool,
    guest: bool,
) -> Replication:
    """Return the replication of a registered broker, after the follower of this machine is
    registered, unless it is the machine of another broker (`guest`). If the folder `home` is fresh,
    journals that followers have are copied there first. Raises IdentityError if they cannot be, or
    `flush` is not what topics need; and what SQL and the disk raise."""
    node_id = config.node_id
    if not guest:
        await register_follower(env, config, metadata, listeners, data)
    epoch = catalog.brokers[node_id].epoch

    def load(session: Session) -> tuple[ReplicaSet | None, list[FollowerRow]]:
        return replica_sets.load(session, node_id), replica_sets.load_followers(session)

    stored, followers = await metadata.transact(load)
    leads = leads_replicated(catalog, node_id)
    if leads and config.flush != COMMIT:
        raise IdentityError(
            f"broker {node_id} leads topics with {DURABILITY}={REPLICATED}, which need "
            f"{FLUSH}={COMMIT}: start it without {FLUSH}={config.flush}"
        )
    if fresh and leads and stored is not None:
        reader = CopyReader(catalog.cluster_id, node_id, epoch)
        await install(env, reader, stored, followers, home)
    own = await own_follower(env, data)
    writer = ReplicatingProcess(catalog.cluster_id, node_id, epoch, own, stored)
    return Replication(env, config, metadata, writer, waits=leads and stored is not None)
