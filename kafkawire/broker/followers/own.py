"""The follower on the machine of a broker: its identity, and its row in SQL."""

from __future__ import annotations

import ipaddress
import logging
import os.path
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafkawire.client.address import split_address
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
    from kafkawire.metadata.store import Transactions

logger = logging.getLogger(__name__)


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
