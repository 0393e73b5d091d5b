"""`kafkawire restore SRC --data DIR`: the source decides what is restored.

A backup (`from_backup`), a tier (`from_bucket`) or the copies of a follower (`from_follower`)
restore a new data folder, and the data folder itself its own metadata (`from_log`). `--security`
restores only the security tables of a backup, into a folder that exists (`security`).
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Annotated

import typer

from kafkawire.cli.backup import MANIFEST
from kafkawire.cli.restore.failures import check_url
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import Data, DryRun, Json, Metadata, Yes
from kafkawire.cli.shared.paths import check_metadata_url
from kafkawire.client.notation import OptionError
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.manifest.keys import SEGMENTS
from kafkawire.objectstore.errors import StoreError
from kafkawire.objectstore.url import parse_tier
from kafkawire.restore.follower_copies import list_copy_folders
from kafkawire.tiering.backups import read_index
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
            help="Backup folder, backup.url of a broker (newest backup), tier (URL or folder), "
            "copies of a follower (OTHER-DIR/replicas), or the data folder itself (as --from-log).",
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
            help="With --from-log: the remote tier, if not the one last used. With copies of a "
            "follower: the remote tier of the broker.",
        ),
    ] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    security: Annotated[
        bool,
        typer.Option(
            "--security",
            help="Restore only users, access rules, quotas and tokens of SRC, a backup or a data "
            "folder, into a stopped broker.",
        ),
    ] = False,
    replace_rows: Annotated[
        bool,
        typer.Option("--replace", help="With --security: replace what is different in DIR."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="First read every object of a tier and verify it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Restore a data folder from a backup or a bucket, or metadata from the log.

    A backup restores topics, settings, groups and offsets, but no records. A tier restores these,
    and records stay in it: what is doubtful or lost is listed, and the broker that wrote there must
    never run again. From its own log, a data folder gets the metadata that journals, segments and
    the remote tier have, and losses are listed. Copies of a follower restore a lost broker with
    durability=replicated in the same way, in a new folder. A tier and a log have no access rules,
    SCRAM users, quotas and delegation tokens: add those of a backup with --security. It deletes
    nothing.

    Examples:
      kafkawire restore /backups/today --data new-data
      kafkawire restore s3://bucket/backups --data new-data
      kafkawire restore s3://BUCKET/PREFIX --data new-data --dry-run
      kafkawire restore /backups/today --data new-data --security
      kafkawire restore --from-log --data kafkawire-data
      kafkawire restore data-2/replicas/1 --data new-data --tier s3://BUCKET/PREFIX
    """
    if from_log == bool(source):
        fail("give either the folder of a backup, a tier or a data folder, or --from-log", 2)
    if replace_rows and not security:
        fail("--replace needs --security", 2)
    if security:
        if from_log or tier or deep:
            fail("--security restores from a backup or a data folder: give it as SRC", 2)
        from kafkawire.cli.restore.security import restore as restore_security

        restore_security(source, data, metadata, replace_rows, dry_run, yes, as_json)
        return
    _check(source, metadata, tier)
    kind = RestoreSource.LOG if from_log else _kind_of(source, data)
    if kind is RestoreSource.TIER:
        from kafkawire.cli.restore import from_bucket

        from_bucket.run("SRC", source, data, dry_run, yes, deep, metadata, as_json)
        return
    if dry_run or deep:
        fail("--dry-run and --deep need a tier as the source", 2)
    if kind is RestoreSource.LOG:
        from kafkawire.cli.restore import from_log as log

        log.run(data, metadata, tier, as_json)
    elif kind is RestoreSource.FOLLOWER:
        from kafkawire.cli.restore import from_follower

        from_follower.run(source, data, metadata, tier, as_json)
    else:
        from kafkawire.cli.restore import from_backup

        from_backup.run(source, data, metadata, as_json)


class RestoreSource(Enum):
    """LOG: the data folder itself."""

    BACKUP = auto()
    TIER = auto()
    FOLLOWER = auto()
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
        if list_copy_folders(DiskFileSystem(), source):
            return RestoreSource.FOLLOWER
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
