"""Faults that a test adds to its broker: of every API, of parts of requests, for real clients.

Covers: kafkawire.testing.commands, kafkawire.testing.control, kafkawire.testing.faults,
kafkawire.testing.parts
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

import kafkawire.testing
from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import Closed
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.schema import fields_in
from kafkawire.handlers.table import ROWS
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kafkawire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.registry import request_class
from kafkawire.testing import (
    TEST_SETTINGS,
    BrokerFailed,
    BrokerProcess,
    InProcessBroker,
    TopicConsumer,
    TopicProducer,
)
from kafkawire.testing.topics import create_topic
from tests.handlers.test_failures import codes, one_of_each

pytestmark = pytest.mark.real

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT = 0, 1, 2, 3, 8
NOT_LEADER, STORAGE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR
LOG_INS = (17, 36)


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokerProcess]:
    with BrokerProcess(settings=TEST_SETTINGS) as broker:
        yield broker


@pytest.fixture
def process(shared: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker in another process, without faults."""
    yield shared
    shared.clear_faults()


@pytest.fixture(scope="module")
def own() -> Iterator[InProcessBroker]:
    with kafkawire.testing.broker() as broker:
        yield broker


@pytest.fixture
def inside(own: InProcessBroker) -> Iterator[InProcessBroker]:
    """A broker in this process, without faults."""
    yield own
    own.clear_faults()


def connection(broker: InProcessBroker | BrokerProcess) -> ClientConnection:
    return ClientConnection("127.0.0.1", broker.port)


def sent(key: int, version: int) -> Any:
    """A request that this version can have."""
    kind = request_class(key)
    made, default = one_of_each(kind), kind()
    present = {field.name for field in fields_in(kind, version)}
    for name in default.__wire_defaults__:
        if name not in present:
            setattr(made, name, getattr(default, name))
    if key == PRODUCE:
        made.acks = 1  # 0: there is no answer
    return made


def produce(*topics: str, partitions: int = 1, acks: int = -1) -> ProduceRequest:
    batch = pack([Record(0, 1_000, None, b"value", ())])
    rows = [
        TopicProduceData(
            name=topic, partition_data=[PartitionProduceData(n, batch) for n in range(partitions)]
        )
        for topic in topics
    ]
    return ProduceRequest(None, acks, 10_000, rows)


def found(topics: list[Any], rows: str = "partitions") -> dict[tuple[str, int], int]:
    """Codes by topic and partition."""
    names = ("partition_index", "index")
    return {
        (
            getattr(topic, "topic", "") or topic.name,
            next(getattr(row, name) for name in names if hasattr(row, name)),
        ): row.error_code
        for topic in topics
        for row in getattr(topic, rows)
    }


# Every API.


@pytest.mark.parametrize("row", [row for row in ROWS if row.key not in LOG_INS], ids=str)
def test_every_api_can_fail_once(row: Any, inside: InProcessBroker) -> None:
    # The APIs of client metrics are advertised only while there is a subscription.
    subscription = AlterConfigsResource(16, "all", [AlterableConfig("metrics", 0, "org.")])
    with contextlib.closing(connection(inside)) as client:
        client.request(44, IncrementalAlterConfigsRequest([subscription]))
    with contextlib.closing(connection(inside)) as client:
        fault = inside.fail(row.key, STORAGE)
        answer = client.request(row.key, sent(row.key, row.max_version))
    assert int(STORAGE) in codes(answer)
    assert set(codes(answer)) <= {0, int(STORAGE)}
    assert fault.used == 1


def test_names_are_those_of_kafka(inside: InProcessBroker) -> None:
    for api in ("ListGroups", "list_groups", "LIST_GROUPS", 16):
        fault = inside.fail(api, "coordinator_not_available")
        with contextlib.closing(connection(inside)) as client:
            assert client.request(16, request_class(16)()).error_code == 15
            assert client.request(16, request_class(16)()).error_code == 0
        assert fault.used == 1


