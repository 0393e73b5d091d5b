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


class FolderCheck:
    """One check of a data folder, whose journals are read when it is made. `seen`: what is in its
    files, for the comparison with the metadata."""

    def __init__(
        self,
        env: Env,
        home: str,
        node_id: int,
        catalog: Catalog,
        storage: SegmentCatalog,
        metadata: Metadata,
        progress: Progress,
        seen: FolderEvidence,
    ) -> None:
        self.report = report = FsckReport()
        self._node_id = node_id
        self._catalog = catalog
        self._storage = storage
        self._metadata = metadata
        self._progress = progress
        self._seen = seen
        self._rebuild = rebuild_command(os.path.dirname(os.path.dirname(home)))
        self._give_up = GiveUp(env, home)
        self._journals = JournalCheck(
            env, home, catalog.name_of, report, progress, self._give_up, seen
        )
        # First the journals: what they have is no loss where a segment lacks it.
        self._held = held = self._journals.run()
        self._segments = SegmentCheck(
            env, home, node_id, storage, report, progress, catalog, held, metadata.known_partitions
        )
        self._transactions = TransactionCheck(
            env.fs, self._segments.intact, held.transactions, report, self._journals.without_index
        )

    async def run(self) -> None:
        """Add everything that is wrong to the report."""
        try:
            await self._check_topics()
            await self._check_partitions(await self._segments.run())
        finally:
            self._transactions.close()

    async def _check_topics(self) -> None:
        """Report the topics in the journals that the metadata does not know, neither existing nor
        deleted."""
        strange: set[str] = set()
        unknown: set[int] = set()
        for number in self._held.ranges:
            where = self._catalog.locate(number)
            if where is None:
                unknown.add(number)
                continue
            names = self._held.names.get(number, {})
            strange.update(name for each, name in names.items() if each != where.topic_id)
        unknown -= await self._metadata.known_partitions(unknown) if unknown else set()
        if unknown:
            strange |= self._journals.not_deleted(unknown)
        for name in sorted(strange):
            self.report.add(
                f"topic {name}",
                "its records are in the journals, and the metadata does not know it: put the "
                "newest copy of the metadata back, or rebuild it with "
                "`kafkawire restore --from-log`",
            )

    async def _check_partitions(self, usable: set[int]) -> None:
        """Check the partitions that this broker leads. `usable`: the segments that can be read."""
        last = self._catalog.last_number()
        for first in range(0, last + 1, PARTITIONS_AT_ONCE):
            self._progress("partitions", first, last + 1)
            some = range(first, min(first + PARTITIONS_AT_ONCE, last + 1))
            led = [number for number in some if self._catalog.leader_of(number) == self._node_id]
            rows = await self._storage.load_partitions(led)
            usable |= await self._segments.of_others(rows)
            for row in rows:
                self._check_partition(row, usable)
        self._progress("partitions", last + 1, last + 1)

    def _check_partition(self, row: PartitionRow, usable: set[int]) -> None:
        report = self.report
        report.partitions += 1
        where = self._catalog.locate(row.number)
        assert where is not None, "only those of the catalog are asked for"
        name, border = f"{where.topic}-{where.index}", cut_end(row)
        for problem in find_beyond(row):
            report.add(name, problem)
        wrong = list(
            find_differences(self._seen, self._catalog, row, self._held.recovered.checkpoint)
        )
        for each in wrong:
            report.add(name, f"{each.text}: rebuild the metadata with {self._rebuild}")
        unmapped = sorted(part for each in wrong for part in each.unmapped)
        ranges = self._held.ranges.get(row.number, [])
        next_offset = self._held.next_offset(row.number, stored_end(row))
        absent = [
            part
            for gap in find_missing(row, usable, ranges, next_offset)
            # What is only unmapped is no loss: a rebuild restores it.
            for part in find_uncovered(*gap, unmapped)
        ]
        # A batch that is missing in the journals may have begun or ended a transaction.
        if all(end <= border for _, end in absent):
            self._transactions.run(name, row)
        for start, end in absent:
            text = f"offsets {start}-{end - 1} are in no segment and no journal"
            if start < border:
                # The check of the segment offers a repair.
                report.add(name, text)
            elif self._give_up.offsets(row.number, where.topic_id, start, end):
                text += "; they were given up, and the broker cuts past them"
                report.add(name, text, harmless=True)
            else:
                report.add(name, text, skip=None if wrong else self._give_up.fix)
