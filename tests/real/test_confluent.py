"""confluent-kafka (librdkafka): produce, consume, groups of every kind; refusals."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.real.conftest import START_MS, MakeTopic
from tests.real.librdkafka import (
    consumers,  # noqa: F401  (a fixture, by name)
    poll,
    produce,
    read,
)
from tests.real.members import Member, wait_for, wait_for_shares

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_produce_with_each_codec_and_acks(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str, codec: str, acks: str
) -> None:
    topic = make_topic()
    rows = [{"value": b"value %d " % i * 30, "key": b"%d" % i} for i in range(200)]
    produce(bootstrap, topic, rows, compression_type=codec, acks=acks)
    found = read(make_consumer(name, topic), 200)
    assert [(m.offset(), m.key(), m.value()) for m in found] == [
        (i, row["key"], row["value"]) for i, row in enumerate(rows)
    ]


def test_idempotent_producer_with_many_batches_in_flight(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(2)
    rows = [{"value": b"%d" % i, "key": b"%d" % (i % 7)} for i in range(3000)]
    produce(bootstrap, topic, rows, enable_idempotence=True, batch_num_messages=20, linger_ms=0)
    found = read(make_consumer(name, topic), 3000)
    assert sorted(int(m.value()) for m in found) == list(range(3000))
    for key in {m.key() for m in found}:
        ordered = [int(m.value()) for m in found if m.key() == key]
        assert ordered == sorted(ordered)


def test_headers_nulls_and_timestamps_round_trip(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    rows: list[dict[str, Any]] = [
        {"key": b"k", "value": None, "timestamp": START_MS},
        {"key": None, "value": b"", "headers": headers, "timestamp": START_MS + 1},
    ]
    produce(bootstrap, topic, rows)
    first, second = read(make_consumer(name, topic), 2)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", None, START_MS)
    assert (second.key(), second.value(), second.headers()) == (None, b"", headers)


def test_compacted_topic_refuses_records_without_key(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(cleanup_policy="compact")
    assert produce(bootstrap, topic, [{"key": b"k", "value": b"v"}]) == [0]
    with pytest.raises(KafkaException) as caught:
        produce(bootstrap, topic, [{"value": b"v"}])
    assert caught.value.args[0].code() == KafkaError.INVALID_RECORD


def test_timestamps_out_of_bounds_are_refused(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(message_timestamp_before_max_ms="10000")
    now = int(time.time() * 1000)
    assert produce(bootstrap, topic, [{"value": b"v", "timestamp": now}]) == [0]
    with pytest.raises(KafkaException) as caught:
        produce(bootstrap, topic, [{"value": b"v", "timestamp": now - 60_000}])
    assert caught.value.args[0].code() == KafkaError.INVALID_TIMESTAMP


def test_produce_to_many_partitions(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(200)
    rows = [{"value": b"%d" % i, "partition": i % 200} for i in range(1000)]
    produce(bootstrap, topic, rows)
    found = read(make_consumer(name, topic), 1000)
    assert {(m.partition(), m.offset()) for m in found} == {
        (p, o) for p in range(200) for o in range(5)
    }


def test_commit_with_metadata_and_resume(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    produce(bootstrap, topic, [{"value": b"%d" % i} for i in range(20)])
    first = make_consumer(name, topic)
    read(first, 7)
    first.commit(offsets=[TopicPartition(topic, 0, 7, metadata="seven")], asynchronous=False)
    (committed,) = first.committed([TopicPartition(topic, 0)], 10)
    assert (committed.offset, committed.metadata) == (7, "seven")
    first.close()
    assert [m.offset() for m in read(make_consumer(name, topic), 13)] == list(range(7, 20))


def test_offsets_for_times_and_watermarks(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic()
    start = START_MS
    rows = [{"value": b"x", "timestamp": start + i * 10} for i in range(100)]
    produce(bootstrap, topic, rows, batch_num_messages=9)
    consumer = make_consumer(name)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10) == (0, 100)
    for asked, offset in ((start, 0), (start + 1, 1), (start + 555, 56), (start + 991, -1)):
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, asked)], 10)
        assert found.offset == offset
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert read(consumer, 1)[0].offset() == 0


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_join_and_leave(
    bootstrap: str, make_topic: MakeTopic, make_consumer: Any, name: str, strategy: str
) -> None:
    topic = make_topic(6)
    config = {"partition_assignment_strategy": strategy}
    members = [Member(make_consumer(name, topic, **config), poll) for _ in range(3)]
    wait_for_shares(members, [2, 2, 2])
    members.append(Member(make_consumer(name, topic, **config), poll))
    wait_for_shares(members, [1, 1, 2, 2])
    for _ in range(3):
        members.pop().leave()
    wait_for_shares(members, [6])
    produce(bootstrap, topic, [{"value": b"x", "partition": p} for p in range(6)])
    wait_for(lambda: len(members[0].records) == 6)
    members.pop().leave()


def test_member_that_stops_polling_is_removed(
    make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    """A member whose process stops polling is removed when max.poll.interval.ms is over."""
    topic = make_topic(2)
    dead = make_consumer(name, topic, max_poll_interval_ms=6000, session_timeout_ms=6000)
    wait_for(lambda: not poll(dead) and len(dead.assignment()) == 2)
    living = Member(make_consumer(name, topic), poll)
    wait_for_shares([living], [2])
    living.leave()
    # It has to take note of the rebalance before it is closed: else librdkafka 2.16 can wait
    # forever in close() for an answer of its thread that has ended (librdkafka issue 4884).
    with pytest.raises(KafkaException) as caught:
        wait_for(lambda: bool(poll(dead)))
    assert caught.value.args[0].code() == KafkaError._MAX_POLL_EXCEEDED


def test_static_member_restarts_without_rebalance(
    admin: AdminClient, make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(4)
    statics = [
        Member(make_consumer(name, topic, group_instance_id=f"i{i}", client_id=f"c{i}"), poll)
        for i in range(2)
    ]
    wait_for_shares(statics, [2, 2])
    held = statics[0].assigned
    before = members_of(admin, name)
    statics[0].leave()  # a static member sends no LeaveGroup
    again = Member(make_consumer(name, topic, group_instance_id="i0", client_id="c0"), poll)
    wait_for(lambda: again.assigned == held)
    after = members_of(admin, name)
    assert set(after) == {"i0", "i1"}
    assert after["i1"] == before["i1"]  # the other member kept its id, the restarted one is new
    assert after["i0"] != before["i0"]
    for member in (again, statics[1]):
        member.leave()


def members_of(admin: AdminClient, group: str) -> dict[str, str]:
    described = admin.describe_consumer_groups([group])[group].result(60)
    return {m.group_instance_id: m.member_id for m in described.members}


def test_second_static_member_with_same_id_fences_first(
    make_topic: MakeTopic, make_consumer: Any, name: str
) -> None:
    topic = make_topic(1)
    first = Member(make_consumer(name, topic, group_instance_id="one"), poll)
    wait_for_shares([first], [1])
    second = Member(make_consumer(name, topic, group_instance_id="one"), poll)
    wait_for(lambda: first.error is not None)
    assert isinstance(first.error, KafkaException)
    assert first.error.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    wait_for_shares([second], [1])
    second.leave()


def test_unknown_topic_without_auto_creation_is_an_error(make_consumer: Any, name: str) -> None:
    consumer = make_consumer(name, name, allow_auto_create_topics=False)
    message = None
    end = time.monotonic() + 60
    while message is None and time.monotonic() < end:
        message = consumer.poll(0.2)
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
