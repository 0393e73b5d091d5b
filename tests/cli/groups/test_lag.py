"""`kafkawire groups lag` and `why` against a broker with real consumers.

Covers: kafkawire.cli.groups.lag, kafkawire.cli.groups.why, kafkawire.client.group_causes,
kafkawire.client.lag, kafkawire.client.groups.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkawire.client.cluster import Cluster
from kafkawire.client.groups import GROUP_ACTIVITY, ActivityReader, assignment, subscription
from kafkawire.testing.process import BrokerProcess
from tests.kit.cli import Typed, no_environment, produce  # noqa: F401  (a fixture, by name)
from tests.kit.fake_kafka import CLOSE, NODE, serving

GROUP, TOPIC = "billing", "orders"


def test_bytes_that_are_no_subscription() -> None:
    good = struct.pack(">hi", 1, 2) + b"\0\1a\0\2bc" + b"more"
    assert subscription(good) == ["a", "bc"]
    for size in range(len(good) - 4):
        assert subscription(good[:size]) is None
        assert assignment(good[:size]) == []
    assert subscription(struct.pack(">hi", 0, -1)) is None
    assert assignment(struct.pack(">hih1si", 0, 1, 1, b"t", 1 << 30)) == []


def test_broker_without_activity_is_asked_once() -> None:
    """Another broker closes the connection; the next group is not requested from it."""
    with serving({}) as kafka:
        asked: list[int] = []

        def closing(key: int, request: object) -> object:
            asked.append(key)
            return CLOSE if key == GROUP_ACTIVITY else None

        kafka.trouble = closing
        with Cluster(kafka.address) as cluster, ActivityReader(cluster) as reader:
            assert reader.read("a", NODE) is None
            assert reader.read("b", NODE) is None
        assert asked.count(GROUP_ACTIVITY) == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with a group that has committed one of three partitions and is stable."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("lag"), settings=settings) as broker:
        typed = Typed(broker.bootstrap, "topics", "create", TOPIC, "--partitions", "3")
        assert typed.code == 0
        produce(broker.bootstrap, TOPIC, {0: 10, 1: 5, 2: 7})
        yield broker.bootstrap


def consumer(server: str, **more: object) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
    )


@pytest.mark.real
def test_lag_and_why_of_a_live_group(server: str) -> None:
    first = consumer(server)
    first.subscribe([TOPIC])
    while first.poll(1) is None:
        pass
    first.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
    (shown,) = Typed(server, "groups", "lag", GROUP, "--json").json
    assert (shown["state"], shown["members"], shown["lag"]) == ("Stable", 1, 19)
    assert shown["uncommitted_partitions"] == 2
    rows = shown["topics"][0]["partitions"]
    assert [row["lag"] for row in rows] == [7, 5, 7]
    assert shown["last_commit_ms"] == rows[0]["last_commit_ms"] > 0
    assert rows[1]["last_commit_ms"] is None

    writer = Producer({"bootstrap.servers": server, "transactional.id": "pay-1"})
    writer.init_transactions()
    writer.begin_transaction()
    writer.produce(TOPIC, b"x", partition=2)
    writer.flush()
    first.commit(offsets=[TopicPartition(TOPIC, 2, 7)], asynchronous=False)
    shown_why = Typed(server, "groups", "why", GROUP, "--observe", "0s").out
    assert "! Readers of committed records" in shown_why
    assert "pay-1" in shown_why.replace("\n ", "")
    assert max(map(len, shown_why.splitlines())) <= 80
    writer.abort_transaction()

    second = consumer(server, **{"client.id": "second"})  # the first one does not poll any more
    second.subscribe([TOPIC])
    polling = threading.Thread(target=second.poll, args=(20,))
    polling.start()
    while True:
        answer = Typed(server, "groups", "why", GROUP, "--observe", "0s", "--json").json
        if answer["state"] == "PreparingRebalance":
            break
    assert answer["stuck"]
    cause = answer["causes"][0]
    assert cause["cause"] == "rebalancing"
    assert "1 of 2 members to join again" in cause["sentence"]
    first.close()
    polling.join()
    second.close()
    (shown,) = Typed(server, "groups", "lag", "--json").json
    assert shown["state"] == "Empty"
    why = Typed(server, "groups", "why", GROUP, "--observe", "100ms", "--json").json
    assert [each["cause"] for each in why["causes"] if each["stuck"]] == ["no-members"]
