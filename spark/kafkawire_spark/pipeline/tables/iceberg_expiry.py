"""Find old snapshots of an Iceberg table, and the files that only they refer to.

The library removes snapshots from the metadata but deletes no files. As in Iceberg's
expireSnapshots, files without a reference from a remaining snapshot are deleted here: manifest
lists, manifests, and data files that a compaction replaced. They are recorded before the snapshots
expire, so that an interruption leaves no unknown files.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory

NEVER = "gc.enabled"
"""Iceberg's property of tables whose files must not be deleted, because other tables share them."""


def expirable(table: PyIcebergTable, before_ms: int) -> list[Snapshot]:
    """Return snapshots older than that, without those that a branch or tag names, such as the
    newest."""
    if table.properties.get(NEVER, "true").lower() == "false":
        return []
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return [
        one
        for one in table.metadata.snapshots
        if one.timestamp_ms < before_ms and one.snapshot_id not in named
    ]


def only_theirs(table: PyIcebergTable, old: Iterable[Snapshot]) -> set[str]:
    """Return the paths of all files that only these snapshots of the table refer to."""
    gone = {one.snapshot_id: one for one in old}
    stay = [one for one in table.metadata.snapshots if one.snapshot_id not in gone]
    kept = _manifests(stay, table.io)
    theirs = {path: one for path, one in _manifests(gone.values(), table.io).items()}
    theirs = {path: one for path, one in theirs.items() if path not in kept}
    data = _data_files(theirs.values(), table.io)
    if data:  # a merged manifest has the same files as its result
        data -= _data_files(kept.values(), table.io)
    return data | set(theirs) | {one.manifest_list for one in gone.values()}


def _manifests(snapshots: Iterable[Snapshot], io: FileIO) -> dict[str, ManifestFile]:
    read = ExecutorFactory.get_or_create().map(lambda one: one.manifests(io), snapshots)
    return {manifest.manifest_path: manifest for manifests in read for manifest in manifests}


def _data_files(manifests: Iterable[ManifestFile], io: FileIO) -> set[str]:
    """Return the files of rows and of deleted rows."""
    read = ExecutorFactory.get_or_create().map(
        lambda one: {entry.data_file.file_path for entry in one.fetch_manifest_entry(io)}, manifests
    )
    return set().union(*read)
