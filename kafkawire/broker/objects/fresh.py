"""Prepare the empty data folder of a broker that had another one, before its log is opened
(kafkawire.log.fresh_folder)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkawire.broker.followers.opening import check_copies
from kafkawire.log import fresh_folder
from kafkawire.log.followers.source import LogBehindCopies
from kafkawire.log.recovery.identity import Folder, IdentityError
from kafkawire.metadata import heartbeats, pairing
from kafkawire.metadata.store import BrokerSuperseded

if TYPE_CHECKING:
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.pairing import StoredPairing
    from kafkawire.metadata.session import Session
    from kafkawire.metadata.store import SqlStore
    from kafkawire.offsets.catalog.port import SegmentCatalog
    from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)


async def check_fresh(
    found: Folder, storage: SegmentCatalog, catalog: Catalog, metadata: SqlStore, fresh: bool
) -> None:
    """Raise IdentityError if a folder is fresh and would lose records of topics."""
    if not fresh:
        return
    from kafkawire.restore.lost_files import find_only_in_folder

    names = await find_only_in_folder(storage, catalog, found.node_id)
    if names:
        raise IdentityError(
            f"{found.data} has nothing of broker {found.node_id}, whose records of "
            f"{', '.join(names)} are only in the folder it was last used with (durability=local): "
            "start with that folder, or restore it"
        )
    await check_copies(metadata, catalog, found.node_id, found.data)


@contextlib.asynccontextmanager
async def replacing_if_behind(
    env: Env, found: Folder, storage: SegmentCatalog, catalog: Catalog, home: str
) -> AsyncIterator[None]:
    """If the block raises LogBehindCopies, have the next start replace the folder by the copy of a
    follower. Raises IdentityError if that would lose records that only this folder has."""
    try:
        yield
    except LogBehindCopies as why:
        from kafkawire.restore.lost_files import find_only_in_folder

        names = await find_only_in_folder(storage, catalog, found.node_id)
        if names:
            raise IdentityError(
                f"{why}. It is not replaced by that copy, because only {found.data} has the "
                f"records of {', '.join(names)} (durability=local): restore the files from a "
                "backup, or delete these topics at another broker and start again"
            ) from why
        await env.offload.submit("files", fresh_folder.begin, env.fs, home)
        raise


async def check_unchanged(
    metadata: SqlStore, stored: StoredPairing, node_id: int, fresh: bool
) -> None:
    """Raise BrokerSuperseded if a broker has used another folder since `stored` was read and
    compared with its own one, which is not `fresh`. Called before it is registered, so that a start
    elsewhere is not superseded by one that fails, and again afterwards: a start elsewhere that was
    registered before does not pair its folder any more."""
    if fresh:
        return
    now = await metadata.transact(lambda session: pairing.load(session, node_id))
    if now.metadata_id != stored.metadata_id:
        epoch, _ = await metadata.transact(lambda session: heartbeats.read(session, node_id))
        raise BrokerSuperseded(node_id, epoch)


def _pair(session: Session, node_id: int, epoch: int, paired: StoredPairing) -> None:
    """Store a pairing if the broker still has this epoch. Raises BrokerSuperseded."""
    current, _ = heartbeats.read(session, node_id)
    if current != epoch:
        raise BrokerSuperseded(node_id, current)
    pairing.pair(session, node_id, paired.metadata_id, paired.generation)


async def begin_afresh(
    env: Env,
    found: Folder,
    home: str,
    storage: SegmentCatalog,
    catalog: Catalog,
    config: BrokerConfig,
    store: ObjectStore | None,
    metadata: SqlStore,
    stored: StoredPairing,
    copy_into: Callable[[str], Awaitable[None]],
) -> tuple[Folder, StoredPairing]:
    """Empty the folder of a broker that was lost, or superseded by another one, have `copy_into`
    copy to it what followers have, and remove from SQL what only the former files had; return this
    folder and its pairing with SQL.

    The folder is paired only when it has the copy: the one that was used before is superseded from
    then on. It is paired before rows are removed, so that no start finds rows that do not describe
    its files. Waits for a storage that fails as long as it takes; raises StoreErrors that do not
    pass by themselves."""
    from kafkawire.log.objects.port import wait_for_answer
    from kafkawire.restore.lost_files import correct_rows

    await env.offload.submit("files", fresh_folder.prepare, env.fs, home)
    await copy_into(home)
    assert store is not None, "a broker with log objects has a tier"
    paired = replace(stored, metadata_id=env.random.randbytes(16), generation=stored.generation + 1)
    epoch = catalog.brokers[found.node_id].epoch
    await metadata.transact(lambda session: _pair(session, found.node_id, epoch, paired))
    logger.warning("filling %s from the remote tier: it has no records of this broker", home)
    await wait_for_answer(env, lambda: correct_rows(env, config, storage, catalog, store, home))
    return Folder(found.data, found.node_id, None, has_log=False), paired
