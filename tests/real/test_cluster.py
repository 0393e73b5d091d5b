"""Two broker processes of one cluster, with librdkafka: each serves what any client asks of it.

Covers: kafkawire.broker.following.applier, kafkawire.broker.following.applier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from kafkawire.testing.control import BrokerFailed
from tests.kit.cluster import QUIET, Cluster, metadata_url
from tests.real.librdkafka import produce, read
from tests.real.members import wait_for


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two brokers, which tests may restart but leave running."""
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, metadata_url(request.param, folder, request)) as made:
        on_both(lambda node: made.listed(node) == [1, 2])
        on_both(lambda node: spreads(made, node))
        yield made


def spreads(cluster: Cluster, node: int) -> bool:
    """Whether a broker gives new partitions to both: it must have seen heartbeats of the other.
    Otherwise it would lead all partitions of the internal topics that it creates."""
    topic = f"spread-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap(node), "log_level": QUIET})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(60)
    return set(cluster.leaders(node, topic).values()) == {1, 2}


def on_both(check: Callable[[int], bool]) -> None:
    """Wait until clients of either broker see it."""
    for node in (1, 2):
        wait_for(partial(check, node))


def values(count: int, word: bytes = b"value") -> list[bytes]:
    return [b"%s %d" % (word, at) for at in range(count)]


def send(cluster: Cluster, node: int, topic: str, index: int, sent: list[bytes]) -> list[int]:
    """Produce with one broker as bootstrap; return the offsets."""
    rows = [{"value": value, "partition": index} for value in sent]
    return produce(cluster.bootstrap(node), topic, rows, acks="all")


@pytest.mark.parametrize("creator", [1, 2])
def test_topic_of_one_broker_is_served_by_both(cluster: Cluster, name: str, creator: int) -> None:
    cluster.create(creator, name, [1, 2, 1, 2])
    wanted = {0: 1, 1: 2, 2: 1, 3: 2}
    on_both(lambda node: cluster.leaders(node, name) == wanted)
    other = 3 - creator
    for index in range(4):
        assert send(cluster, other, name, index, values(100)) == list(range(100))
    for node in (1, 2):
        assert cluster.read_all(node, name) == dict.fromkeys(range(4), values(100))


def test_groups_of_either_coordinator(cluster: Cluster, name: str) -> None:
    cluster.create(1, name, [1, 2])
    for index in (0, 1):
        wait_for(lambda: len(cluster.leaders(2, name)) == 2)
        send(cluster, 2, name, index, values(20))
    coordinators: set[int] = set()
    at = 0
    while len(coordinators) < 2:
        assert at < 30, f"only {coordinators} coordinates groups"
        group, at = f"{name}-{at}", at + 1
        consumer = cluster.consumer(2, group)
        consumer.subscribe([name])
        found = read(consumer, 40)
        assert sorted(message.value() for message in found) == sorted(values(20) * 2)
        consumer.commit(asynchronous=False)
        consumer.close()
        described = cluster.admin(1).describe_consumer_groups([group])[group].result(60)
        coordinators.add(described.coordinator.id)
        for node in (1, 2):
            wish = [ConsumerGroupTopicPartitions(group)]
            offsets = cluster.admin(node).list_consumer_group_offsets(wish)[group].result(60)
            assert {p.partition: p.offset for p in offsets.topic_partitions} == {0: 20, 1: 20}


def test_topic_deleted_at_one_broker_is_gone_at_the_other(cluster: Cluster, name: str) -> None:
    cluster.create(1, name, [1, 2])
    wait_for(lambda: len(cluster.leaders(2, name)) == 2)
    send(cluster, 1, name, 0, values(10))
    send(cluster, 1, name, 1, values(10))
    cluster.admin(2).delete_topics([name])[name].result(60)
    on_both(lambda node: not cluster.leaders(node, name))
    cluster.create(2, name, [2, 1])
    on_both(lambda node: cluster.leaders(node, name) == {0: 2, 1: 1})
    assert send(cluster, 1, name, 0, values(3, b"new")) == [0, 1, 2]
    assert send(cluster, 1, name, 1, values(3, b"new")) == [0, 1, 2]
    assert cluster.read_all(2, name) == dict.fromkeys((0, 1), values(3, b"new"))


def test_setting_changed_at_one_broker_is_obeyed_by_the_other(cluster: Cluster, name: str) -> None:
    cluster.create(1, name, [2])
    wait_for(lambda: cluster.leaders(2, name) == {0: 2})
    assert send(cluster, 2, name, 0, [bytes(5000)]) == [0]
    entry = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
    (future,) = cluster.admin(1).incremental_alter_configs([resource]).values()
    future.result(60)
    on_both(lambda node: cluster.setting(node, name, "max.message.bytes") == "1000")
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        send(cluster, 2, name, 0, [bytes(5000)])


def test_more_partitions_made_at_one_broker_are_served_by_the_other(
    cluster: Cluster, name: str
) -> None:
    cluster.create(1, name, [1])
    wait_for(lambda: cluster.leaders(2, name) == {0: 1})
    more = NewPartitions(name, 3, replica_assignment=[[2], [1]])
    cluster.admin(1).create_partitions([more])[name].result(60)
    on_both(lambda node: cluster.leaders(node, name) == {0: 1, 1: 2, 2: 1})
    for index in range(3):
        assert send(cluster, 2, name, index, values(5)) == list(range(5))
    assert cluster.read_all(1, name) == dict.fromkeys(range(3), values(5))


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("node", [1, 2])
def test_restarted_broker_serves_what_it_led(
    cluster: Cluster, name: str, node: int, how: str
) -> None:
    other = 3 - node
    cluster.create(other, name, [1, 2])
    wait_for(lambda: len(cluster.leaders(node, name)) == 2)
    for index in (0, 1):
        send(cluster, other, name, index, values(50))
    if how == "stopped":
        cluster.stop(node)
    else:
        cluster.kill(node)
    assert send(cluster, other, name, other - 1, values(5)) == list(range(50, 55))
    try:
        # A client that still reads that the other one is the controller would wait for it.
        wait_for(lambda: cluster.listed(other) == [other])
        cluster.create(other, f"{name}-more", [other, node])  # it follows this at its start
    finally:
        cluster.start(node)
    for index in (0, 1):
        begin = 55 if index == other - 1 else 50
        assert send(cluster, node, name, index, values(5)) == list(range(begin, begin + 5))
        assert send(cluster, other, f"{name}-more", index, values(5)) == list(range(5))
    ends = {index: len(read) for index, read in cluster.read_all(other, name).items()}
    assert ends == {other - 1: 60, node - 1: 55}
    on_both(lambda each: cluster.listed(each) == [1, 2])


def test_wrong_pair_is_refused_next_to_running_cluster(cluster: Cluster, name: str) -> None:
    """Broker 1 with an empty folder does not start, and both continue to serve."""
    cluster.create(1, name, [1, 2])
    url = cluster.brokers[1].arguments[1]
    folder = cluster.brokers[1].data.parent / name
    stranger = Cluster(folder, url, nodes=[1])
    with pytest.raises(BrokerFailed, match=r"ended with 2: .* holds nothing of broker 1"):
        stranger.start(1)
    wait_for(lambda: len(cluster.leaders(2, name)) == 2)
    for index in (0, 1):
        assert send(cluster, 2, name, index, values(3)) == [0, 1, 2]
