"""`kafkawire restore SRC --data DIR`: the source decides what is restored.

A tier restores a new data folder (`from_bucket`), the data folder itself its own metadata
(`from_log`), and a backup a new data folder, here: everything is checked before anything is
written. The folder is built under a temporary name next to its final path and renamed, so it
appears atomically. It has the topics, settings, groups and offsets of the backup and no records:
every log begins at its previous end, in the next leader epoch.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any

import typer

from kafkawire.cli.backup.backup import FORMAT, MANIFEST, METADATA, describe, sync
from kafkawire.cli.shared.new_folder import new_folder
from kafkawire.cli.shared.options import OptionError
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import Data, DryRun, Json, Metadata, Yes
from kafkawire.cli.shared.paths import check_metadata_url, refuse_full
from kafkawire.client.errors import ClientError
from kafkawire.manifest.keys import SEGMENTS
from kafkawire.metadata import copies
from kafkawire.metadata.store import MetadataError
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.url import parse_tier
from kafkawire.plural import count
from kafkawire.tiering.backups import fetch_backup, read_index
from kafkawire.tiering.store.process import StoreProcess
from kafkawire.tiering.store.tiers import NODES

TIER_PREFIXES = ("manifest/", SEGMENTS, f"{NODES}/")
"""One of these is in each tier, and none in a location of backups."""


def restore(
    data: Data,
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SRC]",
            help="Backup folder, backup.url of a broker (newest backup), tier (URL or folder), or "
            "the data folder itself (as --from-log).",
            show_default=False,
        ),
    ] = "",
    from_log: Annotated[
        bool,
        typer.Option(
            "--from-log",
            help="Rebuild lost or damaged metadata of a stopped broker from its log.",
        ),
    ] = False,
    metadata: Metadata = "",
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            metavar="URL",
            help="With --from-log: the remote tier, if not the one last used.",
        ),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="First read every object of a tier and verify it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a data folder from a backup or a bucket, or metadata from the log.

    A backup restores topics, settings, groups and offsets, but no records. A tier restores these,
    and records stay in it: what is doubtful or lost is listed, and the broker that wrote there must
    never run again. From its own log, a data folder gets the metadata that journals, segments and
    the remote tier have, and losses are listed.

    Examples:
      kafkawire restore /backups/today --data new-data
      kafkawire restore s3://bucket/backups --data new-data
      kafkawire restore s3://BUCKET/PREFIX --data new-data --dry-run
      kafkawire restore --from-log --data kafkawire-data
    """
    if from_log == bool(source):
        fail("give either the folder of a backup, a tier or a data folder, or --from-log", 2)
    _check(source, metadata, tier)
    kind = RestoreSource.LOG if from_log else _kind_of(source, data)
    if kind is RestoreSource.TIER:
        from kafkawire.cli.restore import from_bucket

        from_bucket.run("SRC", source, data, dry_run, yes, deep, metadata, as_json)
        return
    if dry_run or deep:
        fail("--dry-run and --deep need a tier as the source", 2)
    if kind is RestoreSource.LOG:
        from kafkawire.cli.restore.from_log import run

        run(data, metadata, tier, as_json)
        return
    try:
        refuse_full(data)
        with fetched(source, data) as folder:
            manifest = verify(folder)
            _restore(folder, Path(data), metadata, manifest)
    except (ClientError, MetadataError, ValueError) as error:
        fail(error)
    except StoreError as error:
        fail(f"{source} cannot be read: {error}")
    except OSError as error:
        fail(f"{data} cannot be written: {error}")
    if as_json:
        print_json({"data": data, "metadata": metadata or METADATA, "rows": manifest["rows"]})
    else:
        rows = manifest["rows"]
        print(
            f"{data}: {count(rows['topics'], 'topic')}, {count(rows['partitions'], 'partition')}, "
            f"{count(manifest['group_records'], 'group record')}, verified; a backup has no other "
            "records"
        )


class RestoreSource(Enum):
    """LOG: the data folder itself."""

    BACKUP = auto()
    TIER = auto()
    LOG = auto()


def _kind_of(source: str, data: str) -> RestoreSource:
    """Return what a source is. One that holds backups and a tier is a backup, as before there was
    a choice; so is one that holds nothing, for which a restore then fails."""
    if "://" not in source:
        if os.path.exists(data) and os.path.samefile(source, data):
            return RestoreSource.LOG
        folder = Path(source)
        if (folder / MANIFEST).is_file():
            return RestoreSource.BACKUP
        is_tier = any((folder / prefix).is_dir() for prefix in TIER_PREFIXES)
        return RestoreSource.TIER if is_tier else RestoreSource.BACKUP
    try:
        return asyncio.run(_kind_of_url(source))
    except StoreError as error:
        fail(f"{source} cannot be read: {error}")


async def _kind_of_url(url: str) -> RestoreSource:
    store = StoreProcess(replace(parse_tier(url), create=False))
    try:
        if await read_index(store) is not None:
            return RestoreSource.BACKUP
        for prefix in TIER_PREFIXES:
            if await store.list(prefix, "", 1):
                return RestoreSource.TIER
        return RestoreSource.BACKUP
    finally:
        await store.close()


def _check(source: str, metadata: str, tier: str) -> None:
    """End the command with exit code 2 if one of its arguments is not valid."""
    try:
        check_metadata_url("--metadata", metadata)
        if source and "://" not in source and not os.path.isdir(source):
            raise OptionError("SRC", source, "the folder of a backup or a tier, or a URL")
        if "://" in source:
            check_url("SRC", source, "backup location")
        if tier:
            check_url("--tier", tier, "tier")
    except OptionError as error:
        fail(error, 2)


def check_url(option: str, url: str, what: str) -> None:
    """End the command with exit code 2 unless the URL is one of a store of objects."""
    try:
        parse_tier(url, what=what)
    except ValueError as error:
        fail(f"{option}: {error}", 2)


@contextmanager
def fetched(source: str, data: str) -> Iterator[Path]:
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


def _restore(source: Path, data: Path, metadata_url: str, manifest: dict[str, Any]) -> None:
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
