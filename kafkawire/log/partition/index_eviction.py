"""The memory bound of the hot index: which rows are evicted, and what remains of them in memory.

Pure over partitions and journals. When a journal is rolled, each partition's share of it becomes a
journal extent, and its rows are copied for the index file; once that is on disk they may be
evicted, oldest journal first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkawire.log.journal.file import Journal
from kafkawire.log.journal.index_columns import ROW_BYTES, IndexColumns
from kafkawire.log.journal.index_file import JournalTransactions
from kafkawire.log.partition.partition import Partition

MAX_INDEX_BYTES = 64 << 20
"""Rows kept in memory, over all partitions: 1.6 million, which is three journals full of the
smallest entries, or terabytes of 1 MiB ones. With it a busy broker stays far below 200 MB."""


def close_extents(journal: Journal, partitions: Mapping[int, Partition]) -> dict[int, IndexColumns]:
    """Add a rolled journal's extents to their partitions; return copies of the rows, by
    partition."""
    columns = rows_in(journal, partitions)
    for number, rows in columns.items():
        add_extent(journal, partitions[number], rows)
    return columns


def rows_in(journal: Journal, partitions: Mapping[int, Partition]) -> dict[int, IndexColumns]:
    """Return copies of the rows of one journal, by partition, without those below log starts."""
    columns: dict[int, IndexColumns] = {}
    for number in journal.numbers:
        partition = partitions.get(number)
        if partition is None:
            continue
        # Rows below the log start are gone already.
        start = partition.rows.row_at(journal.log_position)
        stop = partition.rows.row_at(journal.end_log_position)
        if stop > start:
            columns[number] = partition.rows.slice(start, stop)
    return columns


def transactions_in(
    journal: Journal, partitions: Mapping[int, Partition]
) -> JournalTransactions | None:
    """Transactions that the index file of a rolled journal must have; None if there are none."""
    found: JournalTransactions | None = None
    for number in journal.numbers:
        partition = partitions.get(number)
        transactions = partition.producers.transactions if partition is not None else None
        if partition is None or transactions is None:
            continue
        found = JournalTransactions() if found is None else found
        rows = partition.rows
        start, stop = rows.row_at(journal.log_position), rows.row_at(journal.end_log_position)
        if stop <= start:
            continue
        end = rows.end_offset(stop - 1)
        # Open at the end of the journal: those that were aborted later, and those that still are
        # open. One that was committed since is left out: nothing has to know it any more.
        later = transactions.aborted.overlapping(end, end)
        opened = {producer_id: first for producer_id, first, _ in later}
        opened.update(pair for pair in transactions.open.items() if pair[1] < end)
        found.aborted[number] = transactions.aborted.ended_in(rows.base[start], end)
        found.opened[number] = opened
    return found


def add_extent(journal: Journal, partition: Partition, rows: IndexColumns) -> None:
    """Add the extent of one partition in a rolled journal; `rows` are all its rows there."""
    partition.journal_extents.add(
        journal.number,
        rows.base[0],
        rows.base[-1] + rows.count[-1],
        sum(rows.length),
        max(rows.newest),
    )
    journal.live += 1


def evict(
    journals: Iterable[Journal],
    partitions: Mapping[int, Partition],
    bytes_at_most: int = MAX_INDEX_BYTES,
) -> int:
    """Evict rows of the oldest journals until the bound is met; return how many."""
    journals = list(journals)
    named: set[int] = set().union(*(journal.numbers for journal in journals))
    rows = sum(len(partitions[number].rows) for number in named if number in partitions)
    before = rows
    for journal in journals:
        # Only rows that an index file has, and oldest first: the rows in memory stay a suffix.
        if rows * ROW_BYTES <= bytes_at_most or not journal.rolled or not journal.indexed:
            break
        for number in journal.numbers:
            partition = partitions.get(number)
            if partition is not None:
                rows -= _drop(partition, journal)
    return before - rows


def _drop(partition: Partition, journal: Journal) -> int:
    dropped = partition.rows.row_at(journal.end_log_position)
    partition.rows.drop_front(dropped)
    evicted = partition.evicted
    numbers = partition.journal_extents.journal
    # Extents up to this journal have no rows in memory.
    while evicted < len(numbers) and numbers[evicted] <= journal.number:
        evicted += 1
    partition.evicted = evicted
    return dropped
