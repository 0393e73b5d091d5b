"""`kafkawire fsck --data DIR`: consistency check of the data folder of a stopped broker.

Exit code 0: no problem (left), 1: problems found, 2: the folder could not be checked. The checks
are kafkawire.fsck's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Annotated, Any

import typer

from kafkawire.broker.stored_formats import refuse_newer_files
from kafkawire.cli.shared.data_folder import check_sqlite, node_ids
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import Json, Metadata, Wide
from kafkawire.cli.shared.progress import bars
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.codec.format_errors import FormatError
from kafkawire.fsck.check import check
from kafkawire.fsck.report import FsckReport
from kafkawire.log.io.disk import real_env
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.local_manifest.service import ENDED
from kafkawire.log.manager import lock_folder
from kafkawire.log.recovery.identity import (
    IdentityError,
    check_pairing,
    inspect_folder,
    refuse_absent,
)
from kafkawire.metadata import pairing
from kafkawire.metadata.sql import open_metadata
from kafkawire.metadata.store import MetadataError, SqlStore
from kafkawire.offsets.storage.open import kind_in, open_storage
from kafkawire.plural import count
from kafkawire.progress import Progress
from kafkawire.schedules.waiting import FILE_NAME, find_damage, remove_index
from kafkawire.units import size


def run(
    data: Annotated[str, typer.Option(metavar="DIR", help="Data folder of a stopped broker.")],
    metadata: Metadata = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair damage without losing acknowledged records.")
    ] = False,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="With --repair: skip records of which no copy is left."),
    ] = False,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Check that journals, segments, metadata and offsets agree.

    Exit code 0: clean, 1: problems were found, 2: the folder cannot be checked.

    Examples:
      kafkawire fsck --data kafkawire-data
      kafkawire fsck --data kafkawire-data --repair
    """
    if skip_lost and not repair:
        fail("--skip-lost changes data: use it together with --repair", 2)
    logging.disable(logging.CRITICAL)  # findings are printed once, below
    folder = os.path.abspath(data)
    try:
        brokers = node_ids(folder)
        if not metadata:
            check_sqlite(os.path.join(folder, "metadata.db"))
        with bars() as progress:
            reports = asyncio.run(_all(folder, metadata, brokers, repair, skip_lost, progress))
    except (LogError, MetadataError, FormatError) as failure:
        fail(failure, 2)
    except OSError as failure:
        fail(f"{failure.filename or data} cannot be read: {failure.strerror or failure}", 2)
    finally:
        logging.disable(logging.NOTSET)
    if as_json:
        print_json([_as_json(node, report) for node, report in reports.items()])
    else:
        for node, report in reports.items():
            _show(node, report, wide)
    sys.exit(0 if all(report.clean for report in reports.values()) else 1)


async def _all(
    folder: str, url: str, brokers: list[int], repair: bool, skip_lost: bool, progress: Progress
) -> dict[int, FsckReport]:
    env = real_env()
    metadata = open_metadata(url, folder)
    homes = {node: os.path.join(folder, "brokers", str(node)) for node in brokers}
    locks = [lock_folder(env, home) for home in homes.values()]
    reports = {}
    try:
        for home in homes.values():
            refuse_newer_files(env.fs, home)
        if metadata.absent():
            node, home = next(iter(homes.items()))
            refuse_absent(inspect_folder(env.fs, folder, home, node), metadata.name)
        catalog = await metadata.open()
        for node, home in homes.items():
            kind = kind_in(home)
            storage = open_storage(kind, metadata, home, node, env.clock.now_ms, catalog.leader_of)
            try:
                report = await check(env, home, node, catalog, storage, metadata, progress)
                check_schedules(home, report)
                wrong = await _mismatch(env, folder, home, node, metadata)
                if wrong:
                    distrust(report, wrong)
                if repair:
                    await report.repair(skip_lost)
                    env.fs.remove(os.path.join(home, ENDED))  # the manifest belongs to other rows
                reports[node] = report
            finally:
                await storage.close()
    finally:
        await metadata.close()
        for lock in locks:
            lock.release()
        env.offload.close()
    return reports


def check_schedules(home: str, report: FsckReport) -> None:
    """Report a damaged index of waiting records."""
    path = os.path.join(home, FILE_NAME)
    damage = find_damage(path)
    if not damage:
        return

    async def fix() -> None:
        remove_index(path)

    report.add(
        FILE_NAME,
        f"the index of waiting records is damaged: {damage}",
        "it is removed; the next start makes it again from the schedule topics",
        fix,
    )


async def _mismatch(env: Env, folder: str, home: str, node: int, metadata: SqlStore) -> str:
    """Return why folder and metadata do not belong together, in one sentence; empty if they do."""
    stored = await metadata.transact(lambda session: pairing.load(session, node))
    try:
        check_pairing(inspect_folder(env.fs, folder, home, node), stored, metadata.name)
    except IdentityError as failure:
        return str(failure)
    return ""


def distrust(report: FsckReport, why: str) -> None:
    """Report that the metadata belongs to another folder, so nothing is repaired by it."""
    for problem in report.problems:
        problem.harmless, problem.repair, problem.fix, problem.skip = False, "", None, None
    report.add("metadata", why)


def _rows(report: FsckReport) -> list[dict[str, Any]]:
    return [
        {
            "where": problem.where,
            "what": problem.text,
            "harmless": problem.harmless,
            "repair": problem.repair or None,
            "repaired": problem.repaired,
        }
        for problem in report.problems
    ]


def _as_json(node: int, report: FsckReport) -> dict[str, Any]:
    return {
        "node_id": node,
        "clean": report.clean,
        "journals": report.journals,
        "segments": report.segments,
        "partitions": report.partitions,
        "bytes": report.size_bytes,
        "open_transactions": report.open_transactions,
        "aborted_transactions": report.aborted_transactions,
        "markers_without_records": report.lone_markers,
        "problems": _rows(report),
    }


def _show(node: int, report: FsckReport, wide: bool) -> None:
    rows = _rows(report)
    if rows:
        columns = ("where", TableColumn("what", keep=True), "harmless", "repaired", "repair")
        print_table(rows, columns, f"broker {node}", wide)
    wrong = sum(not p.harmless and not p.repaired for p in report.problems)
    print(
        f"broker {node}: {count(report.journals, 'journal')}, "
        f"{count(report.segments, 'segment')}, {count(report.partitions, 'partition')}, "
        f"{size(report.size_bytes)}: " + ("clean" if report.clean else count(wrong, "problem"))
    )
    if report.open_transactions or report.aborted_transactions:
        print(
            f"broker {node}: {report.open_transactions} open and {report.aborted_transactions} "
            "aborted transactions, counted in each of their partitions"
        )
    lost = sum(p.skip is not None and not p.repaired for p in report.problems)
    if lost:
        print(
            f"broker {node}: {lost} of them are lost records; if there is no other copy, "
            "--repair --skip-lost marks them as lost, and consumers skip them"
        )
