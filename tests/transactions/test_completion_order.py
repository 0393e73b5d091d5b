"""The record that completes a transaction follows its markers in the journal.

Both may be in one write batch, of which a crash keeps a part from its beginning: a completion
without its markers would leave the transaction open in its partitions, and no coordinator would
end it.

Covers: kafkawire.transactions.coordinator, kafkawire.broker.markers.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.batches import CONTROL, iter_batches, records
from kafkawire.log.append import commit_log
from kafkawire.log.journal.write_batch import lay_out
from kafkawire.transactions.machine.records import decode_record
from kafkawire.transactions.machine.transaction import TransactionState
from tests.kit.exactly_once.producer import Transactional
from tests.kit.exactly_once.simulation import prepare
from tests.kit.exactly_once.world import SimNet, World
from tests.kit.seeds import quiet

COMPLETE = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


class Order:
    """Scans write batches in place of `lay_out`. `together`: completions seen in the write batch
    of their markers; `early`: those before a marker."""

    def __init__(self, lay_out: Any) -> None:
        self.lay_out = lay_out
        self.together = 0
        self.early: list[str] = []

    def __call__(self, write_batch: Any, *args: Any) -> Any:
        markers: dict[int, int] = {}  # producer id -> the last frame with a marker of it
        completed: list[tuple[int, int]] = []
        for number, frame in enumerate(write_batch.frames):
            if frame.partition is None:
                continue
            for raw in frame.batches:
                for position, head in iter_batches(raw):
                    if head.attributes & CONTROL:
                        markers[head.producer_id] = number
                    elif frame.partition.topic == "__transaction_state":
                        completed += [(number, id_) for id_ in _completed(raw, position)]
        for number, producer_id in completed:
            if producer_id in markers:
                self.together += 1
                if markers[producer_id] >= number:
                    self.early.append(f"{producer_id} is complete in frame {number}")
        return self.lay_out(write_batch, *args)


def _completed(raw: Any, position: int) -> list[int]:
    """The producers whose transactions a batch completes."""
    found = [decode_record(each.key, each.value) for each in records(raw, position)]
    return [
        each.value.previous_producer_id
        for each in found
        if each is not None and each.value is not None and each.value.state in COMPLETE
    ]


async def many_commits(world: World) -> None:
    """Eight producers of one coordinator partition, whose commits share fsyncs."""
    assert await world.start()
    await prepare(SimNet(world), {})
    await asyncio.gather(*(world.spawn(commits(world, number)) for number in range(8)))


async def commits(world: World, number: int) -> None:
    id_ = f"p{number}"
    producer = Transactional(SimNet(world), world.history, id_, id_, 2, 12)
    await producer.init()
    for _ in range(20):
        attempt = producer.begin()
        await producer.send(("a", number % 2), [f"{attempt}/0"])
        await producer.commit()


@pytest.mark.slow
def test_completions_follow_their_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Order(lay_out)
    monkeypatch.setattr(commit_log, "lay_out", order)
    world = World(1, transaction_state_log_num_partitions=1)
    with quiet():
        world.run(many_commits(world))
    assert order.together
    assert order.early == []