@pytest.mark.parametrize(
    ("api", "error", "more", "sentence"),
    [
        ("Nope", 6, {}, "api=Nope: this broker serves no such API"),
        (-1, 6, {}, "api=-1: "),
        ("Produce", "NOPE", {}, "error=NOPE: Kafka has no such error"),
        ("Produce", 0, {}, "error=0: it must be an error"),
        ("Produce", 6, {"partition": 0}, "partition=0: a topic must be given with it"),
        ("Heartbeat", 6, {"topic": "t"}, "topic=t: Heartbeat has no errors of single topics"),
        ("Produce", 6, {"times": 0}, "times=0: it must be at least 1"),
        ("SaslAuthenticate", 6, {}, "part of a log-in"),
    ],
)
def test_wrong_faults_are_named(
    process: BrokerProcess, api: str, error: Any, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        process.fail(api, error, **more)


def test_times_and_end_of_faults(process: BrokerProcess) -> None:
    create_topic(process.bootstrap, "times")
    twice = process.fail("Produce", STORAGE, times=2)
    with contextlib.closing(connection(process)) as client:
        answers = [client.request(PRODUCE, produce("times"), at_most=12) for _ in range(3)]
        assert [codes(each) for each in answers] == [[56], [56], [0]]
        always = process.fail("Produce", STORAGE, times=None)
        for _ in range(5):
            assert codes(client.request(PRODUCE, produce("times"), at_most=12)) == [56]
        assert (twice.used, always.used) == (2, 5)
        process.clear_faults()
        assert codes(client.request(PRODUCE, produce("times"), at_most=12)) == [0]
        assert always.used == 5
    assert len(TopicConsumer(process.bootstrap).read("times", 2)) == 2


# Parts of requests.


@pytest.mark.parametrize("version", [3, 12, 13])
def test_other_topics_of_produce_are_stored(process: BrokerProcess, version: int) -> None:
    ours, other = f"ours-{version}", f"other-{version}"
    for name in (ours, other):
        create_topic(process.bootstrap, name, 2)
    asked = produce(ours, other, partitions=2)
    with contextlib.closing(connection(process)) as client:
        if version == 13:
            metadata = client.request(METADATA, MetadataRequest([MetadataRequestTopic(name=ours)]))
            more = client.request(METADATA, MetadataRequest([MetadataRequestTopic(name=other)]))
            ids = [metadata.topics[0].topic_id, more.topics[0].topic_id]
            for topic, topic_id in zip(asked.topic_data, ids, strict=True):
                topic.name, topic.topic_id = "", topic_id
        fault = process.fail("Produce", NOT_LEADER, topic=ours, partition=1)
        answer = client.request(PRODUCE, asked, at_most=version)
        if version == 13:
            for topic in answer.responses:
                topic.name = ours if topic.topic_id == ids[0] else other
    assert found(answer.responses, "partition_responses") == {
        (ours, 0): 0, (ours, 1): 6, (other, 0): 0, (other, 1): 0,
    }  # fmt: skip
    assert len(answer.responses) == 2
    assert fault.used == 1
    read = [row.partition for row in TopicConsumer(process.bootstrap).read(ours, 1)]
    assert read == [0]


def test_other_topics_of_fetch_are_read(process: BrokerProcess) -> None:
    for name in ("fetched", "not-fetched"):
        TopicProducer(process.bootstrap).send(name, b"value")
    fault = process.fail("Fetch", NOT_LEADER, topic="not-fetched")
    rows = [FetchTopic(name, partitions=[FetchPartition(0)]) for name in ("fetched", "not-fetched")]
    for row in rows:
        row.partitions[0].partition_max_bytes = 1 << 20
    asked = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, topics=rows)
    asked.session_epoch = -1
    with contextlib.closing(connection(process)) as client:
        answer = client.request(FETCH, asked, at_most=12)
    assert found(answer.responses) == {("fetched", 0): 0, ("not-fetched", 0): 6}
    data = {topic.topic: bytes(topic.partitions[0].records or b"") for topic in answer.responses}
    assert b"value" in data["fetched"]
    assert not data["not-fetched"]
    assert fault.used == 1


