"""`kafkawire restore --from-log --data DIR`: SQL rebuilt from journals and segments alone.

For a stopped broker whose metadata.db is damaged, missing, outdated or from another folder.
Everything is read and decided before anything is written; the new file is built under a temporary
name and renamed. The previous file is kept as metadata.db.damaged-<n> or, if it was valid, as
metadata.db.replaced-<n>. Offsets in RocksDB are kept as they are if all of them can be read;
otherwise they are restored too, and the previous folder is kept as offsets.damaged-<n>. Lost
information is listed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count as numbers
from typing import TYPE_CHECKING

from kafkawire.cli.shared.data_folder import check_sqlite, node_ids
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.progress import bars
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.codec.format_errors import FormatError
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.manager import lock_folder
from kafkawire.log.manifest.service import ENDED
from kafkawire.log.rebuild.evidence import gather
from kafkawire.log.rebuild.findings import Evidence
from kafkawire.log.rebuild.insert import enter
from kafkawire.log.rebuild.plan import Rebuilt, rebuild
from kafkawire.log.rebuild.renumber import convert
from kafkawire.log.recovery.identity import Folder, IdentityError, check_pairing, inspect_folder
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.metadata import pairing
from kafkawire.metadata.database import sqlite_transaction
from kafkawire.metadata.entering import enter_catalog
from kafkawire.metadata.open import open_metadata, sqlite_metadata
from kafkawire.metadata.session import Session
from kafkawire.metadata.sqlite_device import end_wal
from kafkawire.metadata.store import MetadataError, SqlStore, sqlite_file
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import CURRENT, TierRow
from kafkawire.offsets.storage.open import (
    RESTORING,
    ROCKSDB,
    SQL,
    holds_rocks,
    open_storage,
    rocks_damaged,
    rocks_folder,
)
from kafkawire.plural import count
from kafkawire.progress import Progress

if TYPE_CHECKING:
    from kafkawire.tiering.restore.findings import BucketEvidence

BESIDE = ("", "-wal", "-shm")
"""An SQLite file and the files next to it."""


def run(data: str, metadata_url: str, tier: str, as_json: bool) -> None:
    """Run the command. An empty `tier` means the tier that the folder used last."""
    logging.disable(logging.CRITICAL)  # findings are printed once, below
    folder = os.path.abspath(data)
    try:
        nodes = node_ids(folder)
        if len(nodes) > 1:
            raise LogError(
                f"{folder} has the logs of several brokers ({nodes}): only one can be restored"
            )
        with bars() as progress:
            restored = _restore(folder, metadata_url, nodes[0], tier, progress)
    except (LogError, MetadataError, FormatError, ValueError) as failure:
        fail(failure)
    except StoreError as failure:
        fail(f"the remote tier with objects of this broker cannot be read: {failure}")
    except OSError as failure:
        fail(f"{failure.filename or data} failed: {failure.strerror or failure}")
    finally:
        logging.disable(logging.NOTSET)
    _show(folder, restored, as_json)


@dataclass(slots=True)
class RestoredMetadata:
    """Result of a restore. `kept`: path of the previous metadata (empty: none existed);
    `cluster_id`: as found in the log (empty: a new one was created)."""

    rebuilt: Rebuilt
    kept: str
    cluster_id: str


def _restore(folder: str, url: str, node: int, tier: str, progress: Progress) -> RestoredMetadata:
    env = real_env()
    home = os.path.join(folder, "brokers", str(node))
    path = sqlite_file(url, folder)
    lock = lock_folder(env, home)
    try:
        found = inspect_folder(env.fs, folder, home, node)
        seen = gather(env, home, progress)
        damaged = rocks_damaged(home)
        why = "" if path is None else _replaced(path, found, seen, damaged)
        keep = holds_rocks(home) and not damaged  # the offsets stay in RocksDB
        tier = "" if keep else _join_tier(env, found, seen, tier, progress)
        rebuilt = rebuild(seen, node)
        before = found.identity
        cluster_id = before.cluster_id if before is not None else seen.cluster_id()
        conversion = None
        if rebuilt.mixed:
            if holds_rocks(home):
                raise LogError(
                    f"{home}/offsets belongs to one of two brokers that wrote {folder}: move it "
                    "away, restore again, and use offset.storage=sql from then on"
                )
            conversion = convert(env, home, seen, rebuilt, node, cluster_id, progress)
        building = f"{path}.restoring"
        _remove(env, building)
        metadata = open_metadata(url, folder) if path is None else sqlite_metadata(building)
        rows = TierRow(0, tier, CURRENT, env.clock.now_ms()) if tier else None
        into = None if keep else ROCKSDB if damaged else SQL
        asyncio.run(
            _enter(env, metadata, home, found, rebuilt, cluster_id, seen.configs, rows, into)
        )
        if conversion is not None:
            conversion.publish()
        kept = "" if path is None else _exchange(env, path, building, why)
        if damaged:
            _exchange_rocks(env, home)
        _set_aside(env, home, rebuilt)
        if conversion is not None:
            conversion.set_aside()
    finally:
        lock.release()
        env.offload.close()
    return RestoredMetadata(rebuilt, kept, cluster_id)


def _replaced(path: str, found: Folder, seen: Evidence, damaged: bool) -> str:
    """Return why the file is replaced: `damaged`, or `replaced` for a file of another folder or
    state, or where the offsets in RocksDB are damaged. MetadataError if it is valid and has
    everything that the log has."""
    try:
        check_sqlite(path)
    except MetadataError:
        return "damaged"
    if damaged:
        return "replaced"
    ids = {p.topic_id for p in seen.partitions.values() if p.topic} | seen.topics.keys()
    ids -= seen.deleted
    try:
        with sqlite_transaction(path, "ro") as connection:
            session = Session(connection)
            check_pairing(found, pairing.load(session, found.node_id), path)
            missing = ids - pairing.known_topics(session, ids)
    # no metadata, older metadata, or metadata of another folder
    except (MetadataError, ValueError, IdentityError):
        return "replaced"
    if missing:
        return "replaced"
    raise MetadataError(
        f"{path} is valid and has every topic of the log: nothing to restore; move it "
        "away to restore nevertheless"
    )


def _join_tier(env: Env, found: Folder, seen: Evidence, tier: str, progress: Progress) -> str:
    """Add the content of the remote tier to the evidence; return the tier's URL (empty: none).
    StoreError if it cannot be read, ValueError for an invalid URL, LogError for the tier of another
    cluster."""
    before = found.identity
    tier = tier or (before.tier if before is not None else "")
    if not tier:
        return ""
    from kafkawire.objectstore.url import parse_tier
    from kafkawire.tiering.restore.merge_evidence import join

    url = parse_tier(tier)
    bucket = asyncio.run(_ask(env, replace(url, create=False).url, progress))
    ours = before.cluster_id if before is not None else seen.cluster_id()
    if bucket.cluster_id and ours and bucket.cluster_id != ours:
        raise LogError(
            f"the tier {url.url} belongs to cluster {bucket.cluster_id}, {found.data} to cluster "
            f"{ours}: name the tier of this broker with --tier"
        )
    join(seen, bucket)
    return url.url


async def _ask(env: Env, url: str, progress: Progress) -> BucketEvidence:
    from kafkawire.tiering.restore.evidence import gather as gather_bucket
    from kafkawire.tiering.store.open import open_store

    store = open_store(url, BrokerConfig({}))
    try:
        return await gather_bucket(env, store, progress)
    finally:
        await store.close()


async def _enter(
    env: Env,
    metadata: SqlStore,
    home: str,
    found: Folder,
    rebuilt: Rebuilt,
    cluster_id: str,
    configs: Mapping[str, str],
    tier: TierRow | None,
    into: str | None,
) -> None:
    """Fill the metadata, and the storage `into` with offsets (None: they are kept)."""
    node, before = found.node_id, found.identity
    now_ms = env.clock.now_ms()

    def enter_all(session: Session) -> None:
        enter_catalog(
            session,
            node,
            rebuilt.topics,
            rebuilt.next_partition,
            rebuilt.next_producer_id,
            now_ms,
            cluster_id,
            configs,
            rebuilt.deleted,
        )
        # the start checks that metadata and folder match, which rejects older copies
        if before is not None:
            metadata_id = bytes.fromhex(before.metadata_id)
            pairing.pair(session, node, metadata_id, before.generation + 1)

    try:
        await metadata.open()
        await metadata.transact(enter_all)
        if into is not None:
            if into == ROCKSDB:
                shutil.rmtree(rocks_folder(home) + RESTORING, ignore_errors=True)
            storage = open_storage(
                into, metadata, home, node, env.clock.now_ms, lambda _: node, RESTORING
            )
            await enter(storage, rebuilt, node, tier)
            await storage.close()
    finally:
        await metadata.close()


def _set_aside(env: Env, home: str, rebuilt: Rebuilt) -> None:
    """Keep segments without a metadata row, and let the next start rewrite the local manifest."""
    env.fs.remove(os.path.join(home, ENDED))
    quarantine = Quarantine(env.fs, home)
    for path in rebuilt.aside:
        why = "restore --from-log could not read it, or could not reach its offsets without a gap"
        quarantine.take(path, why, env.clock.now_ms())


def _remove(env: Env, path: str) -> None:
    for end in BESIDE:
        env.fs.remove(path + end)


def _exchange(env: Env, path: str, building: str, why: str) -> str:
    """Replace the old file by the new one; return the path under which the old one is kept."""
    end_wal(building)
    file = env.fs.open(building)
    file.sync()
    file.close()
    kept = ""
    for end in BESIDE:
        if os.path.exists(path + end):
            kept = kept or _free(path, why)
            env.fs.rename(path + end, kept + end)
    env.fs.rename(building, path)
    env.fs.sync_dir(os.path.dirname(path))
    return kept


def _exchange_rocks(env: Env, home: str) -> None:
    """Replace RocksDB's folder by the new one; keep the old one. A broker does not start between
    the two steps: see check_storage."""
    place = rocks_folder(home)
    if os.path.exists(place):
        env.fs.rename(place, _free(place, "damaged"))
    env.fs.rename(place + RESTORING, place)
    env.fs.sync_dir(home)


def _free(path: str, why: str) -> str:
    names = (f"{path}.{why}-{n}" for n in numbers(1))
    return next(n for n in names if not any(os.path.exists(n + end) for end in BESIDE))


def _show(folder: str, restored: RestoredMetadata, as_json: bool) -> None:
    rebuilt, kept = restored.rebuilt, restored.kept
    partitions = sum(len(topic.partitions) for topic in rebuilt.topics)
    losses = list(rebuilt.losses)
    if not restored.cluster_id:
        losses.insert(0, "the cluster has a new ID")
    if as_json:
        print_json(
            {
                "data": folder,
                "topics": len(rebuilt.topics),
                "partitions": partitions,
                "damaged": kept or None,
                "losses": losses,
            }
        )
        return
    topics = count(len(rebuilt.topics), "topic")
    print(f"{folder}: {topics}, {count(partitions, 'partition')} restored from the log")
    if kept:
        print(f"The previous metadata is kept as {kept}.")
    if losses:
        print("Not restored, because the log does not have it:")
    for sentence in losses:
        print(f"- {sentence}")
