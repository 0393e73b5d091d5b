"""aiokafka: transactions that commit, abort or are fenced, and readers of committed records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.producer.transaction_manager import TransactionState

from tests.real.conftest import MakeTopic
from tests.real.test_aiokafka import consuming, producing, read, wait_for


async def committed_values(bootstrap: str, topic: str, count: int) -> list[int]:
    """Read all committed records of a topic, of which there are `count`."""
    async with consuming(bootstrap, topic, isolation_level="read_committed") as consumer:
        found = await read(consumer, count)
        ends = await consumer.end_offsets(consumer.assignment())
        for at, end in ends.items():
            await wait_for(lambda at=at, end=end: is_at(consumer, at, end))  # type: ignore[misc]
    return [int(record.value) for record in found]


async def is_at(consumer: Any, at: TopicPartition, end: int) -> bool:
    """Whether the consumer has passed everything, and has no more records."""
    got = await consumer.getmany(timeout_ms=20)
    assert not got
    return bool(await consumer.position(at) >= end)


async def test_commit_and_abort(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    topic = make_topic(2)
    async with producing(bootstrap, transactional_id=name) as producer:
        for number in range(10):
            await producer.begin_transaction()
            for value in range(number * 10, number * 10 + 10):
                await producer.send(topic, b"%d" % value, partition=value % 2)
            if number % 3 == 2:
                await producer.flush()
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    expected = [value for value in range(100) if value // 10 % 3 != 2]
    assert sorted(await committed_values(bootstrap, topic, len(expected))) == expected
    async with consuming(bootstrap, topic) as consumer:
        assert len(await read(consumer, 100)) == 100


async def test_context_manager_aborts_after_an_exception(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic()
    async with producing(bootstrap, transactional_id=name) as producer:
        with pytest.raises(ZeroDivisionError):
            await fail(producer, topic)
        async with producer.transaction():
            assert (await producer.send_and_wait(topic, b"2")).offset == 2
    assert await committed_values(bootstrap, topic, 1) == [2]


async def fail(producer: AIOKafkaProducer, topic: str) -> None:
    """Raise ZeroDivisionError in a transaction."""
    async with producer.transaction():
        await producer.send_and_wait(topic, b"1")
        raise ZeroDivisionError


async def test_reader_waits_for_the_commit(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic()
    async with (
        producing(bootstrap, transactional_id=name) as producer,
        consuming(bootstrap, topic, isolation_level="read_committed") as consumer,
        consuming(bootstrap, topic) as dirty,
    ):
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"1")
        assert [record.value for record in await read(dirty, 1)] == [b"1"]
        at = TopicPartition(topic, 0)
        assert (await consumer.end_offsets([at]))[at] == 0
        assert (await dirty.end_offsets([at]))[at] == 1
        waiting = asyncio.create_task(read(consumer, 1))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        await producer.commit_transaction()
        assert [record.value for record in await waiting] == [b"1"]


async def test_consume_transform_produce(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    source, sink = make_topic(), make_topic(1, "-out")
    at = TopicPartition(source, 0)
    async with producing(bootstrap) as plain:
        for value in range(40):
            await plain.send(source, b"%d" % value, partition=0)
    async with producing(bootstrap, transactional_id=name) as producer:
        for number in range(5):  # the second and the fourth are aborted
            async with consuming(bootstrap, group_id=name) as consumer:
                consumer.assign([at])
                records = await read(consumer, 10)
                await producer.begin_transaction()
                for record in records:
                    await producer.send(sink, b"%d" % (int(record.value) * 2), partition=0)
                offsets = {at: await consumer.position(at)}
                await producer.send_offsets_to_transaction(offsets, name)
                await producer.flush()
                if number in (1, 3):
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        async with consuming(bootstrap, group_id=name) as consumer:
            assert await consumer.committed(at) == 30
    expected = [value * 2 for value in range(30)]
    assert await committed_values(bootstrap, sink, 30) == expected


async def test_second_producer_fences_the_first(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic()
    zombie = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait(topic, b"1")
    async with producing(bootstrap, transactional_id=name) as heir:
        async with heir.transaction():
            await heir.send_and_wait(topic, b"2")
        with pytest.raises(ProducerFenced):
            await zombie.send_and_wait(topic, b"3")
        with pytest.raises(KafkaError):
            await zombie.commit_transaction()
    assert zombie._txn_manager.state == TransactionState.FATAL_ERROR
    await zombie.stop()
    assert await committed_values(bootstrap, topic, 1) == [2]


async def test_transaction_past_its_timeout_is_aborted(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic()
    at = TopicPartition(topic, 0)
    late = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=1000
    )
    await late.start()
    await late.begin_transaction()
    await late.send_and_wait(topic, b"1")
    async with consuming(bootstrap, topic, isolation_level="read_committed") as consumer:

        async def ended() -> bool:
            return bool((await consumer.end_offsets([at]))[at] == 2)

        await wait_for(ended)
    with pytest.raises(ProducerFenced):
        await late.commit_transaction()
    await late.stop()
    async with producing(bootstrap, transactional_id=name) as again, again.transaction():
        await again.send_and_wait(topic, b"2")
    assert await committed_values(bootstrap, topic, 1) == [2]
