"""`kafkawire restore SRC --data DIR --security`: users, access rules, quotas and tokens.

A bucket has no security tables, so a broker that was restored from it has none either. They are
copied from a backup, or from another data folder, into the metadata of a stopped broker, in one
transaction. What would be done is shown first; rows that differ are replaced only if that is
wanted, and rows that only the target has stay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from kafkawire.cli.backup import MANIFEST, METADATA
from kafkawire.cli.restore.failures import check_url, failures_reported
from kafkawire.cli.restore.from_backup import open_backup, verify_files
from kafkawire.cli.shared.confirm import confirm
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import Data, DryRun, Json, Metadata, Yes, not_empty
from kafkawire.cli.shared.paths import check_metadata_url
from kafkawire.cli.shared.stopped import stopped_brokers
from kafkawire.cli.shared.tables import cell_text, print_table
from kafkawire.client.errors import ClientError
from kafkawire.client.notation import OptionError
from kafkawire.metadata import copies, schema
from kafkawire.metadata.session import Session
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import MetadataError, sqlite_file
from kafkawire.plural import count
from kafkawire.restore import security
from kafkawire.security import versions
from kafkawire.security.quotas.alterations import entity_of
from kafkawire.security.sasl.scram import Hash

MAX_SHOWN = 20
"""Maximum number of different rows that are shown; JSON has all."""
COLUMNS = ("kind", "same", "added", "different", "only_in_target")


class FoundSecurity(NamedTuple):
    """The security tables of one metadata database."""

    cluster_id: str
    source: security.CopySource

    @property
    def tables(self) -> security.Content:
        """The rows that are compared."""
        return self.source.content


def restore(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            callback=not_empty,
            help="Backup folder or its metadata.db, backup.url of a broker (newest backup), or "
            "another data folder.",
        ),
    ],
    data: Data,
    metadata: Metadata = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what is different in the target.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Restore access rules, SCRAM users, quotas and delegation tokens into a stopped broker.

    The older name of `kafkawire restore SRC --security`. A bucket does not have them: run this
    after it was restored. Nothing is deleted.

    Examples:
      kafkawire security restore /backups/today --data new-data --dry-run
      kafkawire security restore /backups/today --data new-data --yes
    """
    _check(source, data, metadata)
    folder = os.path.abspath(data)
    with failures_reported(data, source):
        with _metadata_file(source, data) as file:
            _refuse_same(file, metadata, folder)
            found = copies.read(str(file), _load)
        asyncio.run(_restore(found, source, folder, metadata, replace, dry_run, yes, as_json))


def _check(source: str, data: str, metadata: str) -> None:
    """End the command with exit code 2 if one of its arguments is not valid."""
    try:
        check_metadata_url("--metadata", metadata)
        if "://" in source:
            check_url("SRC", source, "backup location")
        elif "\0" in source or not (os.path.isdir(source) or os.path.isfile(source)):
            allowed = "the folder of a backup or its metadata.db, a backup.url, or a data folder"
            raise OptionError("SRC", source, allowed)
        if not data or "\0" in data:
            raise OptionError("--data", data, "a data folder")
    except OptionError as error:
        fail(error, 2)


@contextmanager
def _metadata_file(source: str, data: str) -> Iterator[Path]:
    """Return the metadata of a backup, whose checksums are verified, or of a data folder."""
    if os.path.isfile(source):
        yield Path(source)
        return
    with open_backup(source, data) as folder:
        if (folder / MANIFEST).is_file():
            verify_files(folder)
        elif not (folder / METADATA).is_file():
            raise ClientError(
                f"{source} is neither a backup nor a data folder with SQLite metadata: it has no "
                f"{MANIFEST} and no {METADATA}"
            )
        yield folder / METADATA


def _refuse_same(file: Path, metadata: str, folder: str) -> None:
    target = sqlite_file(metadata, folder)
    if target is not None and os.path.exists(target) and os.path.samefile(file, target):
        raise ClientError(f"{file} is the metadata of the target itself: give a backup of it")


