"""The replication of a broker that starts: its set in SQL, the copy of its log, its followers."""

from __future__ import annotations

import ipaddress
import logging
import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kafkawire.broker.followers.install import MAX_ATTEMPTS, CopySearch, install, leads_any
from kafkawire.broker.liveness.takeover import wait_until_ended
from kafkawire.broker.moving.plan import durability_of
from kafkawire.client.address import split_address
from kafkawire.codec.configs.durability_rules import (
    BEYOND_FOLDER,
    COMMIT,
    DURABILITY,
    FLUSH,
    REPLICATED,
)
from kafkawire.log.followers.network import Network, TcpNetwork
from kafkawire.log.followers.service import ReplicatingProcess, Replication
from kafkawire.log.followers.source import CopyReader
from kafkawire.log.recovery.identity import IdentityError
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog import replica_sets
from kafkawire.offsets.catalog.replica_sets import FollowerRow
from kafkawire.replication import certificate as certificates
from kafkawire.replication import sealed_file
from kafkawire.replication.failures import FollowerError
from kafkawire.replication.follower import FollowerIdentity
from kafkawire.replication.machine import Files
from kafkawire.replication.options import FOLLOWER_FOLDER, IDENTITY, SSL

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.changes import Cursor
    from kafkawire.metadata.session import Session
    from kafkawire.metadata.store import SqlStore, Transactions
    from kafkawire.offsets.catalog.replica_sets import ReplicaSet

logger = logging.getLogger(__name__)


# The follower on the machine of a broker: its identity, and its row in SQL.


async def own_follower(
    env: Env,
    config: BrokerConfig,
    listeners: Mapping[str, tuple[str, int]],
    data: str,
    followers: Sequence[FollowerRow],
) -> str:
    """Return the replica id of the follower of a data folder; empty if it has none. If its identity
    cannot be read, it is that of the registered one with its address: it may be repaired later, and
    its copies are on the disk of this machine."""
    try:
        found = await env.offload.submit("files", read_identity, data)
    except (OSError, FollowerError):
        address = advertised_address(config, listeners)
        same = (each.replica_id for each in followers if (each.host, each.port) == address)
        return next(same, "")
    return "" if found is None else found.replica_id.hex()


async def register_follower(
    env: Env,
    config: BrokerConfig,
    metadata: Transactions,
    listeners: Mapping[str, tuple[str, int]],
    data: str,
) -> None:
    """Store the address of this machine's follower, if it has one, so that brokers of other
    machines connect to it. One whose identity cannot be read is not stored, and its process does
    not serve. Raises MetadataError."""
    address = advertised_address(config, listeners)
    encrypts = config.replication_security_protocol == SSL
    try:
        found = await env.offload.submit("files", read_identity, data)
        certificate = await env.offload.submit("files", read_certificate, data) if encrypts else ""
    except (OSError, FollowerError) as failure:
        logger.error(
            "the follower of this machine is not registered: %s. Broker %d starts without it; "
            "restart kafkawire here when that is repaired", failure, config.node_id,
        )  # fmt: skip
        return
    if address is None or found is None:
        return
    replica_id = found.replica_id.hex()
    row = FollowerRow(replica_id, config.node_id, *address, found.key, certificate)
    now_ms = env.clock.now_ms()
    await metadata.transact(lambda session: replica_sets.register(session, row, now_ms))


def advertised_address(
    config: BrokerConfig, listeners: Mapping[str, tuple[str, int]]
) -> tuple[str, int] | None:
    """Return the host and port at which other machines reach this machine's follower; None if it
    has none. `listeners`: what the broker advertises to clients."""
    listener = split_address(config.replication_listener)
    if listener is None:
        return None
    advertised = split_address(config.replication_advertised_listener)
    if advertised is not None:
        return advertised[1:]
    _, host, port = listener
    if _is_wildcard(host):
        host, _ = next(iter(listeners.values()))
    return host, port


def read_identity(data: str) -> FollowerIdentity | None:
    """Return the identity of the follower of a data folder; None if it has none. Blocks. Raises
    OSError, FollowerError."""
    content = sealed_file.load(Files(), os.path.join(data, FOLLOWER_FOLDER, IDENTITY))
    if content is None:
        return None
    return FollowerIdentity(bytes.fromhex(content["replica_id"]), bytes.fromhex(content["key"]))


def read_certificate(data: str) -> str:
    """Return the certificate of the follower of a data folder, as PEM; empty if it has none, as if
    it has never served. Blocks. Raises OSError, FollowerError."""
    found = certificates.load(Files(), os.path.join(data, FOLLOWER_FOLDER))
    return "" if found is None else found.certificate


