"""Share groups with librdkafka's share consumer: deliveries, dead letters, and kills of the
broker."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer

from kafkawire.testing.process import BrokerProcess
from tests.kit.client import Client
from tests.kit.configs import GROUP
from tests.kit.produce_fetch import make
from tests.real.conftest import OTHER_BROKER, SETTINGS, MakeTopic, alter_settings

QUICK = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}


def set_group(bootstrap: str, group: str, **settings: str) -> None:
    """Set settings of a group, by name with underscores for dots."""
    alter_settings(bootstrap, GROUP, group, **settings)


def create_topic(bootstrap: str, topic: str, **configs: str) -> None:
    """Create a topic with a setting that librdkafka's admin client may not know."""

    async def create() -> None:
        client = await Client.connect(int(bootstrap.rpartition(":")[2]))
        await make(client, topic, 1, **configs)
        await client.close()

    asyncio.run(create())


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **QUICK})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(60) == 0


def member(bootstrap: str, group: str, topic: str, mode: str = "explicit") -> Any:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, **QUICK}
    consumer = ShareConsumer({**settings, "share.acknowledgement.mode": mode})
    consumer.subscribe([topic])
    return consumer


def poll(consumer: Any, limit_s: float = 60) -> list[Any]:
    """The next records; an error of one fails the test."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found = [message for message in consumer.poll(0.5) if message.error() is None]
        if found:
            return found
    return []


def test_members_share_records_and_release_some(
    bootstrap: str, make_topic: MakeTopic, name: str
) -> None:
    topic = make_topic(2)
    set_group(bootstrap, name, share_auto_offset_reset="earliest")
    produce(bootstrap, topic, 200)
    members = [member(bootstrap, name, topic) for _ in range(2)]
    accepted: Counter[bytes] = Counter()
    end = time.monotonic() + 60
    while len(accepted) < 200 and time.monotonic() < end:
        for consumer in members:
            for message in poll(consumer, 0.5):
                value = message.value()
                # Each third one is released once.
                again = int(value) % 3 == 0 and message.delivery_count() == 1
                consumer.acknowledge(
                    message, AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT
                )
                accepted.update([] if again else [value])
                assert message.delivery_count() == 1 or int(value) % 3 == 0
            consumer.commit_sync(30)
    assert sorted(map(int, accepted)) == list(range(200))
    assert set(accepted.values()) == {1}
    for consumer in members:
        consumer.close()


def test_dead_letters(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    topic = make_topic()
    dead = f"dlq.{name}"
    create_topic(bootstrap, dead, errors_deadletterqueue_group_enable="true")
    set_group(
        bootstrap, name, share_auto_offset_reset="earliest",
        errors_deadletterqueue_topic_name=dead, errors_deadletterqueue_copy_record_enable="true",
    )  # fmt: skip
    produce(bootstrap, topic, 10)
    consumer = member(bootstrap, name, topic)
    left = 10
    while left:
        for message in poll(consumer):
            even = int(message.value()) % 2 == 0
            consumer.acknowledge(
                message, AcknowledgeType.ACCEPT if even else AcknowledgeType.REJECT
            )
            left -= 1
        consumer.commit_sync(30)
    consumer.close()
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{name}-r", "auto.offset.reset": "earliest"}
    )
    reader.subscribe([dead])
    found: dict[bytes, dict[str, bytes]] = {}
    end = time.monotonic() + 60
    while len(found) < 5 and time.monotonic() < end:
        letter = reader.poll(0.5)
        if letter is not None and letter.error() is None:
            found[letter.value()] = dict(letter.headers())
    reader.close()
    assert sorted(found) == [b"1", b"3", b"5", b"7", b"9"]
    assert found[b"3"] == {
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"3",
        "__dlq.errors.group": name.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Offset rejected by client.",
    }


def test_urgent_records_come_first(bootstrap: str, make_topic: MakeTopic, name: str) -> None:
    """The example of docs/share-groups.md."""
    page = (Path(__file__).parent.parent.parent / "docs" / "share-groups.md").read_text()
    source = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert source is not None
    example: dict[str, Any] = {}
    exec(source[1].replace("127.0.0.1:9092", bootstrap), example)
    topics = [make_topic(suffix=suffix) for suffix in ("-urgent", "-usual")]
    for topic in topics:
        set_group(bootstrap, f"workers-{topic}", share_auto_offset_reset="earliest")
        produce(bootstrap, topic, 20)
    handled: list[str] = []
    end = time.monotonic() + 60
    example["work"](
        *map(example["member"], topics),
        lambda message: handled.append(message.topic()),
        lambda: len(handled) >= 40 or time.monotonic() > end,
    )
    assert Counter(handled) == dict.fromkeys(topics, 20)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of its own."""
    if OTHER_BROKER is not None:
        pytest.skip("kills a broker of its own")
    with BrokerProcess(tmp_path, settings=SETTINGS) as process:
        yield process


def test_what_was_accepted_is_not_delivered_after_a_kill(killed: BrokerProcess, name: str) -> None:
    create_topic(killed.bootstrap, name)
    set_group(killed.bootstrap, name, share_auto_offset_reset="earliest")
    produce(killed.bootstrap, name, 100)
    consumer = member(killed.bootstrap, name, name)
    accepted: Counter[bytes] = Counter()
    killings, end = 0, time.monotonic() + 120
    while len(accepted) < 100 and time.monotonic() < end:
        messages = poll(consumer, 2)
        taken = []
        for message in messages:
            # The others are released, and come again.
            take = int(message.value()) % 4 == message.delivery_count() % 4 or killings == 2
            consumer.acknowledge(
                message, AcknowledgeType.ACCEPT if take else AcknowledgeType.RELEASE
            )
            if take:
                taken.append(message.value())
        if messages and killings < 2:
            killings += 1
            stored = consumer.commit_sync(30)
            if all(error is None for error in stored.values()):
                accepted.update(taken)
            killed.kill()
            killed.start()
        elif messages:
            stored = consumer.commit_sync(30)
            if all(error is None for error in stored.values()):
                accepted.update(taken)
    consumer.close()
    assert killings == 2
    assert sorted(map(int, accepted)) == list(range(100))
    assert set(accepted.values()) == {1}, "an accepted record was delivered again"
