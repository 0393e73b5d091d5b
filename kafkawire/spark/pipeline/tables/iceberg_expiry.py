"""Old snapshots of an Iceberg table, and the files that nothing but they refer to.

The library takes snapshots out of the metadata and leaves all files. Deleted here is, as by
Iceberg's own expireSnapshots, what no snapshot that stays has: lists of manifests, manifests, and
data files that a compaction replaced. The files to delete are noted before the snapshots expire, so
that an interruption leaves no unknown files.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as Loaded
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

NEVER = "gc.enabled"
"""Iceberg's property of tables whose files must not be deleted, since other tables share them."""


def expirable(table: Loaded, before_ms: int) -> list[Snapshot]:
    """Snapshots older than that; not those that a branch or tag names, the newest among them."""
    if table.properties.get(NEVER, "true").lower() == "false":
        return []
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [
        one
        for one in table.metadata.snapshots
        if one.timestamp_ms < before_ms and one.snapshot_id not in named
    ]


def only_theirs(table: Loaded, old: Iterable[Snapshot]) -> set[str]:
    """Paths of all files that only these snapshots of the table have."""
    gone = {one.snapshot_id: one for one in old}
    stay = [one for one in table.metadata.snapshots if one.snapshot_id not in gone]
    kept = _manifests(stay, table.io)
    theirs = {path: one for path, one in _manifests(gone.values(), table.io).items()}
    theirs = {path: one for path, one in theirs.items() if path not in kept}
    data = _data_files(theirs.values(), table.io)
    if data:  # a manifest that was merged into another has the same files as that
        data -= _data_files(kept.values(), table.io)
    return data | set(theirs) | {one.manifest_list for one in gone.values()}


def _manifests(snapshots: Iterable[Snapshot], io: FileIO) -> dict[str, ManifestFile]:
    read = ExecutorFactory.get_or_create().map(lambda one: one.manifests(io), snapshots)
    return {manifest.manifest_path: manifest for manifests in read for manifest in manifests}


def _data_files(manifests: Iterable[ManifestFile], io: FileIO) -> set[str]:
    """Of rows, and of rows' deletion."""
    read = ExecutorFactory.get_or_create().map(
        lambda one: {entry.data_file.file_path for entry in one.fetch_manifest_entry(io)}, manifests
    )
    return set().union(*read)
