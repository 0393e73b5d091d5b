"""Transactions found again at a start, from index files and scanned journals.

Covers: kafkawire.log.recovery.restore.
"""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL
from kafkawire.codec.control import ABORT, Aborted, ControlContent
from kafkawire.log.journal.index_columns import IndexColumns
from kafkawire.log.journal.index_file import Extent, JournalIndex, JournalTransactions, pack_index
from kafkawire.log.journal.scan import Fact, Scanned
from kafkawire.log.recovery.restore import TransactionHistory
from kafkawire.log.recovery.result import RecoveredJournal

PRODUCER = 7
NUMBER = 1


def fact(base: int, kind: int | None = None) -> Fact:
    attributes = TRANSACTIONAL | (CONTROL if kind is not None else 0)
    fields: list[Any] = [0] * 13
    fields[0], fields[5], fields[9] = base, attributes, PRODUCER
    return 0, tuple(fields), None if kind is None else ControlContent(kind, 0)


def index(base: int, found: JournalTransactions | None) -> JournalIndex:
    """The index file of a journal that has one row of the partition."""
    rows = IndexColumns(
        array("q", [base]), array("q", [0]), array("I", [1]), array("I", [1]), array("q", [1])
    )
    return JournalIndex(memoryview(pack_index(1, Extent(1, 1, 1, 1), {NUMBER: rows}, found)), 1)


def aborted(history: TransactionHistory) -> list[Aborted]:
    """The aborted transactions that a partition gets."""
    got: list[Aborted] = []
    producers = SimpleNamespace(transactions=None, load_aborted=got.extend)
    partition = SimpleNamespace(number=NUMBER, producers=producers, cut_offset=0, log_start=0)
    history.give(partition)  # type: ignore[arg-type]
    return got


def test_a_transaction_of_an_earlier_journal_is_aborted_by_a_later_marker() -> None:
    history = TransactionHistory()
    history.take_facts(NUMBER, [fact(3)])
    history.take_facts(NUMBER, [fact(8, ABORT)])
    assert aborted(history) == [(PRODUCER, 3, 8)]


@pytest.mark.parametrize("found", [None, JournalTransactions(), JournalTransactions({1: []}, {})])
def test_an_index_file_ends_transactions_it_does_not_name(
    found: JournalTransactions | None,
) -> None:
    """The journal in the middle has the marker of a commit, which its index file leaves out. A
    later marker of the same producer ends nothing."""
    history = TransactionHistory()
    history.take_facts(NUMBER, [fact(3)])
    history.take_index(index(5, found))
    history.take_facts(NUMBER, [fact(8, ABORT)])
    assert aborted(history) == []


def test_an_index_file_without_rows_of_a_partition_leaves_its_transactions_open() -> None:
    history = TransactionHistory()
    history.take_facts(NUMBER + 1, [fact(3)])
    history.take_index(index(5, None))
    history.take_facts(NUMBER + 1, [fact(8, ABORT)])
    assert history._aborted == {NUMBER + 1: [(PRODUCER, 3, 8)]}


def test_transactions_of_an_index_file_are_taken() -> None:
    history = TransactionHistory()
    history.take_index(
        index(5, JournalTransactions({NUMBER: [Aborted(6, 1, 5)]}, {NUMBER: {PRODUCER: 4}}))
    )
    history.take_facts(NUMBER, [fact(8, ABORT)])
    assert aborted(history) == [(6, 1, 5), (PRODUCER, 4, 8)]


def test_aborted_transactions_of_an_index_file_are_given_where_none_is_open() -> None:
    history = TransactionHistory()
    history.take_index(index(5, JournalTransactions({NUMBER: [Aborted(6, 1, 5)]}, {})))
    assert aborted(history) == [(6, 1, 5)]


def journal(number: int, facts: list[Fact], first: int, end: int) -> RecoveredJournal:
    """A scanned journal with rows of the partition for [first, end)."""
    rows = IndexColumns(
        array("q", [first]), array("q", [0]), array("I", [1]), array("I", [end - first]),
        array("q", [1]),
    )  # fmt: skip
    scanned = Scanned(number, 1, 1, rows={NUMBER: rows}, facts={NUMBER: facts})
    file: Any = SimpleNamespace(number=number)
    return RecoveredJournal(file, None, None, set(), scanned)


@pytest.mark.parametrize(
    ("second", "first", "expected"),
    [
        # The journal with the commit and the next begin is gone: what it had is in segments.
        (3, 46, []),
        # A journal is gone that had nothing of the partition.
        (3, 33, [(PRODUCER, 32, 46)]),
        # No journal is gone, its batches are damaged: the marker may belong to the transaction.
        (2, 46, [(PRODUCER, 32, 46)]),
    ],
)
def test_transactions_are_forgotten_where_journals_after_them_are_gone(
    second: int, first: int, expected: list[Aborted]
) -> None:
    history = TransactionHistory()
    history.take_journal(journal(1, [fact(32)], 32, 33), None)
    history.take_journal(journal(second, [fact(46, ABORT)], first, 47), None)
    assert aborted(history) == expected
    assert history.first_open(NUMBER) is None


def test_a_transaction_that_goes_on_after_journals_that_are_gone_begins_there() -> None:
    history = TransactionHistory()
    history.take_journal(journal(1, [fact(32)], 32, 33), None)
    history.take_journal(journal(3, [fact(44), fact(46, ABORT)], 44, 47), None)
    assert aborted(history) == [(PRODUCER, 44, 46)]