def test_other_topics_of_cold_requests_are_served(process: BrokerProcess) -> None:
    for name in ("a", "b"):
        create_topic(process.bootstrap, name)
    names = ("a", "b")
    process.fail("ListOffsets", STORAGE, topic="a")
    process.fail("OffsetCommit", STORAGE, topic="b", partition=0)
    offsets = [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, -1)]) for name in names]
    commits = [
        OffsetCommitRequestTopic(name=name, partitions=[OffsetCommitRequestPartition(0, 5)])
        for name in names
    ]
    with Cluster(process.bootstrap) as cluster:
        client = cluster.coordinator("g")
        answer = client.request(LIST_OFFSETS, ListOffsetsRequest(-1, 0, offsets), at_most=7)
        assert found(answer.topics) == {("a", 0): 56, ("b", 0): 0}
        asked = OffsetCommitRequest("g", -1, "", topics=commits)
        answer = client.request(OFFSET_COMMIT, asked, at_most=9)
        assert found(answer.topics) == {("a", 0): 0, ("b", 0): 56}


def test_two_faults_of_one_request(process: BrokerProcess) -> None:
    for name in ("first", "second", "third"):
        create_topic(process.bootstrap, name)
    process.fail("Produce", 6, topic="first")
    process.fail("Produce", 56, topic="third")
    with contextlib.closing(connection(process)) as client:
        answer = client.request(PRODUCE, produce("first", "second", "third"), at_most=12)
    assert found(answer.responses, "partition_responses") == {
        ("first", 0): 6, ("second", 0): 0, ("third", 0): 56,
    }  # fmt: skip


def test_topics_that_only_the_answer_names(process: BrokerProcess) -> None:
    for name in ("named", "unnamed"):
        create_topic(process.bootstrap, name, 2)
    fault = process.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="named")
    part = process.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="unnamed", partition=1)
    absent = process.fail("Metadata", "LEADER_NOT_AVAILABLE", topic="absent")
    with contextlib.closing(connection(process)) as client:
        answer = client.request(METADATA, MetadataRequest(None))
        one = client.request(METADATA, MetadataRequest([MetadataRequestTopic(name="unnamed")]))
    rows = {topic.name: topic for topic in answer.topics}
    assert (rows["named"].error_code, rows["unnamed"].error_code) == (5, 0)
    assert [row.error_code for row in rows["unnamed"].partitions] == [0, 5]
    assert [row.error_code for row in one.topics[0].partitions] == [0, 0]
    assert (fault.used, part.used, absent.used) == (1, 1, 0)


def test_error_of_all_topics_comes_with_the_brokers(process: BrokerProcess) -> None:
    create_topic(process.bootstrap, "all")
    fault = process.fail("Metadata", "LEADER_NOT_AVAILABLE")
    with contextlib.closing(connection(process)) as client:
        none = client.request(METADATA, MetadataRequest([]))
        answer = client.request(METADATA, MetadataRequest(None))
    assert len(none.brokers) == len(answer.brokers) == 1
    assert {topic.error_code for topic in answer.topics} == {5}
    assert fault.used == 1


def test_produce_without_an_answer(process: BrokerProcess) -> None:
    """Kafka closes the connection, so that the client learns of the error."""
    create_topic(process.bootstrap, "acks")
    process.delay("Produce", 0.01)
    with contextlib.closing(connection(process)) as client:
        client.send(PRODUCE, produce("acks", acks=0), at_most=12)
        assert client.request(METADATA, MetadataRequest([])).brokers
        process.fail("Produce", 6)
        client.send(PRODUCE, produce("acks", acks=0), at_most=12)
        with pytest.raises(Closed):
            client.request(METADATA, MetadataRequest([]))
    assert len(TopicConsumer(process.bootstrap).read("acks", 1)) == 1


# Other faults.


