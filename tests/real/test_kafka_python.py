"""kafka-python: produce in every form, read back, groups, offsets, admin."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import (
    GroupIdNotFoundError,
    InvalidPartitionsError,
    KafkaError,
    MessageSizeTooLargeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.real.conftest import START_MS, MakeTopic
from tests.real.members import Member, poll_kafka_python, wait_for, wait_for_shares

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def make_consumer(bootstrap: str) -> Iterator[Callable[..., KafkaConsumer]]:
    made: list[KafkaConsumer] = []

    def make(*topics: str, **config: Any) -> KafkaConsumer:
        settings = {
            "bootstrap_servers": bootstrap,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 300,
            "session_timeout_ms": 10_000,
            **config,
        }
        made.append(KafkaConsumer(*topics, **settings))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def producer(bootstrap: str) -> Iterator[KafkaProducer]:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as made:
        yield made


@pytest.fixture(scope="module")
def py_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as made:
        yield made


def read(consumer: KafkaConsumer, count: int, timeout_s: float = 60) -> list[Any]:
    """The next `count` records."""
    found: list[Any] = []
    end = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < end:
        for batch in consumer.poll(timeout_ms=500).values():
            found += batch
    assert len(found) == count
    return found


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_produce_with_each_codec_and_acks(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, codec: str | None, acks: int | str
) -> None:
    topic = make_topic()
    config = {"acks": acks, "enable_idempotence": False, "compression_type": codec, "linger_ms": 5}
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **config)) as producer:
        futures = [producer.send(topic, b"value %d" % i * 20, key=b"%d" % i) for i in range(100)]
        producer.flush(90)
        offsets = [future.get(90).offset for future in futures]
    if acks != 0:  # no answer, no offsets
        assert offsets == list(range(100))
    records = read(make_consumer(topic), 100)
    assert [(r.offset, r.key) for r in records] == [(i, b"%d" % i) for i in range(100)]
    assert [r.value for r in records] == [b"value %d" % i * 20 for i in range(100)]


def test_headers_nulls_and_timestamps_round_trip(
    producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any
) -> None:
    topic = make_topic()
    now = int(time.time() * 1000)
    producer.send(topic, None, key=b"tombstone", timestamp_ms=now - 5)
    producer.send(topic, b"", key=None, headers=[("a", b"1"), ("a", b""), ("\u00fc", b"\xff")])
    producer.send(topic, b"x", key=b"", timestamp_ms=now - 3)
    producer.flush(90)
    first, second, third = read(make_consumer(topic), 3)
    assert (first.key, first.value, first.timestamp) == (b"tombstone", None, now - 5)
    assert (second.key, second.value) == (None, b"")
    assert second.headers == [("a", b"1"), ("a", b""), ("\u00fc", b"\xff")]
    assert (third.key, third.value, third.timestamp_type) == (b"", b"x", 0)


def test_log_append_time(
    producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any
) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    metadata = producer.send(topic, b"x", timestamp_ms=1000).get(90)
    assert metadata.timestamp > START_MS
    (record,) = read(make_consumer(topic), 1)
    assert (record.timestamp, record.timestamp_type) == (metadata.timestamp, 1)


def test_topic_compression_type_applies_to_produced_batches(
    producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any
) -> None:
    topic = make_topic(compression_type="zstd")
    for i in range(20):
        producer.send(topic, b"compressed by the broker" * 50, key=b"%d" % i)
    producer.flush(90)
    records = read(make_consumer(topic), 20)
    assert {r.value for r in records} == {b"compressed by the broker" * 50}


def test_large_messages(bootstrap: str, make_topic: MakeTopic, make_consumer: Any) -> None:
    topic = make_topic(max_message_bytes="6000000")
    big = bytes(range(256)) * 20_000
    with closing(
        KafkaProducer(bootstrap_servers=bootstrap, max_request_size=10_000_000)
    ) as producer:
        assert producer.send(topic, big).get(90).offset == 0
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, big * 2).get(90)
        assert producer.send(topic, b"after").get(90).offset == 1
    first, second = read(make_consumer(topic), 2)
    assert (first.value, second.value) == (big, b"after")


def test_producer_auto_creates_topic(
    producer: KafkaProducer, name: str, make_consumer: Any
) -> None:
    assert producer.send(name, b"x").get(90).offset == 0
    assert read(make_consumer(name), 1)[0].value == b"x"


def test_seek_and_list_offsets_by_time(
    producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any
) -> None:
    topic = make_topic()
    at = TopicPartition(topic, 0)
    start = START_MS
    for i in range(50):
        producer.send(topic, b"%d" % i, timestamp_ms=start + i * 1000)
        if i % 7 == 0:
            producer.flush(90)
    producer.flush(90)
    consumer = make_consumer()
    consumer.assign([at])
    assert consumer.beginning_offsets([at]) == {at: 0}
    assert consumer.end_offsets([at]) == {at: 50}
    for asked, offset, stamp in ((start, 0, 0), (start + 20_001, 21, 21_000), (0, 0, 0)):
        found = consumer.offsets_for_times({at: asked})[at]
        assert (found.offset, found.timestamp) == (offset, start + stamp)
    assert consumer.offsets_for_times({at: start + 49_001})[at] is None
    consumer.seek(at, 33)
    assert [r.offset for r in read(consumer, 17)] == list(range(33, 50))
    consumer.seek_to_beginning(at)
    assert read(consumer, 50)[0].offset == 0
    consumer.seek_to_end(at)
    assert consumer.position(at) == 50


def test_commit_and_resume(
    producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(3)
    for i in range(30):
        producer.send(topic, b"%d" % i, partition=i % 3)
    producer.flush(90)
    first = make_consumer(topic, group_id=name, max_poll_records=5)
    seen = read(first, 10)
    offsets = {}
    for record in seen:
        at = TopicPartition(topic, record.partition)
        offsets[at] = OffsetAndMetadata(record.offset + 1, f"at {record.offset}", -1)
    first.commit(offsets)
    for at, committed in offsets.items():
        assert first.committed(at) == committed.offset
        assert first.committed(at, metadata=True).metadata == committed.metadata
    first.close()
    rest = read(make_consumer(topic, group_id=name), 20)
    both = sorted((r.partition, r.offset) for r in seen + rest)
    assert both == [(p, o) for p in range(3) for o in range(10)]


def test_members_share_and_take_over_partitions(
    producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(6)
    members = [Member(make_consumer(topic, group_id=name), poll_kafka_python) for _ in range(3)]
    wait_for_shares(members, [2, 2, 2])
    members.pop().leave()
    wait_for_shares(members, [3, 3])
    members.pop().leave()
    wait_for_shares(members, [6])
    for partition in range(6):
        producer.send(topic, b"x", partition=partition)
    wait_for(lambda: len(members[0].records) == 6)
    members.pop().leave()


def test_admin_topics(py_admin: KafkaAdminClient, name: str) -> None:
    py_admin.create_topics([NewTopic(name, 4, 1, topic_configs={"retention.ms": "123456"})])
    with pytest.raises(TopicAlreadyExistsError):
        py_admin.create_topics([NewTopic(name, 4, 1)])
    assert name in py_admin.list_topics()
    (described,) = py_admin.describe_topics([name])
    assert len(described["partitions"]) == 4
    py_admin.create_partitions({name: 6})
    with pytest.raises(InvalidPartitionsError):
        py_admin.create_partitions({name: 6})
    (described,) = py_admin.describe_topics([name])
    assert len(described["partitions"]) == 6
    py_admin.delete_topics([name])
    with pytest.raises(UnknownTopicOrPartitionError):
        py_admin.delete_topics([name])
    assert name not in py_admin.list_topics()


def test_recreated_topic_is_empty_without_offsets(
    py_admin: KafkaAdminClient, bootstrap: str, make_consumer: Any, name: str
) -> None:
    py_admin.create_topics([NewTopic(name, 1, 1)])
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for _ in range(5):
            producer.send(name, b"old")
        producer.flush(90)
    first = make_consumer(name, group_id=name)
    read(first, 5)
    first.commit()
    first.close()
    py_admin.delete_topics([name])
    wait_for(lambda: name not in py_admin.list_topics())
    py_admin.create_topics([NewTopic(name, 1, 1)])
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        assert producer.send(name, b"new").get(90).offset == 0
    again = make_consumer(name, group_id=name)
    (record,) = read(again, 1)
    assert (record.offset, record.value) == (0, b"new")


def test_admin_groups(
    py_admin: KafkaAdminClient,
    producer: KafkaProducer,
    make_topic: MakeTopic,
    make_consumer: Any,
    name: str,
) -> None:
    topic = make_topic(2)
    for p in range(2):
        producer.send(topic, b"x", partition=p)
    producer.flush(90)
    member = make_consumer(topic, group_id=name, client_id="the-member")
    read(member, 2)
    member.commit()
    described = py_admin.describe_groups([name])[name]
    assert described["group_state"] == "Stable"
    assert described["members"][0]["client_id"] == "the-member"
    assert name in {group["group_id"] for group in py_admin.list_groups()}
    with pytest.raises(KafkaError):
        raise_first(py_admin.delete_groups([name]))
    member.close()
    offsets = py_admin.list_group_offsets({name: None})[name]
    assert {at: found.offset for at, found in offsets.items()} == {
        TopicPartition(topic, 0): 1,
        TopicPartition(topic, 1): 1,
    }
    py_admin.delete_group_offsets(name, [TopicPartition(topic, 1)])
    offsets = py_admin.list_group_offsets({name: None})[name]
    assert set(offsets) == {TopicPartition(topic, 0)}
    raise_first(py_admin.delete_groups([name]))
    assert name not in {group["group_id"] for group in py_admin.list_groups()}
    with pytest.raises(GroupIdNotFoundError):
        raise_first(py_admin.delete_groups([name]))


def raise_first(results: Any) -> None:
    """Raise the first error: delete_groups returns one result or error per group."""
    values = results.values() if isinstance(results, dict) else results
    for value in values:
        error = value[1] if isinstance(value, tuple) else value
        if isinstance(error, BaseException):
            raise error
        if isinstance(error, type) and error.__name__ != "NoError":
            raise error()
        if isinstance(error, str) and error not in ("OK", ""):
            raise GroupIdNotFoundError() if "NotFound" in error else KafkaError(error)


def test_delete_records_moves_log_start(
    py_admin: KafkaAdminClient, producer: KafkaProducer, make_topic: MakeTopic, make_consumer: Any
) -> None:
    topic = make_topic()
    at = TopicPartition(topic, 0)
    for i in range(10):
        producer.send(topic, b"%d" % i).get(90)
    py_admin.delete_records({at: 4})
    consumer = make_consumer()
    consumer.assign([at])
    assert consumer.beginning_offsets([at]) == {at: 4}
    consumer.seek(at, 0)
    assert [r.offset for r in read(consumer, 6)] == list(range(4, 10))
    py_admin.delete_records({at: -1})
    assert consumer.beginning_offsets([at]) == {at: 10}
    assert producer.send(topic, b"next").get(90).offset == 10
