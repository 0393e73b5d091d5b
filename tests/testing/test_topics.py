"""Topics, a producer and a consumer for tests of other projects."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError
from kafkawire.client.offsets import leaders
from kafkawire.testing import BrokerProcess, ReadRecord, TopicConsumer, TopicProducer
from kafkawire.testing.plugin import TopicFactory
from kafkawire.testing.topics import unique_name

pytestmark = pytest.mark.real

seen: set[str] = set()


@pytest.mark.parametrize("words", ["a b", "ä/ö"])
def test_each_test_has_its_topic(
    kafkawire_session_broker: BrokerProcess, kafkawire_topic: str, words: str
) -> None:
    assert kafkawire_topic.startswith("test_each_test_has_its_topic-")
    assert kafkawire_topic not in seen
    seen.add(kafkawire_topic)
    with Cluster(kafkawire_session_broker.bootstrap) as cluster:
        assert len(leaders(cluster, [kafkawire_topic])) == 1


def test_more_topics(
    kafkawire_session_broker: BrokerProcess, kafkawire_topics: TopicFactory
) -> None:
    first, second = kafkawire_topics(), kafkawire_topics(3, settings={"retention.ms": 1000})
    assert first != second
    with Cluster(kafkawire_session_broker.bootstrap) as cluster:
        assert len(leaders(cluster, [second])) == 3
    with pytest.raises(BrokerError, match=r"cleanup\.policy"):
        kafkawire_topics(settings={"cleanup.policy": "burn"})


def test_topic_without_naming_a_broker(
    kafkawire_topic: str, kafkawire_producer: TopicProducer, kafkawire_consumer: TopicConsumer
) -> None:
    """On the broker of this test."""
    assert kafkawire_producer.send(kafkawire_topic, b"x") == 0
    assert [row.value for row in kafkawire_consumer.read(kafkawire_topic, 1)] == [b"x"]


def test_records_are_read_as_they_were_sent(
    kafkawire_session_broker: BrokerProcess,
    kafkawire_topics: TopicFactory,
    kafkawire_producer: TopicProducer,
    kafkawire_consumer: TopicConsumer,
) -> None:
    topic = kafkawire_topics(2)
    headers = [("a", b"1"), ("a", None)]
    rows = [
        ReadRecord(0, 0, 1000, b"k", b"v", headers),
        ReadRecord(0, 1, 500, None, None, []),
        ReadRecord(1, 0, 2000, b"", b"", []),
    ]
    for row in rows:
        offset = kafkawire_producer.send(
            topic,
            row.value,
            key=row.key,
            headers=row.headers,
            partition=row.partition,
            timestamp_ms=row.timestamp_ms,
        )
        assert offset == row.offset
    found = kafkawire_consumer.read(topic, 3)
    assert [row._replace(headers=list(row.headers)) for row in found] == rows
    with pytest.raises(AssertionError, match=f"^{topic} has 3 of 4 records after 0 s$"):
        kafkawire_consumer.read(topic, 4, timeout_s=0)


def test_unknown_topic_is_created_and_unknown_partition_is_refused(
    kafkawire_session_broker: BrokerProcess,
    kafkawire_producer: TopicProducer,
    kafkawire_consumer: TopicConsumer,
) -> None:
    topic = unique_name("new")
    with pytest.raises(BrokerError, match=topic):
        kafkawire_consumer.read(topic, 1)
    assert kafkawire_producer.send(topic, b"x") == 0
    assert len(kafkawire_consumer.read(topic, 1)) == 1
    with pytest.raises(BrokerError, match=f"{topic}:7"):
        kafkawire_producer.send(topic, b"x", partition=7)


def test_records_that_are_deleted_meanwhile(kafkawire_broker: BrokerProcess) -> None:
    producer = TopicProducer(kafkawire_broker.bootstrap)
    for value in (b"1", b"2"):
        producer.send("deleted", value)
    kafkawire_broker.fail("Fetch", "OFFSET_OUT_OF_RANGE", topic="deleted")
    assert [row.value for row in kafkawire_broker.records("deleted")] == [b"1", b"2"]


def test_records_are_awaited(kafkawire_session_broker: BrokerProcess) -> None:
    broker, topic = kafkawire_session_broker, unique_name("awaited")
    producer = TopicProducer(broker.bootstrap)

    def send() -> None:
        for value in (b"1", b"2", b"3"):
            producer.send(topic, value)

    with ThreadPoolExecutor() as threads:
        threads.submit(send)
        assert broker.wait_for(topic, 1)[0].value == b"1"  # the topic is created meanwhile
        found = broker.wait_for(topic, lambda record: record.value == b"3")
    assert (
        [row.value for row in found]
        == [b"1", b"2", b"3"]
        == [row.value for row in broker.records(topic)]
    )
    with pytest.raises(AssertionError, match=f"^{topic} has 3 records after 0 s, and none is want"):
        broker.wait_for(topic, lambda record: record.value == b"4", timeout_s=0)
    with pytest.raises(AssertionError, match="there is no topic absent after 0 s"):
        broker.wait_for("absent", 1, timeout_s=0)


def test_aborted_records_are_not_read(
    kafkawire_session_broker: BrokerProcess, kafkawire_topic: str, kafkawire_consumer: TopicConsumer
) -> None:
    servers = kafkawire_session_broker.bootstrap
    producer = Producer({"bootstrap.servers": servers, "transactional.id": kafkawire_topic})
    producer.init_transactions(30)
    for value in (b"dropped", b"kept"):
        producer.begin_transaction()
        producer.produce(kafkawire_topic, value)
        producer.flush(90)
        (producer.commit_transaction if value == b"kept" else producer.abort_transaction)(30)
    assert [row.value for row in kafkawire_consumer.read(kafkawire_topic, 1)] == [b"kept"]


def test_broker_may_be_restarted(
    kafkawire_broker: BrokerProcess,
    kafkawire_producer: TopicProducer,
    kafkawire_consumer: TopicConsumer,
) -> None:
    kafkawire_producer.send("t", b"before")
    kafkawire_broker.kill()
    kafkawire_broker.start()
    kafkawire_producer.send("t", b"after")
    assert [row.value for row in kafkawire_consumer.read("t", 2)] == [b"before", b"after"]


def test_key_chooses_the_partition(
    kafkawire_session_broker: BrokerProcess,
    kafkawire_topics: TopicFactory,
    kafkawire_producer: TopicProducer,
    kafkawire_consumer: TopicConsumer,
) -> None:
    """As Kafka's clients do by murmur2."""
    topic = kafkawire_topics(5)
    servers = kafkawire_session_broker.bootstrap
    other = Producer({"bootstrap.servers": servers, "partitioner": "murmur2"})
    for key in (b"a", b"b", b"c", b"customer-7"):
        kafkawire_producer.send(topic, b"", key=key)
        other.produce(topic, b"", key)
    assert other.flush(90) == 0
    found = kafkawire_consumer.read(topic, 8)
    partitions: dict[bytes | None, set[int]] = {}
    for row in found:
        partitions.setdefault(row.key, set()).add(row.partition)
    assert [len(each) for each in partitions.values()] == [1, 1, 1, 1]


def test_names_of_topics() -> None:
    assert unique_name("test_a[x y/z-1]").startswith("test_a-x-y-z-1-")
    assert len(unique_name("x" * 300)) < 249
    assert unique_name("[]") != unique_name("[]")