def _is_wildcard(host: str) -> bool:
    """Return whether a host stands for all addresses of the machine."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


MAX_NAMED = 5
"""Topics named in one message."""


def expects_any(catalog: Catalog, node_id: int) -> bool:
    """Return whether a partition with durability=replicated is to be moved to a broker."""
    return any(
        target == node_id and durability_of(catalog, number) == REPLICATED
        for number, target in catalog.moves.items()
    )


def leads_local(catalog: Catalog, node_id: int) -> bool:
    """Return whether a broker leads partitions with durability=local."""
    return any(
        info.configs.get(DURABILITY) not in BEYOND_FOLDER
        and any(row.leader == node_id for row in info.partitions)
        for info in catalog.by_name.values()
    )


async def wait_until_startable(
    env: Env,
    metadata: SqlStore,
    config: BrokerConfig,
    catalog: Catalog,
    listeners: Mapping[str, tuple[str, int]],
    data: str,
    after: int,
    *,
    fresh: bool,
) -> tuple[int, Catalog]:
    """Wait until a broker that machines take over from each other, and whose folder is `fresh`,
    runs on no other machine, and what it has acknowledged can be copied; return its epoch and the
    catalog then. `after`: the epoch of a broker of another machine, or -1. The follower of this
    machine is registered meanwhile, since others may wait for it."""
    if not fresh or not config.cluster_takeover_enable:
        return after, catalog
    copies = CopySearch(env, metadata, TcpNetwork(), catalog.cluster_id, config.node_id)
    if after >= 0:
        await copies.wait(after)
    else:
        meanwhile = partial(register_follower, env, config, metadata, listeners, data)
        after = await wait_until_ended(env, metadata, config, meanwhile, copies)
    return after, await metadata.reload()


async def check_current(metadata: SqlStore, catalog: Catalog, node_id: int) -> None:
    """Raise MetadataError if a registered broker leads partitions with durability=replicated that
    are not in its catalog, which was loaded before: the log would be opened without their records.

    An earlier process may have acknowledged records in them, but not in partitions that it leads
    since this registration: it reads from SQL that it is superseded before it reads of these."""
    leaders = {each.id: each.leader for each in catalog.groups()}
    missing: list[str] = []
    after: Cursor | None = None
    while True:
        changes = await metadata.changes_since(catalog.stored_version, after)
        leaders.update((each.id, each.leader) for each in changes.groups)
        for topic in changes.topics:
            led = [each.number for each in topic.partitions if leaders.get(each.group) == node_id]
            known = all(catalog.leader_of(number) == node_id for number in led)
            if topic.configs.get(DURABILITY) == REPLICATED and not known:
                missing.append(topic.name)
        after = changes.more
        if after is None:
            break
    if missing:
        raise MetadataError(
            f"an earlier process of broker {node_id} became the leader of partitions of "
            f"{', '.join(missing[:MAX_NAMED])} while this one was starting, and may have "
            "acknowledged records in them: this start ends, and the next one loads these records"
        )


async def check_copies(metadata: SqlStore, catalog: Catalog, node_id: int, data: str) -> None:
    """Raise IdentityError if no follower has what a broker has acknowledged: a start with an empty
    folder would make the former one useless, which alone has it."""
    stored = await metadata.transact(lambda session: replica_sets.load(session, node_id))
    if stored is not None and not stored.in_sync and leads_any(catalog, node_id):
        raise IdentityError(
            f"{data} has nothing of broker {node_id}, and no follower was in sync when it last "
            "served: start it with the data folder that it was last used with"
        )


@dataclass(frozen=True, slots=True)
class StartingReplicas:
    """The followers of a registered broker, as its start finds them. `stored`: the set of the
    process whose log it continues, None: it continues no log that followers have; `own`: the
    replica id of the follower of this machine, empty: it has none."""

    env: Env
    config: BrokerConfig
    metadata: SqlStore
    catalog: Catalog
    network: Network
    stored: ReplicaSet | None
    own: str

    @classmethod
    async def load(
        cls,
        env: Env,
        config: BrokerConfig,
        metadata: SqlStore,
        catalog: Catalog,
        listeners: Mapping[str, tuple[str, int]],
        data: str,
        *,
        guest: bool,
    ) -> StartingReplicas:
        """Read them from SQL, after the follower of this machine is registered, unless it is the
        machine of another broker (`guest`). Raises IdentityError if `flush` is not what topics
        need; what `check_current` raises; and what SQL and the disk raise."""
        node_id, epoch = config.node_id, catalog.brokers[config.node_id].epoch
        if not guest:
            await register_follower(env, config, metadata, listeners, data)
        await check_current(metadata, catalog, node_id)
        leads = leads_any(catalog, node_id)
        if leads and config.flush != COMMIT:
            raise IdentityError(
                f"broker {node_id} leads topics with {DURABILITY}={REPLICATED}, which need "
                f"{FLUSH}={COMMIT}: start it without {FLUSH}={config.flush}"
            )

        def load(session: Session) -> tuple[ReplicaSet | None, list[FollowerRow]]:
            if not leads:  # nothing that followers have is needed: this log continues none of it
                replica_sets.delete(session, node_id, epoch)
            return replica_sets.load(session, node_id), replica_sets.load_followers(session)

        stored, followers = await metadata.transact(load)
        own = await own_follower(env, config, listeners, data, followers)
        return cls(env, config, metadata, catalog, TcpNetwork(), stored, own)

    async def copy_into(self, home: str) -> None:
        """Copy the journals that followers have to an empty folder. Raises what `install`
        raises."""
        if self.stored is not None:
            await install(
                self.env, self.network, self._reader, self.stored, self._read_followers, home,
                MAX_ATTEMPTS if self.config.cluster_takeover_enable else None,
            )  # fmt: skip

    async def _read_followers(self) -> list[FollowerRow]:
        return await self.metadata.transact(replica_sets.load_followers)

    def open(self, *, fresh: bool) -> Replication:
        """Return the replication of this process. `fresh`: the broker's part of the data folder is
        not complete."""
        reader = self._reader
        catalog, node_id = self.catalog, reader.node_id
        process = ReplicatingProcess(
            reader.cluster_id, node_id, reader.broker_epoch, self.own, self.stored,
            leads_any(catalog, node_id) or expects_any(catalog, node_id),
            leads_local(catalog, node_id),
        )  # fmt: skip
        waits = self.stored is not None
        return Replication(
            self.env, self.config, self.metadata, self.network, process, waits, complete=not fresh
        )

    @property
    def _reader(self) -> CopyReader:
        node_id = self.config.node_id
        epoch = self.catalog.brokers[node_id].epoch
        return CopyReader(self.catalog.cluster_id, node_id, epoch)
