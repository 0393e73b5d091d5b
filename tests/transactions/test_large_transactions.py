"""Records of transactions with tens of thousands of partitions are encoded in steps.

Covers: kafkawire.transactions.coordinator_log, kafkawire.transactions.coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kafkawire.transactions.machine import records
from kafkawire.transactions.machine.records import MAX_ENCODED_AT_ONCE, partition_steps
from kafkawire.transactions.machine.request import AddPartitions, Answer, Request
from kafkawire.transactions.machine.transaction import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_COMMIT,
    TopicPartition,
)
from tests.kit.transactions.bench import TransactionBench
from tests.kit.transactions.desk import ID

MANY = 20_000
ONE_TOPIC = frozenset(("orders", index) for index in range(MANY))
MANY_TOPICS = frozenset((f"topic-{number}", 0) for number in range(MANY))
MAX_TURNS = 100_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of partitions that were encoded at once."""
    encoded: list[int] = []
    encode = records._partitions_of

    def counted(partitions: frozenset[TopicPartition], *, flexible: bool) -> bytes:
        encoded.append(len(partitions))
        return encode(partitions, flexible=flexible)

    monkeypatch.setattr(records, "_partitions_of", counted)
    return encoded


async def until(bench: TransactionBench, true: Callable[[], bool]) -> None:
    for _ in range(MAX_TURNS):
        if true():
            return
        await asyncio.sleep(0)
        bench.log.commit()
    raise AssertionError("it does not happen")


async def answered(bench: TransactionBench, request: Request) -> Answer:
    future = bench.ask(request)
    await until(bench, future.done)
    return future.result()


def adding(at: Answer, partitions: frozenset[TopicPartition]) -> AddPartitions:
    return AddPartitions(ID, at.producer_id, at.producer_epoch, partitions, 2)


@pytest.mark.parametrize("partitions", [ONE_TOPIC, MANY_TOPICS], ids=["one topic", "many topics"])
def test_the_steps_are_short(partitions: frozenset[TopicPartition]) -> None:
    topics = len({topic for topic, _ in partitions})
    steps = len(list(partition_steps(partitions, flexible=True)))
    assert steps >= (len(partitions) + 2 * topics) // MAX_ENCODED_AT_ONCE


@pytest.mark.parametrize(
    "partitions",
    [
        pytest.param(ONE_TOPIC, id="one topic"),
        pytest.param(MANY_TOPICS, id="many topics", marks=pytest.mark.slow),
    ],
)
async def test_a_large_transaction_is_never_encoded_at_once(
    partitions: frozenset[TopicPartition], at_once: list[int]
) -> None:
    bench = TransactionBench().begin()
    bench.partition.config.max_message_bytes = 1 << 20
    at = await bench.init()
    half = frozenset(list(partitions)[: MANY // 2])
    assert (await answered(bench, adding(at, half))).code == 0
    assert (await answered(bench, adding(at, partitions))).code == 0
    one = adding(at, frozenset({("late", 0)}))
    assert not bench.coordinator.answer_at_once(one), "a Produce has to wait, too"
    assert (await answered(bench, one)).code == 0
    assert bench.coordinator.answer_at_once(one), "nothing has to be stored"
    known = bench.coordinator.shard.transactions[ID]
    assert known.partitions == partitions | {("late", 0)}
    await bench.reload()
    loaded = bench.coordinator.shard.transactions[ID]
    assert (loaded.state, loaded.partitions) == (ONGOING, known.partitions)
    await until(bench, lambda: ID in bench.coordinator.appender._large)
    assert (await bench.now_end(at)).code == 0
    assert bench.state is PREPARE_COMMIT
    assert ID not in bench.coordinator.appender._large
    await until(bench, lambda: bench.state is COMPLETE_COMMIT)
    assert max(at_once) <= MAX_ENCODED_AT_ONCE


async def test_a_snapshot_is_written_in_steps_too(at_once: list[int]) -> None:
    bench = TransactionBench().begin()
    at = await bench.init()
    assert (await answered(bench, adding(at, ONE_TOPIC))).code == 0
    storing = asyncio.ensure_future(bench.coordinator._store(0))
    await until(bench, storing.done)
    assert bench.coordinator.snapshot_bytes > MANY
    await bench.reload()
    assert bench.coordinator.shard.transactions[ID].partitions == ONE_TOPIC
    assert max(at_once, default=0) <= MAX_ENCODED_AT_ONCE


async def test_partitions_encoded_for_another_version_are_not_used() -> None:
    """transaction.version changed between two records."""
    bench = TransactionBench().begin()
    at = await bench.init()
    assert (await answered(bench, adding(at, ONE_TOPIC))).code == 0
    bench.settings.transaction_version = 0
    assert (await bench.now_end(at)).code == 0
    await bench.reload()
    loaded = bench.coordinator.shard.transactions[ID]
    assert loaded.partitions in (ONE_TOPIC, frozenset())
    assert loaded.state in (PREPARE_COMMIT, COMPLETE_COMMIT)


async def test_an_unload_answers_a_request_that_is_being_prepared() -> None:
    bench = TransactionBench().begin()
    at = await bench.init()
    future = bench.ask(adding(at, MANY_TOPICS))
    await asyncio.sleep(0)
    bench.coordinator.reload()
    await until(bench, future.done)
    assert future.result().code.name == "NOT_COORDINATOR"