def test_delay_and_throttle(process: BrokerProcess) -> None:
    create_topic(process.bootstrap, "late")
    delay = process.delay("Produce", 0.3)
    throttle = process.throttle("Produce", 0.2)
    with contextlib.closing(connection(process)) as client:
        begun = time.monotonic()
        answer = client.request(PRODUCE, produce("late"), at_most=12)
        assert time.monotonic() - begun > 0.29
        assert (codes(answer), answer.throttle_time_ms) == ([0], 200)
        assert client.request(PRODUCE, produce("late"), at_most=12).throttle_time_ms == 0
        assert time.monotonic() - begun > 0.49  # nothing was read since the answer
    assert (delay.used, throttle.used) == (1, 1)


def test_client_that_disconnects_during_a_delay(process: BrokerProcess) -> None:
    fault = process.delay("ListGroups", 0.05)
    client = connection(process)
    client.send(16, request_class(16)())
    fault.wait()
    client.close()
    with contextlib.closing(connection(process)) as other:
        assert other.request(16, request_class(16)()).error_code == 0
    assert process.running


def test_faults_that_do_not_come_are_reported(process: BrokerProcess) -> None:
    with pytest.raises(AssertionError, match=r"drop Fetch was used by 0 of 1 requests after 0\.05"):
        process.drop("Fetch").wait(timeout_s=0.05)


def test_faults_end_with_the_broker(tmp_path: Any) -> None:
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        broker.drop("ListGroups", times=None)
        broker.restart()
        with contextlib.closing(connection(broker)) as client:
            assert client.request(16, request_class(16)()).error_code == 0
    with pytest.raises(BrokerFailed, match="does not run"):
        broker.clear_faults()
    with pytest.raises(ValueError, match="workers=2: "):
        BrokerProcess(tmp_path, workers=2).clear_faults()