def _load(session: Session) -> FoundSecurity:
    ((cluster_id,),) = session.rows("SELECT cluster_id FROM cluster")
    return FoundSecurity(cluster_id, security.load_source(session))


async def _restore(
    found: FoundSecurity,
    source: str,
    folder: str,
    metadata_url: str,
    replace: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    async with stopped_brokers(folder, metadata_url) as (_, metadata):
        await _open(metadata)
        target = await metadata.transact(_load)
        plan = security.compare_security(found.tables, target.tables)
        different = sum(len(each.different) for each in plan)
        changed = different + sum(len(each.added) for each in plan)
        refused = bool(different) and not replace
        wanted = bool(changed) and not refused and not dry_run
        if not as_json:
            _show(found, target, plan, source)
        if wanted and not yes:
            confirm(f"Restore this into {metadata.name}?")
        if wanted:
            await metadata.transact(
                lambda session: security.enter_security(session, found.source, plan)
            )
        if as_json:
            print_json(_document(found, target, plan, restored=wanted))
        if refused:
            raise security.CopyRefused(
                f"{count(different, 'row')} of the target would be replaced: nothing was restored; "
                "use --replace if those of the source are right"
            )
        if not as_json:
            print(_conclusion(changed, wanted, metadata.name))


async def _open(metadata: SqlMetadata) -> None:
    """Open the target. A broker migrates an older one, since a dry run changes nothing."""
    stored = await metadata.stored_revision()
    if stored != schema.REVISION:
        raise MetadataError(
            f"{metadata.name} has schema revision {stored or 'none'}, this version needs "
            f"{schema.REVISION}: start a broker of this version once to migrate it"
        )
    await metadata.open()


def _rows(plan: list[security.Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "kind": each.table.title,
            "same": each.same,
            "added": len(each.added),
            "different": len(each.different),
            "only_in_target": each.only_in_target,
        }
        for each in plan
    ]


def _differences(plan: list[security.Comparison]) -> list[str]:
    return [_name(each.table, key) for each in plan for key in each.different]


def _name(table: security.SecurityTable, key: tuple[Any, ...]) -> str:
    """Return a row's name: of whom it is, without what it contains."""
    if table.name == versions.SCRAM_CREDENTIALS:
        known = {int(kind): kind.mechanism for kind in Hash}
        return f"user {key[0]} ({known.get(key[1], key[1])})"
    if table.name == versions.CLIENT_QUOTAS:
        whose = " and ".join(
            f"default {kind}" if name is None else f"{kind} {name}"
            for kind, name in entity_of(key[0])
        )
        return f"{key[1]} of {whose}"
    return f"{table.title}: {key[0]}"


def _document(
    found: FoundSecurity, target: FoundSecurity, plan: list[security.Comparison], restored: bool
) -> dict[str, Any]:
    return {
        "source_cluster_id": found.cluster_id,
        "target_cluster_id": target.cluster_id,
        "tables": _rows(plan),
        "different": _differences(plan),
        "restored": restored,
    }


def _show(
    found: FoundSecurity, target: FoundSecurity, plan: list[security.Comparison], source: str
) -> None:
    print_table(_rows(plan), COLUMNS, f"in {source}, compared with the target")
    if found.cluster_id != target.cluster_id:
        print(f"The source is of cluster {found.cluster_id}, the target of {target.cluster_id}.")
    names = _differences(plan)
    if names:
        print("Different:")
        for name in names[:MAX_SHOWN]:
            print(f"- {cell_text(name)}")
        if len(names) > MAX_SHOWN:
            print(f"- and {len(names) - MAX_SHOWN} more; --json shows them all")


def _conclusion(changed: int, restored: bool, target: str) -> str:
    if not changed:
        return f"{target} has all of it already"
    if not restored:
        return f"{count(changed, 'row')} would be restored"
    return f"{count(changed, 'row')} restored into {target}"
