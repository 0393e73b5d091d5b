"""Short forms of confluent-kafka calls: consumers that are closed at the end, records sent and
read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer


@pytest.fixture(name="make_consumer")
def consumers(bootstrap: str) -> Iterator[Callable[..., Consumer]]:
    made: list[Consumer] = []

    def make(group: str, *topics: str, **config: Any) -> Consumer:
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
            "session.timeout.ms": 10_000,
            **{key.replace("_", "."): value for key, value in config.items()},
        }
        made.append(Consumer(settings))
        if topics:
            made[-1].subscribe(list(topics))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def produce(bootstrap: str, topic: str, rows: list[dict[str, Any]], **config: Any) -> list[int]:
    """Send `rows` and wait; return the offsets, in the order of the responses. Raises the first
    error."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset())

    for row in rows:
        producer.produce(topic, on_delivery=delivered, **row)
    assert producer.flush(60) == 0
    if errors:
        raise KafkaException(errors[0])
    return offsets


def read(consumer: Consumer, count: int, timeout_s: float = 60) -> list[Message]:
    found: list[Message] = []
    end = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < end:
        found += sound(consumer.consume(count - len(found), 0.2))
    assert len(found) == count
    return found


def sound(messages: list[Message]) -> list[Message]:
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
    return messages


def poll(consumer: Consumer) -> list[Message]:
    return sound(consumer.consume(100, 0.1))


def code_of(future: Any) -> int:
    with pytest.raises(KafkaException) as caught:
        future.result(60)
    return int(caught.value.args[0].code())
