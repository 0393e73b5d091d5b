"""`kafkawire restore BACKUP --data DIR`: a new data folder from a backup.

Everything is checked before anything is written. The folder is built under a temporary name next to
its final path and renamed, so it appears atomically. It has the topics, settings, groups and
offsets of the backup and no records: every log begins at its previous end, in the next leader
epoch.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafkawire.cli.backup import FORMAT, MANIFEST, METADATA, describe, sync
from kafkawire.cli.restore.failures import failures_reported
from kafkawire.cli.shared.new_folder import new_folder
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.paths import refuse_full, refuse_other_sqlite
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.metadata import copies
from kafkawire.objectstore.url import parse_tier
from kafkawire.plural import count
from kafkawire.tiering.backups import fetch_backup, read_index
from kafkawire.tiering.store.process import StoreProcess


def run(source: str, data: str, metadata: str, as_json: bool) -> None:
    """Run the command."""
    try:
        refuse_other_sqlite("--metadata", metadata, data)
    except OptionError as error:
        fail(error, 2)
    with failures_reported(data, source):
        refuse_full(data)
        with open_backup(source, data) as folder:
            manifest = verify(folder)
            _build(folder, Path(data), metadata, manifest)
    if as_json:
        print_json({"data": data, "metadata": metadata or METADATA, "rows": manifest["rows"]})
    else:
        rows = manifest["rows"]
        print(
            f"{data}: {count(rows['topics'], 'topic')}, {count(rows['partitions'], 'partition')}, "
            f"{count(manifest['group_records'], 'group record')}, verified; a backup has no other "
            "records"
        )


@contextmanager
def open_backup(source: str, data: str) -> Iterator[Path]:
    """Return the folder of a backup: the given one, or the newest one of a URL, downloaded."""
    if "://" not in source:
        yield Path(source)
        return
    target = Path(data).absolute()
    folder = target.with_name(f"{target.name}.fetched")
    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted restore
    try:
        asyncio.run(_fetch(source, folder))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _fetch(url: str, folder: Path) -> None:
    store = StoreProcess(replace(parse_tier(url), create=False))
    try:
        index = await read_index(store)
        newest = None if index is None else index.newest()
        if newest is None:
            raise ClientError(f"{url} holds no complete backup")
        paths = {name: _below(folder, name) for name in newest.files}
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
        await fetch_backup(store, newest, {name: str(path) for name, path in paths.items()})
    finally:
        await store.close()


def _below(folder: Path, name: str) -> Path:
    """Return the target path of a backup file. The manifest is not trusted: paths outside of the
    folder are rejected."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ClientError(f"the backup manifest names {name!r}, a file that no backup has")
    return path


def verify(source: Path) -> dict[str, Any]:
    """Return the manifest of a backup of this version. ClientError or MetadataError if a file is
    missing, changed or added, or the metadata cannot be used."""
    manifest = verify_files(source)
    copies.check(str(source / METADATA))
    if copies.counts(str(source / METADATA)) != manifest["rows"]:
        raise ClientError(f"{source / METADATA} has other row counts than {source / MANIFEST}")
    return manifest


def verify_files(source: Path) -> dict[str, Any]:
    """Return the manifest of a backup. ClientError if a file is missing, changed or added."""
    path = source / MANIFEST
    if not path.is_file():
        raise ClientError(f"{source} is not a backup: it has no {MANIFEST}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        known, files = manifest["format"], dict(manifest["files"])
    except (ValueError, KeyError, TypeError):
        raise ClientError(f"{path} is damaged: restore from another backup") from None
    if known != FORMAT:
        raise ClientError(f"{path} has format version {known}, this kafkawire supports {FORMAT}")
    there = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()} - {MANIFEST}
    for name in sorted(there ^ set(files)):
        what = "is not in the manifest" if name in there else "is missing"
        raise ClientError(f"{source / name} {what}: restore from another backup")
    for name, wanted in files.items():
        if describe(source / name) != wanted:
            raise ClientError(f"{source / name} is damaged: restore from another backup")
    return manifest


def _build(source: Path, data: Path, metadata_url: str, manifest: dict[str, Any]) -> None:
    with new_folder(data, ".restoring") as building:
        target = building / METADATA
        shutil.copyfile(source / METADATA, target)
        copies.remove_records(str(target))
        for path in sorted((source / "groups").glob("*/*")):
            home = building / "brokers" / path.parent.name / "groups"
            home.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, home / path.name)
        copies.check(str(target))
        if metadata_url and not metadata_url.startswith("sqlite"):
            copies.fill(metadata_url, str(target))
            target.unlink()
        sync(building)
