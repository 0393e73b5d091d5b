"""Index files of rolled journals: written once their journal is durable, again if that fails.

A journal with an index can be cut, its rows may be evicted from memory, and recovery need not scan
it. Called by kafkawire.log.manager when a journal is rolled, and by kafkawire.log.scheduler to try
again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kafkawire.codec.segment.stored import Step
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.journal.index_file import Extent, JournalTransactions, pack_index, write_index
from kafkawire.log.maintenance.checkpoints import Checkpoints
from kafkawire.log.partition.index_eviction import (
    close_extents,
    evict,
    rows_in,
    transactions_in,
)
from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)


class Indexer:
    """Writes the index files of rolled journals."""

    __slots__ = ("_checkpoints", "_commit_log", "_missing", "_partitions", "_running")

    def __init__(
        self,
        commit_log: CommitLog,
        partitions: Mapping[int, Partition],
        checkpoints: Checkpoints,
    ) -> None:
        self._commit_log = commit_log
        self._partitions = partitions
        self._checkpoints = checkpoints
        # Journals without an index, with its contents as of the roll: a run number that rose since
        # must not get into it. Rows None: they are copied when it is written.
        self._missing: dict[int, tuple[Extent, dict[int, IndexColumns] | None]] = {}
        self._running = False

    def owe(self, journal: Journal, extent: Extent) -> None:
        """Add a journal of an earlier start that has no index."""
        self._missing[journal.number] = extent, None

    def add_journal(self, journal: Journal) -> None:
        """Add a full journal: partitions get their extents in it, and its index is to be
        written."""
        rows = close_extents(journal, self._partitions)
        extent = Extent(
            journal.end, self._commit_log.run, journal.end_log_position, journal.entries
        )
        self._missing[journal.number] = extent, rows

    async def run(self) -> None:
        """Write the missing indexes, then a checkpoint. Raises what the disk or SQL raises."""
        if self._running or not self._missing:
            return
        self._running = True
        try:
            numbers = sorted(self._missing)  # those rolled from here on may not be durable then
            await self._commit_log.disk_sink.wait_until_durable()
            for number in numbers:
                extent, rows = self._missing[number]
                self._missing[number] = extent, None  # if it fails they are copied again
                await self._write(number, extent, rows)
                del self._missing[number]
            # Only rows that an index file has may be evicted.
            evict(self._commit_log.journals, self._partitions)
            await self._checkpoints.save()
        finally:
            self._running = False

    async def _write(
        self, number: int, extent: Extent, rows: dict[int, IndexColumns] | None
    ) -> None:
        """Write one index file, whose journal is durable: the next start trusts it without
        reading the journal."""
        journals = self._commit_log.journals
        journal = journals.by_number.get(number)
        if journal is None:
            return  # recycled meanwhile
        env = self._commit_log.env
        rows = rows_in(journal, self._partitions) if rows is None else rows
        # As of now: one that was committed since the roll is left out.
        found = transactions_in(journal, self._partitions)
        await env.offload.submit(
            "files", write, env.fs, journals.folder, number, extent, rows, found, journal.stored
        )
        journal.indexed, journal.stored = True, []


def write(
    fs: FileSystem,
    folder: str,
    number: int,
    extent: Extent,
    rows: Mapping[int, IndexColumns],
    transactions: JournalTransactions | None,
    stored: Sequence[Step],
) -> None:
    write_index(fs, folder, number, pack_index(number, extent, rows, transactions, stored))
