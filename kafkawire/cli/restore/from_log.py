"""`kafkawire restore --from-log --data DIR`: SQL rebuilt from journals and segments alone.

For a stopped broker whose metadata.db is damaged, missing, outdated or from another folder.
Everything is read and decided before anything is written; the new file is built under a temporary
name and renamed. The previous file is kept as metadata.db.damaged-<n> or, if it was valid, as
metadata.db.replaced-<n>. Offsets in RocksDB are kept as they are if all of them can be read;
otherwise they are restored too, and the previous folder is kept as offsets.damaged-<n>. With the
logs of several brokers in the folder, each partition is led by the one that led it last. Lost
information is listed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count as numbers

from kafkawire.broker.stored_formats import refuse_newer_files
from kafkawire.cli.restore.failures import failures_reported
from kafkawire.cli.restore.steps import RestoredBroker, copy_logs, fill_metadata, opened_tier
from kafkawire.cli.shared.data_folder import check_sqlite, node_ids
from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.progress import bars
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.local_manifest.service import ENDED
from kafkawire.log.manager import lock_folder
from kafkawire.log.recovery.identity import Folder, IdentityError, check_pairing, inspect_folder
from kafkawire.log.recovery.quarantine import Quarantine
from kafkawire.metadata import pairing, schema
from kafkawire.metadata.database import revision_of
from kafkawire.metadata.sql import sqlite_metadata
from kafkawire.metadata.sqlite import sqlite_transaction
from kafkawire.metadata.store import MetadataError, sqlite_file
from kafkawire.objectstore.url import parse_tier
from kafkawire.offsets.catalog.kv.transaction_count import move_database, remove_database
from kafkawire.offsets.storage.open import (
    RESTORING,
    ROCKSDB,
    SQL,
    holds_rocks,
    kind_in,
    open_storage,
    rocks_damaged,
    rocks_folder,
)
from kafkawire.plural import count
from kafkawire.progress import Progress
from kafkawire.restore.bucket import gather_from_bucket
from kafkawire.restore.combine import Combined, add_bucket, combine_folders
from kafkawire.restore.data_folder import gather_from_folder
from kafkawire.restore.evidence import BucketEvidence, FolderEvidence
from kafkawire.restore.findings import find_differences
from kafkawire.restore.follower_copies import FollowerCopy
from kafkawire.restore.plan import RestorePlan, plan_restore
from kafkawire.restore.segment_files import copy_carried, rewrite_folder

ROWS_AT_ONCE = 1000
"""Partitions of one round trip to the offset storage."""
BESIDE = ("", "-wal", "-shm")
"""An SQLite file and the files next to it."""


def run(data: str, metadata_url: str, tier: str, as_json: bool) -> None:
    """Run the command. An empty `tier` means the tier that the folder used last."""
    folder = os.path.abspath(data)
    tier_name = "the remote tier with objects of this broker"
    with failures_reported(data, tier_name), bars() as progress:
        plan, kept = restore(folder, metadata_url, node_ids(folder), tier, progress)
    show(folder, plan, kept, as_json)


@dataclass(slots=True)
class _Home:
    """One broker's folder. `damaged`: its offsets in RocksDB; `differs`: stored rows say another
    thing than its files; `tier`: URL of its remote tier that was read, empty: none."""

    node: int
    path: str
    found: Folder
    seen: FolderEvidence
    damaged: bool
    differs: bool = False
    tier: str = ""

    @property
    def keeps_offsets(self) -> bool:
        """Whether the offsets stay in RocksDB."""
        return holds_rocks(self.path) and not self.damaged

    def as_restored(self, part: RestorePlan) -> RestoredBroker:
        """Return it as it is entered; `part`: of the plan."""
        before, paired = self.found.identity, None
        if before is not None:
            paired = bytes.fromhex(before.metadata_id), before.generation + 1
        plan, storage = None if self.keeps_offsets else part, ROCKSDB if self.damaged else SQL
        return RestoredBroker(self.node, self.path, plan, storage, paired)


def restore(
    folder: str,
    url: str,
    nodes: Sequence[int],
    tier: str,
    progress: Progress,
    copies: Sequence[FollowerCopy] = (),
) -> tuple[RestorePlan, str]:
    """Return what was restored, and the path of the previous metadata; empty: none existed.
    `copies`: the journals are those of the first of these copies of a lost broker."""
    env = real_env()
    paths = {node: os.path.join(folder, "brokers", str(node)) for node in nodes}
    with ExitStack() as stack:
        stack.callback(env.offload.close)
        for path in paths.values():
            stack.callback(lock_folder(env, path).release)
            refuse_newer_files(env.fs, path)
        found = {node: inspect_folder(env.fs, folder, paths[node], node) for node in nodes}
        # A start that was refused leaves an empty folder.
        for path in paths.values():
            if kind_in(path) not in (SQL, ROCKSDB):
                raise LogError(
                    f"the offsets of {path} are in {kind_in(path)}, a plug-in: only those of "
                    "offset.storage=sql and rocksdb can be restored from the log"
                )
        used = [n for n in nodes if found[n].has_log or found[n].identity is not None] or nodes[:1]
        homes = [
            _Home(
                node, paths[node], found[node],
                gather_from_folder(env, paths[node], progress),
                rocks_damaged(paths[node]),
            )
            for node in used
        ]  # fmt: skip
        if len(homes) > 1:
            _check_together(folder, homes, tier)
        return _rebuild(env, folder, url, homes, tier, progress, copies)


def _check_together(folder: str, homes: Sequence[_Home], tier: str) -> None:
    """Raise LogError unless the folders of several brokers can be restored together."""
    nodes = ", ".join(str(home.node) for home in homes)
    logs = f"{folder} has the logs of brokers {nodes}"
    clusters = {home.found.identity.cluster_id for home in homes if home.found.identity}
    if len(clusters) > 1:
        raise LogError(
            f"{logs}, which belong to different clusters ({', '.join(sorted(clusters))}): restore "
            "those of each cluster in a folder of their own"
        )
    if any(holds_rocks(home.path) for home in homes):
        raise LogError(
            f"{logs} with offsets in RocksDB: only brokers with offset.storage=sql can be restored "
            "together; restore each of these in a folder of its own"
        )
    tiers = [home.found.identity.tier for home in homes if home.found.identity]
    if tier or any(tiers):
        raise LogError(
            f"{logs} and a remote tier: restore each of them in a folder of its own, or the tier "
            "with `kafkawire restore TIER`"
        )


def _rebuild(
    env: Env,
    folder: str,
    url: str,
    homes: Sequence[_Home],
    tier: str,
    progress: Progress,
    copies: Sequence[FollowerCopy],
) -> tuple[RestorePlan, str]:
    path = sqlite_file(url, folder)
    why = "" if path is None else _find_replace_reason(path, homes)
    for home in homes:
        if not home.keeps_offsets:
            _join_tier(env, home, tier, progress, of_one=not copies)
    combined = _combine_homes(homes)
    seen, first = combined.seen, homes[0]
    plan = plan_restore(seen, first.node, combined.leaders)
    clusters = [home.found.identity.cluster_id for home in homes if home.found.identity]
    plan.cluster_id = clusters[0] if clusters else seen.oldest_cluster()
    plan.tier = first.tier
    if copies:
        copies[0].amend(plan, copies[1:])
        tier_url = replace(parse_tier(plan.tier), create=False).url
        plan.logs = asyncio.run(copy_logs(env, tier_url, plan, progress))
    conversion = None
    if plan.mixed:
        _check_mixed(folder, homes)
        conversion = rewrite_folder(env, first.path, seen, plan, first.node, progress)
    paths = {home.node: home.path for home in homes}
    evidence = {home.node: home.seen for home in homes}
    carried = copy_carried(env, paths, evidence, combined, plan)
    building = None if path is None else f"{path}.restoring"
    _remove_unfinished(env, building, homes)
    parts = {h.node: combined.part_of(plan, h.node) for h in homes} if len(homes) > 1 else {}
    brokers = [home.as_restored(parts.get(home.node, plan)) for home in homes]
    fill_metadata(env, url, building, plan, brokers)
    for made in [*carried, conversion]:
        if made is not None:
            made.publish()
    kept = _exchange(env, path, building, why) if path and building else ""
    for home in homes:
        if home.damaged:
            _exchange_rocks(home.path)
        _set_aside(env, home.path, plan)
    if conversion is not None:
        conversion.set_aside()
    return plan, kept


def _combine_homes(homes: Sequence[_Home]) -> Combined:
    if len(homes) > 1:
        return combine_folders({home.node: home.seen for home in homes})
    return Combined(homes[0].seen)


def _check_mixed(folder: str, homes: Sequence[_Home]) -> None:
    """Raise LogError where files with wrong partition numbers cannot be written again."""
    if len(homes) > 1:
        raise LogError(
            f"{folder} has the logs of several brokers, and partition numbers that belong to two "
            "topics: restore each broker in a folder of its own"
        )
    if holds_rocks(homes[0].path):
        raise LogError(
            f"{homes[0].path}/offsets belongs to one of two brokers that wrote {folder}: move it "
            "away, restore again, and use offset.storage=sql from then on"
        )


def _find_replace_reason(path: str, homes: Sequence[_Home]) -> str:
    """Return why the file is replaced: `damaged`, or `replaced` for a file of another folder or
    state, with rows that differ from the logs, or where the offsets in RocksDB are damaged.
    MetadataError if it is valid and has everything that the logs have."""
    try:
        check_sqlite(path)
    except MetadataError:
        return "damaged"
    if not all(_has_all(path, home.found, home.seen) for home in homes):
        return "replaced"
    asyncio.run(_compare(path, homes))
    if any(home.damaged or home.differs for home in homes):
        return "replaced"
    raise MetadataError(
        f"{path} is valid and has every topic of the log: nothing to restore; move it "
        "away to restore nevertheless"
    )


def _has_all(path: str, found: Folder, seen: FolderEvidence) -> bool:
    """Return whether a metadata file is of this version, belongs to a folder, has its topics, and
    no checkpoint after the end of its log."""
    ids = {p.topic_id for p in seen.partitions.values() if p.topic} | seen.topics.keys()
    ids -= seen.deleted
    try:
        with sqlite_transaction(path, "ro") as session:
            if revision_of(session) != schema.REVISION:
                return False  # a start may have refused it, whatever its tables are
            stored = pairing.load(session, found.node_id)
            check_pairing(found, stored, path)
            if seen.recovered.contradicts(stored.log_position):
                return False
            return not ids - pairing.known_topics(session, ids)
    # no metadata, older metadata, or metadata of another folder
    except (MetadataError, ValueError, IdentityError):
        return False


async def _compare(path: str, homes: Sequence[_Home]) -> None:
    """Compare the rows of the partitions of each folder with what was found there."""
    metadata = sqlite_metadata(path)
    try:
        catalog = await metadata.open()
        for home in homes:
            if home.damaged:
                continue
            kind = ROCKSDB if holds_rocks(home.path) else SQL
            storage = open_storage(kind, metadata, home.path, home.node, int, catalog.leader_of)
            numbers = range(catalog.last_number() + 1)
            led = [number for number in numbers if catalog.leader_of(number) == home.node]
            try:
                position = await storage.load_log_position(home.node)
                for at in range(0, len(led), ROWS_AT_ONCE):
                    for row in await storage.load_partitions(led[at : at + ROWS_AT_ONCE]):
                        home.differs |= any(find_differences(home.seen, catalog, row, position))
            finally:
                await storage.close()
            # RocksDB is kept unless it is damaged.
            home.damaged = home.differs and kind == ROCKSDB
    finally:
        await metadata.close()


def _join_tier(env: Env, home: _Home, tier: str, progress: Progress, *, of_one: bool) -> None:
    """Add the content of the remote tier to the evidence of a folder, if there is a tier. `of_one`:
    it must be that of this broker alone; else the broker was lost, and takes what all have there.
    StoreError if it cannot be read, ValueError for an invalid URL, LogError for the tier of another
    cluster."""
    found, seen = home.found, home.seen
    before = found.identity
    tier = tier or (before.tier if before is not None else "")
    if not tier:
        return
    url = parse_tier(tier)
    bucket = asyncio.run(_gather_tier(env, replace(url, create=False).url, progress, of_one))
    ours = before.cluster_id if before is not None else seen.oldest_cluster()
    if bucket.cluster_id and ours and bucket.cluster_id != ours:
        raise LogError(
            f"the tier {url.url} belongs to cluster {bucket.cluster_id}, {found.data} to cluster "
            f"{ours}: name the tier of this broker with --tier"
        )
    add_bucket(seen, bucket)
    if not of_one:
        seen.doubts += bucket.doubts
    home.tier = url.url


async def _gather_tier(env: Env, url: str, progress: Progress, of_one: bool) -> BucketEvidence:
    async with opened_tier(url) as store:
        return await gather_from_bucket(env, store, progress, of_one=of_one)


def _set_aside(env: Env, home: str, plan: RestorePlan) -> None:
    """Keep segments without a metadata row, and let the next start rewrite the local manifest."""
    env.fs.remove(os.path.join(home, ENDED))
    quarantine = Quarantine(env.fs, home)
    unread = "restore --from-log could not read it, or could not reach its offsets without a gap"
    copied = "restore --from-log has copied its records into the folder of another broker"
    for path, why in [
        *((p, unread) for p in plan.aside),
        *((p, copied) for p in plan.copied),
    ]:
        if os.path.commonpath([home, path]) == home:
            quarantine.move_file(path, why, env.clock.now_ms())


def _remove_unfinished(env: Env, building: str | None, homes: Sequence[_Home]) -> None:
    """Remove what an interrupted restore has left: it is built again under the same names."""
    for end in BESIDE if building else ():
        env.fs.remove(f"{building}{end}")
    for home in homes:
        if home.damaged:
            remove_database(rocks_folder(home.path) + RESTORING)


def _exchange(env: Env, path: str, building: str, why: str) -> str:
    """Replace the old file by the new one; return the path under which the old one is kept."""
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


def _exchange_rocks(home: str) -> None:
    """Replace RocksDB's folder by the new one; keep the old one. A broker does not start between
    the two steps: see check_storage."""
    place = rocks_folder(home)
    if os.path.exists(place):
        move_database(place, _free(place, "damaged"))
    move_database(place + RESTORING, place)


def _free(path: str, why: str) -> str:
    names = (f"{path}.{why}-{n}" for n in numbers(1))
    return next(n for n in names if not any(os.path.exists(n + end) for end in BESIDE))


def show(folder: str, plan: RestorePlan, kept: str, as_json: bool) -> None:
    partitions = sum(len(topic.partitions) for topic in plan.topics)
    losses = plan.texts()
    if not plan.cluster_id:
        losses.insert(0, "the cluster has a new ID")
    if as_json:
        print_json(
            {
                "data": folder,
                "topics": len(plan.topics),
                "partitions": partitions,
                "damaged": kept or None,
                "losses": losses,
            }
        )
        return
    topics = count(len(plan.topics), "topic")
    print(f"{folder}: {topics}, {count(partitions, 'partition')} restored from the log")
    if kept:
        print(f"The previous metadata is kept as {kept}.")
    if losses:
        print("Not restored, because the log does not have it:")
    for sentence in losses:
        print(f"- {sentence}")
