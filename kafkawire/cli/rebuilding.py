"""`kafkawire restore --from-log --data DIR`: SQL rebuilt from journals and segments alone.

For a broker that is stopped and whose metadata.db is damaged or gone. Everything is read and
decided before anything is written; the new file is built beside its place and renamed into it, the
damaged one is kept as metadata.db.damaged-<n>. What cannot be known any more is said in sentences.
Called by kafkawire.cli.offset_app.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from contextlib import closing
from itertools import count
from urllib.parse import quote

from kafkawire.cli.fsck import check_sqlite, node_ids
from kafkawire.cli.progress import bars
from kafkawire.cli.tables import fail, print_json
from kafkawire.codec.segment import FormatError
from kafkawire.metadata.entering import enter_catalog
from kafkawire.metadata.quick import SqliteMetadata
from kafkawire.metadata.store import MetadataError, SqlStore, open_metadata
from log.disk import real_env
from log.env import Env, LogError
from log.fsck.report import Progress
from log.manager import lock_folder
from log.manifest.local import ENDED
from log.rebuild.enter import enter
from log.rebuild.evidence import gather
from log.rebuild.plan import Rebuilt, rebuild
from offsets.opening import SQL, holds_rocks, open_storage

METADATA = "metadata.db"
BESIDE = ("", "-wal", "-shm")
"""An SQLite file and what belongs to it."""


def run(data: str, metadata_url: str, as_json: bool) -> None:
    """The whole command."""
    logging.disable(logging.CRITICAL)  # what is found is told once, below
    folder = os.path.abspath(data)
    try:
        nodes = node_ids(folder)
        if len(nodes) > 1:
            raise LogError(f"{folder} has the logs of brokers {nodes}: only one can be restored")
        if not metadata_url:
            _refuse_sound(os.path.join(folder, METADATA))
        with bars() as progress:
            rebuilt, kept = _restore(folder, metadata_url, nodes[0], progress)
    except (LogError, MetadataError, FormatError) as failure:
        fail(failure)
    except OSError as failure:
        fail(f"{failure.filename or data} failed: {failure.strerror or failure}")
    finally:
        logging.disable(logging.NOTSET)
    _show(folder, rebuilt, kept, as_json)


def _refuse_sound(path: str) -> None:
    """MetadataError if there is nothing to restore."""
    try:
        check_sqlite(path)
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
            found = connection.execute("SELECT cluster_id FROM cluster").fetchone()
    except (MetadataError, sqlite3.Error):
        return
    if found is not None:
        raise MetadataError(
            f"{path} is sound: there is nothing to restore; move it away to restore all the same"
        )


def _restore(folder: str, url: str, node: int, progress: Progress) -> tuple[Rebuilt, str]:
    """What was restored, and where the damaged file is kept (empty: there was none)."""
    env = real_env()
    home = os.path.join(folder, "brokers", str(node))
    lock = lock_folder(env, home)
    try:
        rebuilt = rebuild(gather(env, home, progress), node)
        building = os.path.join(folder, f"{METADATA}.restoring")
        _remove(env, building)
        metadata = open_metadata(url, folder) if url else SqliteMetadata(building)
        asyncio.run(_enter(env, metadata, home, node, rebuilt))
        _set_aside(env, home, rebuilt)
        kept = "" if url else _exchange(env, folder, building)
    finally:
        lock.release()
        env.offload.close()
    return rebuilt, kept


async def _enter(env: Env, metadata: SqlStore, home: str, node: int, rebuilt: Rebuilt) -> None:
    try:
        await metadata.open()
        numbers = rebuilt.next_partition, rebuilt.next_producer_id
        now_ms = env.clock.now_ms()
        await metadata.transact(
            lambda session: enter_catalog(session, node, rebuilt.topics, *numbers, now_ms)
        )
        if not holds_rocks(home):  # else RocksDB has its rows still
            storage = open_storage(SQL, metadata, home, node, env.clock.now_ms, lambda _: node)
            await enter(storage, rebuilt, node)
            await storage.close()
    finally:
        await metadata.close()


def _set_aside(env: Env, home: str, rebuilt: Rebuilt) -> None:
    """Keep segments that the next start would remove, since no row knows them; and have it write
    the local manifest anew."""
    env.fs.remove(os.path.join(home, ENDED))
    for path in rebuilt.aside:
        env.fs.rename(path, path + ".aside")
    if rebuilt.aside:
        env.fs.sync_dir(os.path.join(home, "segments"))


def _remove(env: Env, path: str) -> None:
    for end in BESIDE:
        env.fs.remove(path + end)


def _exchange(env: Env, folder: str, building: str) -> str:
    """Put the new file in the place of the old one, which stays beside it."""
    with closing(sqlite3.connect(building)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # all of it in one file
    file = env.fs.open(building)
    file.sync()
    file.close()
    path = os.path.join(folder, METADATA)
    kept = ""
    for end in BESIDE:
        if os.path.exists(path + end):
            kept = kept or _free(path)
            env.fs.rename(path + end, kept + end)
    env.fs.rename(building, path)
    env.fs.sync_dir(folder)
    return kept


def _free(path: str) -> str:
    names = (f"{path}.damaged-{n}" for n in count(1))
    return next(n for n in names if not any(os.path.exists(n + end) for end in BESIDE))


def _show(folder: str, rebuilt: Rebuilt, kept: str, as_json: bool) -> None:
    partitions = sum(len(topic.partitions) for topic in rebuilt.topics)
    losses = ["the cluster has a new id", *rebuilt.losses]
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
    print(f"{folder}: {len(rebuilt.topics)} topics, {partitions} partitions restored from the log")
    if kept:
        print(f"The damaged file is kept as {kept}.")
    print("What the log does not say:")
    for sentence in losses:
        print(f"- {sentence}")
