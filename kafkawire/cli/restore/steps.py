"""The steps that restores of a tier, a log and a follower's copies share: the tier is opened, new
metadata is filled with a plan, and the command that starts the broker is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kafkawire.cli.shared.output import without_password
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.metadata import pairing
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import open_metadata, sqlite_metadata
from kafkawire.metadata.sqlite import end_wal
from kafkawire.metadata.store import SqlStore
from kafkawire.offsets.storage.open import RESTORING, SQL, open_storage
from kafkawire.progress import Progress, silent
from kafkawire.restore.evidence import LogSeen
from kafkawire.restore.insert import enter_offsets, enter_topics
from kafkawire.restore.log_objects import copy_others
from kafkawire.restore.plan import RestorePlan
from kafkawire.tiering.store.open import open_store
from kafkawire.tiering.store.port import ObjectStore


@asynccontextmanager
async def opened_tier(url: str) -> AsyncIterator[ObjectStore]:
    """Open a tier for the duration of a block."""
    store: ObjectStore = open_store(url, BrokerConfig({}))
    try:
        yield store
    finally:
        await store.close()


async def copy_logs(env: Env, url: str, plan: RestorePlan, progress: Progress) -> list[LogSeen]:
    """Have the log objects of all brokers of a tier in the folder of the one that is restored."""
    async with opened_tier(url) as store:
        return await copy_others(env, store, plan.logs, plan.node_id, progress)


@dataclass(frozen=True, slots=True)
class RestoredBroker:
    """A broker of the new metadata. `home`: its folder; `plan`: of its offsets, None: they are kept
    where they are; `storage`: where they are entered; `paired`: the metadata id of its folder, and
    the next generation."""

    node_id: int
    home: str
    plan: RestorePlan | None
    storage: str = SQL
    paired: tuple[bytes, int] | None = None


def fill_metadata(
    env: Env,
    url: str,
    path: str | None,
    plan: RestorePlan,
    brokers: Sequence[RestoredBroker],
    progress: Progress = silent,
) -> None:
    """Fill empty metadata with a plan, and with the offsets of each broker its storage: the SQLite
    file `path`, which is complete then and not synced, or without one the database `url`."""
    metadata = sqlite_metadata(path) if path is not None else open_metadata(url, "")
    asyncio.run(_enter(env, metadata, plan, brokers, progress))
    if path is not None:
        end_wal(path)


async def _enter(
    env: Env,
    metadata: SqlStore,
    plan: RestorePlan,
    brokers: Sequence[RestoredBroker],
    progress: Progress,
) -> None:
    now_ms = env.clock.now_ms

    def enter_all(session: Session) -> None:
        enter_topics(session, plan, now_ms())
        # The start checks that metadata and folder match, which rejects older copies.
        for each in brokers:
            if each.paired is not None:
                pairing.pair(session, each.node_id, *each.paired)

    try:
        await metadata.open()
        await metadata.transact(enter_all)
        for each in brokers:
            if each.plan is not None:
                await _enter_offsets(env, metadata, each, each.plan, progress)
    finally:
        await metadata.close()


async def _enter_offsets(
    env: Env, metadata: SqlStore, broker: RestoredBroker, plan: RestorePlan, progress: Progress
) -> None:
    home, now_ms = broker.home, env.clock.now_ms

    def leader_of(_: int) -> int:
        return broker.node_id

    storage = open_storage(
        broker.storage, metadata, home, broker.node_id, now_ms, leader_of, RESTORING
    )
    try:
        await enter_offsets(env, storage, home, plan, progress)
    finally:
        await storage.close()


def start_command(node_id: int, data: str, metadata_url: str, tier: str) -> str:
    """Return the command that starts a restored broker, to be shown."""
    words = ["kafkawire serve --data", data, "--tier", f"'{tier}'" if "?" in tier else tier]
    if metadata_url:
        words += ["--metadata", metadata_url]
    if node_id != BrokerConfig({}).node_id:
        words += ["--set", f"node.id={node_id}"]
    return without_password(" ".join(words))
