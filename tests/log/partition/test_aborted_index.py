"""Lookups of aborted transactions, compared with a list, whatever was dropped before.

Covers: kafkawire.log.partition.transactions.
"""

from __future__ import annotations

from random import Random

import pytest

from kafkawire.codec.control import Aborted
from kafkawire.log.partition.transactions import BLOCK, AbortedIndex, PartitionTransactions


def overlapping(entries: list[Aborted], start: int, end: int) -> list[Aborted]:
    return [entry for entry in entries if entry[2] >= start and entry[1] < end]


@pytest.mark.parametrize("seed", range(2))
def test_lookups_find_what_overlaps(seed: int) -> None:
    rng = Random(seed)
    transactions = PartitionTransactions()
    entries: list[Aborted] = []
    offset = 0
    long_open = seed % 2  # one transaction is open from the start to the end
    if long_open:
        transactions.open_transaction(0, 0)
    while len(entries) < 3 * BLOCK:
        offset += rng.randrange(1, 4)
        if len(transactions.open) - long_open < rng.choice((1, 5, 300)):
            transactions.open_transaction(offset, offset)
            continue
        chosen = [id_ for id_ in transactions.open if id_]
        producer_id = rng.choice(chosen)
        entries.append(Aborted(producer_id, transactions.open[producer_id], offset))
        transactions.end_transaction(producer_id, offset, aborted=True)
        if rng.random() < 0.01:
            least = entries[rng.randrange(min(len(entries), BLOCK))][2]
            transactions.aborted.drop_below(least)
            entries = [entry for entry in entries if entry[2] >= least]
        if rng.random() < 0.05:
            start = rng.randrange(offset + 10)
            end = start + rng.choice((1, 10, offset))
            if end <= offset:  # all that overlaps is known: it has begun
                assert transactions.aborted.overlapping(start, end) == overlapping(
                    entries, start, end
                )
    again = AbortedIndex.from_entries(rng.sample(entries, len(entries)), transactions.open.values())
    for index in (transactions.aborted, again):
        for start in range(0, offset, 199):
            end = start + rng.choice((1, 50, offset))
            expected = overlapping(entries, start, end)
            assert index.overlapping(start, end) == expected
            assert index.list_for_fetch(start, end) == [entry[:2] for entry in expected]
        assert index.ended_in(0, offset + 1) == entries
        assert len(index) == len(entries)


def test_a_lookup_reads_few_entries_next_to_one_long_transaction() -> None:
    """The stable offset of every entry is low there, and bounds nothing."""
    index = AbortedIndex()
    for number in range(100 * BLOCK):
        index.add(Aborted(number, 10 + 2 * number, 11 + 2 * number), 0)
    read: list[int] = []

    class Counting(AbortedIndex):
        __slots__ = ()

        def _rows(self, low: int, high: int):  # type: ignore[no-untyped-def]
            read.append(high - low)
            return super()._rows(low, high)

    index.__class__ = Counting
    assert len(index.overlapping(1_000, 1_100)) == 50
    assert sum(read) <= 2 * BLOCK
