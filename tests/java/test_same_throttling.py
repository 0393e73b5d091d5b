"""Clients over their quotas, of Apache Kafka and of ours: throttle times are compared within what
the arithmetic leaves open, and requests that are refused.

A rate is what was used in the window, divided by its length W. W is 10 s for a new counter and
grows up to 11 s with the time since the first use: the delay after n seconds' worth of bytes is
n - W.

Covers: kafkawire.server.quotas.metering.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.client.connection import ClientConnection
from kafkawire.codec.batches import build
from kafkawire.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from kafkawire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from kafkawire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
)
from kafkawire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.java.apache import start, stop
from tests.java.twins import KEYS, Twins, create, wait_for_leaders
from tests.real.conftest import OTHER_BROKER, START_MS

RATE = 1_000_000
PARTITIONS = 14
VALUE = bytes(900_000)
BYTES = PARTITIONS * len(VALUE)
SLACK_MS = 20
"""The overhead of frames and batches, at RATE."""
THROTTLING_QUOTA_EXCEEDED = 89

Limit = Callable[[str, str, float], tuple[ClientConnection, ClientConnection]]


def alter(connection: ClientConnection, client_id: str, key: str, value: float | None) -> None:
    entry = EntryData(
        [EntityData("client-id", client_id)], [OpData(key, value or 0.0, value is None)]
    )
    answer = connection.request(KEYS["AlterClientQuotas"], AlterClientQuotasRequest([entry]))
    assert [row.error_code for row in answer.entries] == [0]


def wait_for(connection: ClientConnection, client_id: str) -> None:
    request = DescribeClientQuotasRequest([ComponentData("client-id", 0, client_id)])
    end = time.monotonic() + 60
    while not connection.request(KEYS["DescribeClientQuotas"], request).entries:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node of Apache Kafka of its own: other tests compare all quotas of the shared one."""
    if OTHER_BROKER:
        pytest.skip("compares ours with Apache Kafka")
    pid, address = start(tmp_path_factory.mktemp("apache"), f"{jars}/*")
    try:
        yield address
    finally:
        stop(pid)


@pytest.fixture
def limit(twins: Twins, kafka: str, bootstrap: str) -> Iterator[Limit]:
    """Set a quota of a client id at both brokers; return connections with that client id. Kafka
    applies changes one after another, so the first is applied when the second is seen."""
    given: list[tuple[str, str]] = []
    opened: list[ClientConnection] = []

    def begin(client_id: str, key: str, value: float) -> tuple[ClientConnection, ClientConnection]:
        for connection in twins.both:
            for name in (client_id, f"{client_id}-after"):
                alter(connection, name, key, value)
                wait_for(connection, name)
        given.extend([(client_id, key), (f"{client_id}-after", key)])
        for address in (kafka, bootstrap):
            host, _, port = address.rpartition(":")
            opened.append(ClientConnection(host, int(port), client_id=client_id))
        return opened[-2], opened[-1]

    yield begin
    for connection in opened:
        connection.close()
    for connection in twins.both:
        for client_id, key in given:
            alter(connection, client_id, key, None)


@pytest.fixture(scope="module")
def topic(twins: Twins) -> str:
    for connection in twins.both:
        connection.request(KEYS["CreateTopics"], create("same-q", num_partitions=PARTITIONS))
    wait_for_leaders(twins, "same-q")
    return "same-q"


def produce(topic: str, partitions: int = PARTITIONS) -> ProduceRequest:
    rows = [
        PartitionProduceData(index=index, records=build([(b"k", VALUE)], timestamp_ms=START_MS))
        for index in range(partitions)
    ]
    data = TopicProduceData(name=topic, partition_data=rows)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])


def fetch(topic: str) -> FetchRequest:
    rows = [
        FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(PARTITIONS)
    ]
    return FetchRequest(max_bytes=50 << 20, topics=[FetchTopic(topic=topic, partitions=rows)])


def check_delay(delay_ms: int, used_bytes: float) -> None:
    """The delay after this many bytes: W is between 10 s and 11 s."""
    used_ms = used_bytes / RATE * 1000
    assert used_ms - 11_000 - SLACK_MS <= delay_ms <= used_ms - 10_000 + SLACK_MS


def test_produce_over_the_limit_delays_the_next_request(
    twins: Twins, topic: str, limit: Limit
) -> None:
    for connection in limit("same-producer", "producer_byte_rate", RATE):
        begun = time.monotonic()
        answer = connection.request(KEYS["Produce"], produce(topic), at_most=9)
        (row,) = answer.responses
        assert {each.error_code for each in row.partition_responses} == {0}
        check_delay(answer.throttle_time_ms, BYTES)
        connection.request(KEYS["ListGroups"], ListGroupsRequest())
        waited_ms = (time.monotonic() - begun) * 1000
        assert waited_ms >= answer.throttle_time_ms


def test_fetch_over_the_limit_is_empty(twins: Twins, topic: str, limit: Limit) -> None:
    for connection in twins.both:
        connection.request(KEYS["Produce"], produce(topic), at_most=9)
    found = []
    for connection in limit("same-consumer", "consumer_byte_rate", RATE):
        first = connection.request(KEYS["Fetch"], fetch(topic), at_most=11)
        (row,) = first.responses
        size = sum(len(each.records or b"") for each in row.partitions)
        assert size <= 10 * RATE, "at most what the limit allows in ten seconds"
        second = connection.request(KEYS["Fetch"], fetch(topic), at_most=11)
        assert second.responses == []
        check_delay(second.throttle_time_ms, 2 * size)
        found.append((first.throttle_time_ms, first.error_code, second.error_code))
    assert found == [(0, 0, 0)] * 2


def test_any_request_over_the_limit_is_delayed_by_a_second(twins: Twins, limit: Limit) -> None:
    """The smallest share of a thread: each request is over it, and the delay is one window."""
    for connection in limit("same-busy", "request_percentage", 1e-6):
        answer = connection.request(KEYS["ListGroups"], ListGroupsRequest())
        assert answer.throttle_time_ms == 1_000


def test_changes_over_the_limit_are_refused(twins: Twins, limit: Limit) -> None:
    """12 partitions where 11 are allowed at once; refilled at 0.01 a second, not within the
    test. Each connection is new, as the one before is muted."""
    rate = 0.01
    found: list[list[int]] = []
    more = CreatePartitionsRequest([CreatePartitionsTopic("same-q-b", 2, None)], 10_000)
    steps: list[tuple[str, Any, int]] = [
        ("CreateTopics", create("same-q-a", num_partitions=12), 7),
        ("CreateTopics", create("same-q-b", num_partitions=1), 7),
        ("CreateTopics", create("same-q-b", num_partitions=1), 5),
        ("CreatePartitions", more, 3),
        ("CreatePartitions", more, 2),
    ]
    for api, request, version in steps:
        answers = [
            connection.request(KEYS[api], request, at_most=version)
            for connection in limit("same-maker", "controller_mutation_rate", rate)
        ]
        rows = [(a.topics if api == "CreateTopics" else a.results)[0] for a in answers]
        found.append([row.error_code for row in rows])
        delays = [answer.throttle_time_ms for answer in answers]
        assert bool(delays[0]) == bool(delays[1]), (api, version, delays)
        assert delays[1] == pytest.approx(delays[0], abs=60_000), "tokens are refilled meanwhile"
    refused = THROTTLING_QUOTA_EXCEEDED
    assert found == [[0, 0], [refused, refused], [0, 0], [refused, refused], [0, 0]]