def test_defects_close_the_connection(
    inside: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> bytes:
        raise RuntimeError("a defect of the test")

    inside.fail("ListGroups", 15)
    with contextlib.closing(connection(inside)) as client:
        monkeypatch.setattr("kafkawire.testing.faults.encode", defect)
        with pytest.raises(Closed):
            client.request(16, request_class(16)())


def test_broker_that_does_not_answer(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.testing.process.ANSWER_S", 0.01)
    with BrokerProcess(tmp_path, settings=TEST_SETTINGS) as broker:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            for _ in range(2):
                with pytest.raises(BrokerFailed, match="did not execute clear_faults"):
                    broker.clear_faults()
        finally:
            os.kill(broker.pid, signal.SIGCONT)


async def test_own_event_loop() -> None:
    async with kafkawire.testing.async_broker() as broker:
        fault = broker.fail("Produce", NOT_LEADER)
        assert fault.used == 0


# Real clients.


@pytest.mark.slow
@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR"])
def test_kafka_python_sends_again(process: BrokerProcess, error: str) -> None:
    fault = process.fail("Produce", error)
    producer = KafkaProducer(bootstrap_servers=process.bootstrap, retry_backoff_ms=20)
    try:
        assert producer.send(f"again-{error}", b"value").get(timeout=30).offset == 0
    finally:
        producer.close()
    assert fault.used == 1


@pytest.mark.slow
def test_librdkafka_sends_again(process: BrokerProcess) -> None:
    faults = [process.fail("Produce", "NOT_LEADER_OR_FOLLOWER"), process.drop("Produce")]
    assert confluent_error(process, "confluent-again") is None
    assert [fault.used for fault in faults] == [1, 1]
    assert len(TopicConsumer(process.bootstrap).read("confluent-again", 1)) == 1


def confluent_error(broker: BrokerProcess, topic: str) -> Any:
    """The error of one record that was sent with librdkafka."""
    results: list[Any] = []
    settings = {"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 20}
    producer = Producer(settings)
    producer.produce(topic, b"value", on_delivery=lambda error, _: results.append(error))
    producer.flush(60)
    return results[0]


@pytest.mark.slow
def test_errors_that_are_final_reach_the_application(process: BrokerProcess) -> None:
    process.fail("Produce", "TOPIC_AUTHORIZATION_FAILED", topic="forbidden", times=2)
    producer = KafkaProducer(bootstrap_servers=process.bootstrap)
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("forbidden", b"value").get(timeout=30)
    finally:
        producer.close()
    assert confluent_error(process, "forbidden").name() == "TOPIC_AUTHORIZATION_FAILED"
    assert confluent_error(process, "forbidden") is None


@pytest.mark.slow
def test_dropped_connection_of_kafka_python(process: BrokerProcess) -> None:
    fault = process.drop("Produce")
    producer = KafkaProducer(bootstrap_servers=process.bootstrap, retry_backoff_ms=20)
    try:
        assert producer.send("dropped", b"value").get(timeout=30).offset == 0
    finally:
        producer.close()
    assert fault.used == 1


@pytest.mark.slow
def test_coordinator_that_moves_and_leader_that_changes(process: BrokerProcess) -> None:
    """Every request of a group finds its coordinator again, and a reader its leader."""
    topic = "moved"
    for number in range(3):
        TopicProducer(process.bootstrap).send(topic, str(number).encode())
    apis = ("JoinGroup", "SyncGroup", "OffsetFetch", "Heartbeat", "OffsetCommit")
    faults = [process.fail(api, "NOT_COORDINATOR") for api in apis]
    faults.append(process.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"))
    faults.append(process.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic))
    faults.append(process.fail("ListOffsets", "NOT_LEADER_OR_FOLLOWER", topic=topic))
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=process.bootstrap,
        group_id="moved-group",
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        heartbeat_interval_ms=50,
        session_timeout_ms=10_000,
    )
    try:
        assert [next(consumer).value for _ in range(3)] == [b"0", b"1", b"2"]
        faults[3].wait(timeout_s=30)  # heartbeats are sent in the background
        consumer.commit()
    finally:
        consumer.close()
    assert [fault.used for fault in faults] == [1] * len(faults)


@pytest.mark.slow
def test_coordinator_that_moves_for_librdkafka(process: BrokerProcess) -> None:
    topic = "rd-moved"
    TopicProducer(process.bootstrap).send(topic, b"value")
    faults = [process.fail(api, "NOT_COORDINATOR") for api in ("JoinGroup", "SyncGroup")]
    faults.append(process.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic))
    consumer = Consumer(
        {
            "bootstrap.servers": process.bootstrap,
            "group.id": "rd-moved-group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "retry.backoff.ms": 20,
            "fetch.error.backoff.ms": 20,
        }
    )
    try:
        consumer.subscribe([topic])
        message = None
        deadline = time.monotonic() + 60
        while message is None or message.error():
            message = consumer.poll(0.1)
            assert time.monotonic() < deadline
        assert message.value() == b"value"
    finally:
        consumer.close()
    assert [fault.used for fault in faults] == [1] * len(faults)


@pytest.mark.slow
# On a busy machine aiokafka leaves the socket of a dropped connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_aiokafka_on_the_loop_of_the_broker() -> None:
    async with kafkawire.testing.async_broker() as broker:
        not_coordinator = ("JoinGroup", "SyncGroup", "OffsetFetch", "OffsetCommit")
        faults = [
            *(broker.fail(api, NOT_LEADER) for api in ("Produce", "ListOffsets", "Fetch")),
            *(broker.fail(api, "NOT_COORDINATOR") for api in not_coordinator),
            broker.fail("Metadata", "LEADER_NOT_AVAILABLE"),
            broker.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
            broker.drop("Produce"),
            broker.throttle("Fetch", 0.01),
        ]
        servers = broker.bootstrap
        async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
            assert (await producer.send_and_wait("aio", b"value")).offset == 0
        async with AIOKafkaConsumer(
            "aio",
            bootstrap_servers=servers,
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer:
            assert (await consumer.getone()).value == b"value"
            await consumer.commit()
        assert [fault.used for fault in faults] == [1] * len(faults)
    gc.collect()
