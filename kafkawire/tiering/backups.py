"""Backups in an object store: one prefix each, an index that names them, and rotation.

    index.json                    which backups there are and their files, newest last
    <name>/manifest.json, ...     the files of one, as kafkawire.cli.backup writes them

The index names everything in the bucket, so no listing is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.tiering.store.port import ObjectStore

INDEX = "index.json"
FORMAT = 1
DELETED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Backup:
    """One backup. `files`: their names below its prefix."""

    name: str
    created_ms: int
    complete: bool
    files: list[str]


@dataclass(slots=True)
class Index:
    """The index of a backup store; `cluster_id`: the cluster whose backups it holds."""

    cluster_id: str
    backups: list[Backup] = field(default_factory=list)

    def newest(self) -> Backup | None:
        return next((each for each in reversed(self.backups) if each.complete), None)


async def read_index(store: ObjectStore) -> Index | None:
    """Read the index; None if there is none yet. Raises StoreError if it cannot be read or has a
    newer format."""
    try:
        data, _ = await store.get(INDEX)
    except NoSuchObject:
        return None
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise StoreError("UnknownFormat", f"{INDEX} has format {found['format']!r}, not 1")
        rows = [
            Backup(str(row["name"]), int(row["created_ms"]), bool(row["complete"]),
                   [str(name) for name in row["files"]])
            for row in found["backups"]
        ]  # fmt: skip
        return Index(str(found["cluster_id"]), rows)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError("Damaged", f"{INDEX} is damaged: {error!r}") from None


async def _write_index(store: ObjectStore, index: Index) -> None:
    rows = [asdict(each) for each in index.backups]
    body = {"format": FORMAT, "cluster_id": index.cluster_id, "backups": rows}
    await store.put(INDEX, json.dumps(body).encode())


def name_of(created_ms: int) -> str:
    """Return the name of a backup begun at a time; names sort by time."""
    return datetime.fromtimestamp(created_ms / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


async def store_backup(
    store: ObjectStore,
    cluster_id: str,
    created_ms: int,
    files: Mapping[str, str],
    keep: int,
) -> Backup:
    """Upload a backup (name below its prefix -> local path). Delete all but the newest `keep`
    backups, and those never completed. Raises StoreError, OSError."""
    index = await read_index(store) or Index(cluster_id)
    if index.cluster_id != cluster_id:
        raise StoreError("ForeignBackups", f"it holds backups of cluster {index.cluster_id}")
    begun = Backup(name_of(created_ms), created_ms, False, sorted(files))
    index.backups = [*(each for each in index.backups if each.name != begun.name), begun]
    # Before its first file, as not complete: after a crash the next backup deletes what it names.
    await _write_index(store, index)
    for name in begun.files:
        await store.upload(f"{begun.name}/{name}", files[name])
    done = Backup(begun.name, created_ms, True, begun.files)
    index.backups[-1] = done
    await _write_index(store, index)
    await _rotate(store, index, keep)
    return done


async def _rotate(store: ObjectStore, index: Index, keep: int) -> None:
    complete = [each for each in index.backups if each.complete]
    kept = complete[-keep:]
    gone = [each for each in index.backups if each not in kept]
    if not gone:
        return
    # First mark them as incomplete, so that no reader uses one with missing files.
    index.backups = [
        Backup(each.name, each.created_ms, each in kept, each.files) for each in index.backups
    ]
    await _write_index(store, index)
    for each in gone:
        keys = [f"{each.name}/{name}" for name in each.files]
        for at in range(0, len(keys), DELETED_AT_ONCE):
            await store.delete(keys[at : at + DELETED_AT_ONCE])
    index.backups = kept
    await _write_index(store, index)


async def fetch_backup(store: ObjectStore, backup: Backup, paths: Mapping[str, str]) -> None:
    """Download the files of a backup to `paths` (by name). Raises StoreError, OSError."""
    for name in backup.files:
        await store.download(f"{backup.name}/{name}", paths[name])
