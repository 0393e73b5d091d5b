"""`check`: one broker's data folder, all of it: journals, segments, rows and offsets.

No broker may use the folder meanwhile: the caller holds its lock. Called by kafkawire.cli.fsck and
by the simulation after each crash.
"""

from __future__ import annotations

import os.path

from kafkawire.fsck.journals import JournalCheck
from kafkawire.fsck.offsets import cut_end, find_beyond, find_missing, stored_end
from kafkawire.fsck.report import FsckReport, GiveUp
from kafkawire.fsck.segments import SegmentCheck
from kafkawire.fsck.transactions import TransactionCheck
from kafkawire.log.io.ports import Env
from kafkawire.log.partition.damaged_ranges import find_uncovered
from kafkawire.log.recovery.identity import rebuild_command
from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.store import Metadata
from kafkawire.offsets.catalog.port import PartitionRow, SegmentCatalog
from kafkawire.progress import Progress, silent
from kafkawire.restore.data_folder import gather_from_folder
from kafkawire.restore.evidence import FolderEvidence
from kafkawire.restore.findings import find_differences

PARTITIONS_AT_ONCE = 1000
"""Rows of one round trip to the storage."""


async def check(
    env: Env,
    home: str,
    node_id: int,
    catalog: Catalog,
    storage: SegmentCatalog,
    metadata: Metadata,
    progress: Progress = silent,
) -> FsckReport:
    """Return everything that is wrong under `home` (`<data>/brokers/<node_id>`).

    Changes nothing; `FsckReport.repair` does. Raises LogError, FormatError if a newer program has
    written the files, MetadataError and OSError if nothing can be read.
    """
    seen = gather_from_folder(env, home, silent, await storage.load_log_position(node_id))
    folder = FolderCheck(env, home, node_id, catalog, storage, metadata, progress, seen)
    await folder.run()
    return folder.report


async def _topics(
    journals: JournalCheck, catalog: Catalog, metadata: Metadata, report: FsckReport
) -> None:
    """Report topics in the journals that the metadata knows neither as existing nor as deleted."""
    strange: set[str] = set()
    unknown: set[int] = set()
    for number in journals.held.ranges:
        where = catalog.locate(number)
        if where is None:
            unknown.add(number)
            continue
        names = journals.held.names.get(number, {})
        strange.update(name for each, name in names.items() if each != where.topic_id)
    unknown -= await metadata.known_partitions(unknown) if unknown else set()
    if unknown:
        strange |= journals.not_deleted(unknown)
    for name in sorted(strange):
        report.add(
            f"topic {name}",
            "its records are in the journals, and the metadata does not know it: put the newest "
            "copy of the metadata back, or rebuild it with `kafkawire restore --from-log`",
        )

    async def run(self) -> None:
        """Add everything that is wrong to the report."""
        try:
            await self._check_topics()
            await self._check_partitions(await self._segments.run())
        finally:
            self._transactions.close()

async def _partitions(
    catalog: Catalog,
    node_id: int,
    storage: SegmentCatalog,
    held: JournalContents,
    usable: set[int],
    report: FsckReport,
    progress: Progress,
    give_up: GiveUp,
    transactions: TransactionCheck,
    segments: SegmentCheck,
    seen: FolderEvidence,
    rebuild: str,
) -> None:
    last = catalog.last_number()
    for first in count(0, PARTITIONS_AT_ONCE):
        if first > last:
            break
        progress("partitions", first, last + 1)
        some = range(first, min(first + PARTITIONS_AT_ONCE, last + 1))
        numbers = [number for number in some if catalog.leader_of(number) == node_id]
        rows = await storage.load_partitions(numbers)
        usable |= await segments.of_others(rows)
        for row in rows:
            report.partitions += 1
            where = catalog.locate(row.number)
            assert where is not None, "only those of the catalog are asked for"
            for problem in find_beyond(row):
                report.add(f"{where.topic}-{where.index}", problem)
            ranges = held.ranges.get(row.number, [])
            next_offset = held.next_offset(row.number, stored_end(row))
            name, border = f"{where.topic}-{where.index}", cut_end(row)
            wrong = list(find_differences(seen, catalog, row, held.recovered.checkpoint))
            for each in wrong:
                report.add(name, f"{each.text}: rebuild the metadata with {rebuild}")
            unmapped = sorted(part for each in wrong for part in each.unmapped)
            # What a file has without a mapping is not lost: a rebuild restores it.
            absent = [
                part
                for gap in find_missing(row, usable, ranges, next_offset)
                for part in find_uncovered(*gap, unmapped)
            ]
            # A batch that is missing in the journals may have begun or ended a transaction.
            if all(end <= border for _, end in absent):
                transactions.run(name, row)
            for start, end in absent:
                text = f"offsets {start}-{end - 1} are in no segment and no journal"
                # The check of the segment offers a repair.
                if start < border:
                    report.add(name, text)
                elif give_up.offsets(row.number, where.topic_id, start, end):
                    text += "; they were given up, and the broker cuts past them"
                    report.add(name, text, harmless=True)
                else:
                    report.add(name, text, skip=None if wrong else give_up.fix)
    progress("partitions", last + 1, last + 1)
