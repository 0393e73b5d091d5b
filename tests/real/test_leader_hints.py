"""librdkafka with partitions that get another leader: it sends to the one that the error names,
though Metadata does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.kit.cluster import QUIET
from tests.kit.moving_topic import MovingTopic, moving_topic
from tests.kit.waiting import until


@pytest.fixture
async def moving(tmp_path: Path) -> AsyncIterator[MovingTopic]:
    async with moving_topic(tmp_path) as made:
        yield made


@contextmanager
def producer(moving: MovingTopic) -> Iterator[Producer]:
    made = Producer(
        {
            "bootstrap.servers": moving.bootstrap,
            "topic.metadata.refresh.interval.ms": -1,
            "linger.ms": 0,
            "log_level": QUIET,
        }
    )
    yield made
    made.purge()


async def send(client: Producer, index: int) -> int:
    """Produce a record; return its offset."""
    offsets: list[int] = []

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    client.produce("t", b"value", partition=index, on_delivery=delivered)
    assert await asyncio.to_thread(client.flush, 60) == 0
    return offsets[0]


async def test_produce(moving: MovingTopic) -> None:
    with producer(moving) as client:
        await send(client, 1)
        await moving.move()
        assert await send(client, 0) == 0
        assert moving.second.table.find_by_name("t", 0).next_offset == 1


async def test_fetch(moving: MovingTopic) -> None:
    settings = {
        "bootstrap.servers": moving.bootstrap,
        "group.id": "unused",
        "topic.metadata.refresh.interval.ms": -1,
        "enable.auto.commit": False,
        "log_level": QUIET,
    }
    with closing(Consumer(settings)) as consumer, producer(moving) as client:
        consumer.assign([TopicPartition("t", 0, 0)])
        await send(client, 1)
        await asyncio.to_thread(consumer.poll, 0)
        await until(lambda: bool(moving.first.table.find_by_name("t", 0).watchers))
        await moving.move()
        assert await send(client, 0) == 0
        message = await asyncio.to_thread(consumer.poll, 60)
        assert message is not None
        assert message.value() == b"value"
        assert moving.second.counts.fetches
