"""Aborted transactions of the partitions in the journals, found again at a start.

Index files have those of their journals; the scanned rest of a journal has markers, whose
transactions may have begun in an earlier one. So the journals are gone through in their order, and
what is open at the end of one is known to the next. Pure; fed by kafkawire.log.recovery.restore.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL
from kafkawire.codec.control import ABORT, Aborted
from kafkawire.log.journal.index_file import JournalIndex
from kafkawire.log.journal.index_transactions import JournalTransactions
from kafkawire.log.journal.scan import Fact
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.transactions import OFFSET_MAX


class TransactionHistory:
    """Transactions by partition number, as of the journals taken so far."""

    __slots__ = ("_aborted", "_opened")

    def __init__(self) -> None:
        self._aborted: dict[int, list[Aborted]] = {}
        self._opened: dict[int, dict[int, int]] = {}

    def take_index(self, index: JournalIndex) -> None:
        """Take what the index file of the next journal has.

        It leaves out transactions that were committed by the time it was written, so where it has
        rows of a partition it replaces what was known: else a transaction found open in an earlier
        journal, whose index file was lost, would seem to last until its producer's next marker.
        """
        found = index.transactions or JournalTransactions()
        for number in self._opened:
            if number in index:
                self._opened[number] = {}
        for number, entries in found.aborted.items():
            self._aborted.setdefault(number, []).extend(entries)
        for number, opened in found.opened.items():
            self._opened[number] = dict(opened)

    def take_facts(self, number: int, facts: Iterable[Fact]) -> None:
        """Take the batches of a partition that were scanned in the next journal."""
        for _, fields, marker in facts:
            base, attributes, producer_id = fields[0], fields[5], fields[9]
            if not attributes & TRANSACTIONAL:
                continue
            opened = self._opened.setdefault(number, {})
            if not attributes & CONTROL:
                opened.setdefault(producer_id, base)
            elif marker is not None and marker.kind >= 0:
                first = opened.pop(producer_id, None)
                if first is not None and marker.kind == ABORT:
                    self._aborted.setdefault(number, []).append((producer_id, first, base))

    def aborted(self, number: int) -> list[Aborted]:
        """Return the aborted transactions of a partition whose markers are in the journals."""
        return list(self._aborted.get(number, ()))

    def first_open(self, number: int) -> int | None:
        """Return the first offset of the open transactions of a partition; None without any."""
        return min(self._opened.get(number, {}).values(), default=None)

    def give(self, partition: Partition) -> None:
        """Hand a partition, whose borders are known, the aborted transactions that end in its
        journals. Those that it saw end itself, after the checkpoint, it knows best."""
        number, producers = partition.number, partition.producers
        known = producers.transactions
        if number not in self._aborted and known is None:
            return
        by_marker = {entry[2]: entry for entry in self._aborted.pop(number, ())}
        if known is not None:
            by_marker.update((entry[2], entry) for entry in known.aborted.ended_in(0, OFFSET_MAX))
        start = max(partition.cut_offset, partition.log_start)
        producers.load_aborted([entry for entry in by_marker.values() if entry[2] >= start])
