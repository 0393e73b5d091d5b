"""Fill the partitions with what recovery found and what SQL has of them.

Next offset = max(checkpoint, scan); rows go to the hot index as far as its bound allows, newest
journals first; batches after the checkpoint are replayed into the producers' state and the leader
epochs. Called by kafkawire.log.manager at start, before anything else runs.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL,
    HEAD,
    LEADER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from kafkawire.codec.control import ABORT, Aborted
from kafkawire.log.io.ports import FileSystem
from kafkawire.log.journal.file import POSITION_MASK, Journal
from kafkawire.log.journal.format import batch_starts
from kafkawire.log.journal.index_columns import ROW_BYTES, IndexColumns
from kafkawire.log.journal.index_file import JournalIndex, JournalTransactions
from kafkawire.log.journal.losses import Loss
from kafkawire.log.journal.scan import Fact, marker_of
from kafkawire.log.partition.index_eviction import MAX_INDEX_BYTES, add_extent
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.stored_rows import finish, take_row
from kafkawire.log.partition.transactions import OFFSET_MAX
from kafkawire.log.recovery.earlier_terms import EarlierTerms
from kafkawire.log.recovery.result import Recovered, RecoveredJournal
from kafkawire.offsets.catalog.port import PartitionRow

logger = logging.getLogger(__name__)


# Aborted transactions of the partitions in the journals, found again at a start.
#
# Index files have those of their journals; the scanned rest of a journal has markers, whose
# transactions may have begun in an earlier one. So the journals are gone through in their order,
# and what is open at the end of one is known to the next.


class TransactionHistory:
    """Transactions by partition number, as of the journals taken so far."""

    __slots__ = ("_aborted", "_ends", "_opened", "_taken")

    def __init__(self) -> None:
        self._aborted: dict[int, list[Aborted]] = {}
        self._opened: dict[int, dict[int, int]] = {}
        # Of partitions with open transactions: where their rows end so far, and in which journal.
        self._ends: dict[int, tuple[int, int]] = {}
        self._taken: list[int] = []  # the numbers of the journals

    def take_journal(self, found: RecoveredJournal, index: JournalIndex | None) -> None:
        """Take the next journal, with its index file if it has one."""
        self._taken.append(found.journal.number)
        for number in [number for number, opened in self._opened.items() if opened]:
            parts = _rows_of(found, index, number)
            if parts and self._misses_rows(number, parts[0].base[0]):
                self.forget_open(number)
        # Before the scanned rest, which follows it in the journal.
        if index is not None:
            self.take_index(index)
        for number, facts in found.scanned.facts.items():
            self.take_facts(number, facts)
        for number, opened in self._opened.items():
            parts = _rows_of(found, index, number) if opened else []
            if parts:
                end = parts[-1].base[-1] + parts[-1].count[-1]
                self._ends[number] = (end, found.journal.number)

    def _misses_rows(self, number: int, first: int) -> bool:
        """Return whether rows of a partition before the one at offset `first` were in journals that
        are gone. Rows that were damaged are not: a marker among them may have ended nothing."""
        if number not in self._ends:
            return False
        end, journal = self._ends[number]
        since = len(self._taken) - bisect_left(self._taken, journal)
        return first > end and since <= self._taken[-1] - journal

    def forget_open(self, number: int) -> None:
        """Forget the open transactions of a partition: batches after them are in segments only."""
        # A journal goes as soon as nothing in it is needed, also one between two that stay. Those
        # batches may have ended the transactions, and begun others of the same producers, whose
        # markers would seem to end the former. Whatever is in segments has its aborted transactions
        # there, and one that goes on in the journals begins with its first batch there.
        self._opened[number] = {}

    def take_index(self, index: JournalIndex) -> None:
        found = index.transactions or JournalTransactions()
        # An index leaves out what was committed when it was written, so it replaces what was known
        # of its partitions. Else a transaction found open in an earlier journal, whose index file
        # was lost, would seem to last until its producer's next marker.
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
            base, producer_id = fields[BASE_OFFSET], fields[PRODUCER_ID]
            attributes = fields[ATTRIBUTES]
            # Batches of idempotent producers alone have no transaction.
            if not attributes & TRANSACTIONAL:
                continue
            opened = self._opened.setdefault(number, {})
            if not attributes & CONTROL:
                opened.setdefault(producer_id, base)
            elif marker is not None and marker.kind >= 0:
                # A coordinator that was restarted sends markers again: then nothing is open.
                first = opened.pop(producer_id, None)
                if first is not None and marker.kind == ABORT:
                    self._aborted.setdefault(number, []).append(Aborted(producer_id, first, base))

    def list_aborted(self, number: int) -> list[Aborted]:
        """Return the aborted transactions of a partition whose markers are in the journals."""
        return list(self._aborted.get(number, ()))

    def first_open(self, number: int) -> int | None:
        """Return the first offset of the open transactions of a partition; None without any."""
        return min(self._opened.get(number, {}).values(), default=None)

    def give(self, partition: Partition) -> None:
        """Pass a partition, whose borders are known, the aborted transactions that end in its
        journals."""
        number, producers = partition.number, partition.producers
        known = producers.transactions
        if number not in self._aborted and known is None:
            return
        by_marker = {entry.marker: entry for entry in self._aborted.pop(number, ())}
        if known is not None:
            # Those that it saw end itself, after the checkpoint, it knows best.
            seen = known.aborted.ended_in(0, OFFSET_MAX)
            by_marker.update((entry.marker, entry) for entry in seen)
        # Those below are in segments, or gone.
        start = max(partition.cut_offset, partition.log_start)
        producers.load_aborted([entry for entry in by_marker.values() if entry.marker >= start])


def _rows_of(
    found: RecoveredJournal, index: JournalIndex | None, number: int
) -> list[IndexColumns]:
    ((_, parts),) = found.rows_by_partition(index, [number])
    return parts


def load_partitions(
    fs: FileSystem,
    partitions: Mapping[int, Partition],
    recovered: Recovered,
    log_position: int,
    rows: Sequence[PartitionRow],
    bounds: Mapping[int, int] | None = None,
    terms: EarlierTerms | None = None,
) -> tuple[set[int], list[Loss], list[int]]:
    """Fill the partitions; return the numbers of those written since the checkpoint, the offsets
    that may have been lost at the ends of partitions, and the partitions of which the journals have
    records before the checkpoint that their row lacks: it is older than the checkpoint.

    `log_position` is that of the checkpoint, `rows` what is stored of the partitions, `bounds` the
    ledger's if there is one, `terms` leaves out records of earlier terms.
    """
    # The checkpoint first: scanned rows can only raise what it says.
    for row in rows:
        if row.number in partitions:
            take_row(partitions[row.number], row)
    written: set[int] = set()
    older: list[int] = []
    history = TransactionHistory()
    loaded_from = _first_loaded(recovered.found)
    for at, found in enumerate(recovered.found):
        in_memory = at >= loaded_from
        _load_journal(fs, partitions, found, log_position, in_memory, written, history, terms,
                      older)  # fmt: skip
    # A partition may have been named and its frames cut or damaged after that.
    for number, naming in recovered.namings.items():
        if number in partitions:
            partition = partitions[number]
            partition.next_offset = max(partition.next_offset, naming.next_offset)
    # After all rows are known: damage matters where nothing readable follows it.
    losses = _pass_over(partitions, recovered, bounds) if recovered.damage else []
    # They need a checkpoint, and a raised epoch, as if written.
    written.update(loss.number for loss in losses)
    for partition in partitions.values():
        finish(partition)
        history.give(partition)
    return written, losses, older


def _pass_over(
    partitions: Mapping[int, Partition], recovered: Recovered, bounds: Mapping[int, int] | None
) -> list[Loss]:
    """Raise next offsets above everything that damage may have removed from the ends of
    partitions."""
    losses = []
    for number, partition in partitions.items():
        known = max(partition.next_offset, partition.cut_offset)
        end = recovered.ends.at_least(number, known, recovered.last_log_position(number), bounds)
        if end > known:
            losses.append(Loss(number, known, end, certain=False))
            partition.next_offset = end
            # The next checkpoint must have the offset: the journals do not show it.
            partition.mark_dirty()
    return losses


def _load_journal(
    fs: FileSystem,
    partitions: Mapping[int, Partition],
    found: RecoveredJournal,
    log_position: int,
    in_memory: bool,
    written: set[int],
    history: TransactionHistory,
    terms: EarlierTerms | None,
    older: list[int],
) -> None:
    """Take the rows of one journal; add the partitions with rows at or after `log_position` to
    `written`, and those with rows before it that were not stored to `older`."""
    index = found.index(fs)
    journal = found.journal
    history.take_journal(found, index)
    numbers: Iterable[int]
    # A whole journal before the checkpoint: nothing to replay, so one row at a time is enough.
    if (
        index is not None
        and journal.rolled
        and journal.end_log_position <= log_position
        and journal.indexed
    ):
        numbers = _load_singles(index, partitions, journal, in_memory, terms, older)
    else:
        numbers = sorted(found.numbers())
    for number, parts in found.rows_by_partition(index, numbers):
        partition = partitions.get(number)
        for part in parts if partition is not None else ():
            assert partition is not None, "only known partitions have rows to load"
            # All left: another broker has led since.
            if terms is not None and not len(part := terms.current(found, number, part)):
                continue
            # Rows before the checkpoint must be in it, or the row in SQL is an older one.
            before = bisect_left(part.log_position, log_position)
            if before and part.base[before - 1] + part.count[before - 1] > partition.next_offset:
                older.append(number)
            if before < len(part):
                written.add(number)
                partition.mark_dirty()
                # Before `_load`, which raises the next offset that replay compares with.
                _replay(partition, _heads(fs, found, number, part, log_position), log_position)
            _load(partition, journal, part, in_memory)


def _load_singles(
    index: JournalIndex,
    partitions: Mapping[int, Partition],
    journal: Journal,
    in_memory: bool,
    terms: EarlierTerms | None,
    older: list[int],
) -> list[int]:
    """Take the rows of partitions with one row in a journal; return the others.

    Most of the time of a start is spent here: with many partitions each has one row or none in a
    journal.
    """
    others = index.multiples()
    for number, *row in index.singles():
        base, _, _, _, count = row
        partition = partitions.get(number)
        if partition is None:
            continue
        # Its leader epoch must be read: `current` does.
        if terms is not None and terms.may_be_old(number):
            others.append(number)
        else:
            if base + count > partition.next_offset:
                older.append(number)
            _load_one(partition, journal, row, in_memory)
    return others


def _load_one(partition: Partition, journal: Journal, row: list[int], in_memory: bool) -> None:
    """Do as `_load` for one row: base offset, log position, newest timestamp, length, offset
    count."""
    base, log_position, newest, length, count = row
    end = base + count
    if end > partition.next_offset:
        partition.next_offset = end
    # In segments already, or deleted.
    if end <= partition.log_start or end <= partition.cut_offset:
        return
    if in_memory:
        partition.rows.add(base, log_position, length, count, newest)
    partition.journal_extents.add(journal.number, base, end, length, newest)
    journal.live += 1
    if not in_memory:
        partition.evicted = len(partition.journal_extents)


def _first_loaded(found: list[RecoveredJournal]) -> int:
    """Return the oldest journal whose rows fit in memory together with those of all newer ones."""
    room = MAX_INDEX_BYTES
    first = len(found) - 1
    while first > 0:
        room -= found[first - 1].extent().frames * ROW_BYTES
        if room < 0:
            break
        first -= 1
    # Not later than the first without an index file, which is written from the rows in memory; nor
    # than the last one, which is written further.
    return min([max(first, 0), *(at for at, item in enumerate(found) if not item.journal.indexed)])


def _load(partition: Partition, journal: Journal, rows: IndexColumns, in_memory: bool) -> None:
    """Take rows of one journal, after all those before."""
    end = rows.base[-1] + rows.count[-1]
    partition.next_offset = max(partition.next_offset, end)
    if end <= max(partition.log_start, partition.cut_offset):
        return
    if in_memory:
        partition.rows.extend(rows)
    # Extents are those of rolled journals; the active one's are added when it is rolled.
    if not journal.rolled:
        return
    if len(partition.journal_extents) and partition.journal_extents.journal[-1] == journal.number:
        partition.journal_extents.end[-1] = end
        partition.journal_extents.size[-1] += sum(rows.length)
        partition.journal_extents.newest[-1] = max(
            partition.journal_extents.newest[-1], *rows.newest
        )
    else:
        add_extent(journal, partition, rows)
    if not in_memory:
        partition.evicted = len(partition.journal_extents)


def _replay(partition: Partition, facts: Iterable[Fact], log_position: int) -> None:
    """Apply the batches after a checkpoint to the producers and the leader epochs."""
    known_end = partition.next_offset
    for at, fields, marker in facts:
        # The row in SQL may be ahead of the checkpoint's log position: a log start was stored
        # alone.
        base, epoch = fields[BASE_OFFSET], fields[LEADER_EPOCH]
        if at < log_position or base < known_end:
            continue
        if epoch > partition.epochs[-1][0]:
            partition.epochs.append((epoch, base))
        if fields[PRODUCER_ID] >= 0:
            partition.producers.replay(fields, marker)


def _heads(
    fs: FileSystem, found: RecoveredJournal, number: int, rows: IndexColumns, log_position: int
) -> Iterable[Fact]:
    """Return the batches after `log_position`: those the scan has noted, or all of them where the
    rows come from an index file."""
    # The scan has read the heads; rows of an index file have none.
    if rows is found.scanned.rows.get(number):
        return found.scanned.facts.get(number, ())
    return _read_heads(found.journal.warm(fs), rows, log_position)


def _read_heads(view: memoryview, rows: IndexColumns, log_position: int) -> Iterator[Fact]:
    for at, length in zip(rows.log_position, rows.length, strict=True):
        if at >= log_position:
            start = at & POSITION_MASK
            for position in batch_starts(view, start, start + length) or ():
                fields = HEAD.unpack_from(view, position)
                yield at, fields, marker_of(view, position, fields)
