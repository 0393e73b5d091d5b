"""aiokafka: an asyncio client with the oldest request versions of all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
)

from tests.real.conftest import START_MS, MakeTopic


@asynccontextmanager
async def producing(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


@asynccontextmanager
async def consuming(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    settings = {
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 300,
        **config,
    }
    consumer = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **settings)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


async def read(consumer: AIOKafkaConsumer, count: int, limit_s: float = 60) -> list[Any]:
    async with asyncio.timeout(limit_s):
        return [await consumer.getone() for _ in range(count)]


async def wait_for(done: Callable[[], bool | Awaitable[bool]], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while True:
        found = done()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_produce_with_each_codec_and_acks(
    bootstrap: str, make_topic: MakeTopic, codec: str | None, acks: int | str
) -> None:
    topic = make_topic()
    async with producing(bootstrap, compression_type=codec, acks=acks, linger_ms=5) as producer:
        for i in range(100):
            await producer.send(topic, b"value %d " % i * 30, key=b"%d" % i)
        await producer.flush()
    async with consuming(bootstrap, topic) as consumer:
        records = await read(consumer, 100)
    assert [(r.offset, r.key) for r in records] == [(i, b"%d" % i) for i in range(100)]
    assert [r.value for r in records] == [b"value %d " % i * 30 for i in range(100)]


async def test_idempotent_producer(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    async with producing(bootstrap, enable_idempotence=True, max_batch_size=500) as producer:
        sent = [await producer.send(topic, b"%d" % i, partition=i % 3) for i in range(900)]
        found = [(await future) for future in sent]
    assert sorted((m.partition, m.offset) for m in found) == [
        (p, o) for p in range(3) for o in range(300)
    ]


async def test_headers_nulls_and_timestamps_round_trip(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    async with producing(bootstrap) as producer:
        await producer.send_and_wait(topic, None, key=b"k", timestamp_ms=START_MS)
        await producer.send_and_wait(topic, b"", headers=[("a", b"1"), ("a", b"")])
    async with consuming(bootstrap, topic) as consumer:
        first, second = await read(consumer, 2)
    assert (first.key, first.value, first.timestamp) == (b"k", None, START_MS)
    assert (second.key, second.value, second.headers) == (None, b"", (("a", b"1"), ("a", b"")))


async def test_large_messages(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(max_message_bytes="3000000")
    big = b"0123456789" * 250_000
    async with producing(bootstrap, max_request_size=9_000_000) as producer:
        assert (await producer.send_and_wait(topic, big)).offset == 0
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, big * 2)
    async with consuming(bootstrap, topic) as consumer:
        assert (await read(consumer, 1))[0].value == big


async def test_offsets_by_timestamp(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    at = TopicPartition(topic, 0)
    start = START_MS
    async with producing(bootstrap) as producer:
        for i in range(30):
            await producer.send(topic, b"%d" % i, timestamp_ms=start + i * 1000)
            if i % 4 == 0:
                await producer.flush()
    async with consuming(bootstrap) as consumer:
        consumer.assign([at])
        assert await consumer.beginning_offsets([at]) == {at: 0}
        assert await consumer.end_offsets([at]) == {at: 30}
        found = await consumer.offsets_for_times({at: start + 9500})
        assert (found[at].offset, found[at].timestamp) == (10, start + 10_000)
        assert (await consumer.offsets_for_times({at: start + 29_001}))[at] is None
        consumer.seek(at, 25)
        assert [r.offset for r in await read(consumer, 5)] == [25, 26, 27, 28, 29]


async def test_consumer_waits_for_produced_records(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    async with consuming(bootstrap, topic) as consumer, producing(bootstrap) as producer:
        waiting = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0.7)  # it is parked by now, past one fetch.max.wait
        assert not waiting.done()
        await producer.send_and_wait(topic, b"here")
        assert (await asyncio.wait_for(waiting, 60)).value == b"here"


async def test_members_share_partitions_and_resume(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(4)
    async with producing(bootstrap) as producer:
        for i in range(40):
            await producer.send(topic, b"%d" % i, partition=i % 4)
    async with consuming(bootstrap, topic, group_id=name) as first:
        await wait_for(lambda: len(first.assignment()) == 4)
        async with consuming(bootstrap, topic, group_id=name) as second:
            await wait_for(lambda: len(first.assignment()) == len(second.assignment()) == 2)
            assert not first.assignment() & second.assignment()
            mine = await read(second, 20)
            await second.commit()
        await wait_for(lambda: len(first.assignment()) == 4)
    async with consuming(bootstrap, topic, group_id=name) as again:
        rest = await read(again, 20)
        for at in {TopicPartition(r.topic, r.partition) for r in mine}:
            assert await again.committed(at) == 10
    assert sorted((r.partition, r.offset) for r in mine + rest) == [
        (p, o) for p in range(4) for o in range(10)
    ]


async def test_admin_client(bootstrap: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        made = await admin.create_topics([NewTopic(name, 2, 1)])
        assert [error[1] for error in made.topic_errors] == [0]
        await admin.create_partitions({name: NewPartitions(3)})
        await wait_for(lambda: has_partitions(admin, name, 3))
        resource = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": "5000000"})
        await admin.alter_configs([resource])
        asked = ConfigResource(ConfigResourceType.TOPIC, name)
        (answer,) = await admin.describe_configs([asked])
        settings = {row[0]: row[1] for row in answer.resources[0][4]}
        assert settings["retention.ms"] == "5000000"
        async with producing(bootstrap) as producer:
            for _ in range(3):
                await producer.send_and_wait(name, b"x", partition=0)
        at = TopicPartition(name, 0)
        assert await admin.delete_records({at: RecordsToDelete(2)}) == {at: 2}
        deleted = await admin.delete_topics([name])
        assert [error[1] for error in deleted.topic_error_codes] == [0]
        await wait_for(lambda: is_gone(admin, name))
    finally:
        await admin.close()


async def has_partitions(admin: AIOKafkaAdminClient, topic: str, count: int) -> bool:
    (described,) = await admin.describe_topics([topic])
    return len(described["partitions"]) == count


async def is_gone(admin: AIOKafkaAdminClient, topic: str) -> bool:
    return topic not in await admin.list_topics()


async def test_commit_of_removed_member_is_refused(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    """A commit from outside while the group has members is refused."""
    topic = make_topic()
    async with consuming(bootstrap, topic, group_id=name) as member:
        await wait_for(lambda: len(member.assignment()) == 1)
        async with consuming(bootstrap, group_id=name) as stranger:
            stranger.assign([TopicPartition(topic, 0)])
            with pytest.raises(KafkaError):
                await stranger.commit({TopicPartition(topic, 0): 5})
        assert await member.committed(TopicPartition(topic, 0)) is None
