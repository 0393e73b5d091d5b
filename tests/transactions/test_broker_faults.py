"""Faults of transactions that a whole broker must survive: a topic deleted and created again in
the middle of one, and a restart with thousands of them open.

Covers: kafkawire.transactions.coordinator_log, kafkawire.transactions.coordinator,
kafkawire.broker.markers.
"""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.delete_topics import DeleteTopicsRequest
from kafkawire.messages.list_transactions import ListTransactionsRequest
from kafkawire.transactions.machine.records import TransactionRecord, batches_of
from kafkawire.transactions.machine.transaction import ONGOING, Transaction
from tests.kit.exactly_once.checker import check
from tests.kit.exactly_once.history import Outcome
from tests.kit.exactly_once.producer import Abortable, Lost, Transactional
from tests.kit.exactly_once.reader import UNCOMMITTED, fetch, finish
from tests.kit.exactly_once.simulation import prepare
from tests.kit.exactly_once.world import SimNet, World
from tests.kit.seeds import quiet

OPEN = 5_000
WITHIN_S = 120.0


async def restart(world: World, how: str) -> None:
    assert world.broker is not None
    world.broker.end(how)
    await world.bury()
    while not await world.start():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_topic_is_deleted_and_created_again_before_the_marker(
    version: int, restarted: bool
) -> None:
    world = World(1)

    async def main() -> None:
        assert await world.start()
        net = SimNet(world)
        await prepare(net, {})
        made = await net.call(CreateTopicsRequest([CreatableTopic("d", 1, 1)], 5_000), 7)
        assert not made.topics[0].error_code
        producer = Transactional(net, world.history, "p", "p", version, 12 if version == 2 else 11)
        await producer.init()
        producer.begin()
        await producer.send(("a", 0), ["kept"])
        await producer.send(("d", 0), ["gone"])
        world.history.deleted.add("d")
        gone = await net.call(DeleteTopicsRequest(topic_names=["d"], timeout_ms=5_000), 4)
        assert not gone.responses[0].error_code
        again = await net.call(CreateTopicsRequest([CreatableTopic("d", 1, 1)], 5_000), 7)
        assert not again.topics[0].error_code
        if restarted:
            await restart(world, "power")
        assert await producer.commit() is Outcome.COMMITTED
        if version == 1:  # the new topic knows no sequence of this epoch, as in Kafka
            producer.begin()
            with pytest.raises(Abortable, match="45"):
                await producer.send(("d", 0), ["refused"])
            await producer.abort()
        producer.begin()
        await producer.send(("d", 0), ["new"])
        assert await producer.commit() is Outcome.COMMITTED
        await finish(net, world.history, [("a", 0)], [])
        page = await fetch(net, ("d", 0), 0, UNCOMMITTED)
        assert page is not None
        assert [value for _, value in page.rows] == ["new"]
        assert page.stable == page.high

    with quiet():
        world.run(main())
    assert check(world.history) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "power"])
def test_thousands_of_open_transactions_are_loaded_and_time_out(how: str) -> None:
    world = World(1)

    async def main() -> None:
        assert await world.start()
        net = SimNet(world)
        await prepare(net, {})
        await open_many(world)
        await restart(world, how)
        assert await states(net) == {"Ongoing": OPEN}
        world.set_clock(70_000)
        began = world.loop.now
        while (found := await states(net)) != {"CompleteAbort": OPEN}:
            assert world.loop.now - began < WITHIN_S, found
            await world.sleep(0.5)
        await finish(net, world.history, [("a", 0), ("a", 1)], [])

    with quiet():
        world.run(main())
    assert check(world.history) == []


async def open_many(world: World) -> None:
    """Append the records of transactions that have begun."""
    assert world.broker is not None
    now_ms = world.broker.env.clock.now_ms()
    for coordinator in world.broker.parts.transactions.list_led():
        index = coordinator.partition.index
        wanted = [
            TransactionRecord(
                f"t{number}",
                Transaction(
                    1_000_000 + number,
                    0,
                    60_000,
                    state=ONGOING,
                    partitions=frozenset({("a", number % 2)}),
                    started_ms=now_ms,
                    updated_ms=now_ms,
                ),
            )
            for number in range(OPEN)
            if _partition_of(world, f"t{number}") == index
        ]
        for batch in batches_of(wanted, 100_000, 2, now_ms):
            coordinator.partition.append(memoryview(bytearray(batch)), now_ms)
    await world.broker.log.commit_log.wait_until_committed()


def _partition_of(world: World, transactional_id: str) -> int:
    assert world.broker is not None
    found = world.broker.parts.transactions.find_coordinator(transactional_id)
    assert found is not None
    return found.partition.index


async def states(net: SimNet) -> dict[str, int]:
    """The number of transactional ids in each state, once the coordinators are loaded."""
    while True:
        try:
            answer: Any = await net.call(ListTransactionsRequest(), 1)
        except Lost:
            continue
        if not answer.error_code:
            break
        await net.sleep(0.05)
    found: dict[str, int] = {}
    for each in answer.transaction_states:
        found[each.transaction_state] = found.get(each.transaction_state, 0) + 1
    return found
