"""The index of a copied journal: a partition in it has what its leader has, of committed records.

Covers: kafkawire.broker.rack_reads.copies.
"""

from __future__ import annotations

import random

import pytest

from kafkawire.broker.rack_reads.copies import add_rows
from kafkawire.codec.control import Aborted
from kafkawire.log.journal.format import HEADER_BYTES
from kafkawire.log.journal.scan import scan
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.transactions import OFFSET_MAX
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch
from tests.kit.log.transactional import Producer

STEPS, PRODUCERS = 60, 4


def new_partition(leader: Partition) -> Partition:
    made = Partition(
        leader.log, leader.number, leader.topic_id, leader.topic, leader.index, 0, leader.config,
        leader.traffic,
    )  # fmt: skip
    made.epochs = []
    return made


class Copy:
    """Scans the journal of a log in pieces of any size."""

    def __init__(self, leader: Partition, rng: random.Random) -> None:
        self.leader, self.rng = leader, rng
        self.partition = new_partition(leader)
        self.at, self.run = HEADER_BYTES, 0

    def follow(self) -> None:
        journal = self.leader.log.journals.active
        assert journal.view is not None
        while self.at < journal.end:
            stop = self.rng.randint(self.at + 1, journal.end)  # in the middle of a frame, mostly
            found = scan(journal.view[:stop], journal.number, self.at, None, self.run)
            assert not found.gaps
            self.at, self.run = found.end, found.run
            rows = found.rows.get(self.leader.number)
            if rows is not None:
                add_rows(self.partition, rows, found.facts.get(self.leader.number, ()))


def known(partition: Partition) -> tuple[list[int], dict[int, int], list[Aborted]]:
    """End, last stable offset, open transactions, and the aborted ones."""
    ends = [partition.next_offset, partition.high_watermark, partition.last_stable_offset]
    transactions = partition.producers.transactions
    if transactions is None:
        return ends, {}, []
    return ends, dict(transactions.open), transactions.aborted.ended_in(0, OFFSET_MAX)


@pytest.mark.parametrize("seed", range(20))
async def test_copy_has_the_transactions_of_the_leader(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    await world.start()
    (leader,) = await world.topic("t")
    copy = Copy(leader, rng)
    open_ones: set[int] = set()
    producers = [Producer(100 + at) for at in range(PRODUCERS)]
    for _ in range(STEPS):
        for _ in range(rng.randint(1, 3)):  # several batches share a frame
            producer = rng.choice(producers)
            match rng.randrange(4):
                case 0:
                    leader.append(batch(b"plain"), EPOCH_MS)
                case 1 if producer.id in open_ones:
                    producer.end(leader, commit=rng.random() < 0.5)
                    open_ones.discard(producer.id)
                case _:
                    producer.send(leader, b"value")
                    open_ones.add(producer.id)
        await leader.log.wait_until_committed()
        copy.follow()
        assert known(copy.partition) == known(leader)
        assert list(copy.partition.rows.base) == list(leader.rows.base)
    await world.abandon()


async def test_index_begins_again_after_a_gap() -> None:
    """Another broker has led the partition meanwhile, with offsets 3 and 4."""
    world = World()
    await world.start()
    (leader,) = await world.topic("t")
    copy = Copy(leader, random.Random(1))
    Producer(100).send(leader, b"0")
    leader.append(batch(b"1", b"2"), EPOCH_MS)
    await leader.log.wait_until_committed()
    copy.follow()
    leader.offsets.assign(2)
    leader.offsets.apply(5)
    leader.next_offset = 5
    leader.append(batch(b"5"), EPOCH_MS)
    await leader.log.wait_until_committed()
    copy.follow()
    assert known(copy.partition) == ([6, 6, 6], {}, [])
    assert list(copy.partition.rows.base) == [5]
    assert copy.partition.epochs == [(0, 0)]
    await world.abandon()
