"""Share groups of two brokers: the group, the states of its share partitions, and the partitions
are of different brokers, and move.

Covers: kafkawire.broker.other_brokers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer

from tests.kit.cli import Typed
from tests.kit.cluster import QUIET, Cluster, metadata_url
from tests.kit.waiting import wait_until
from tests.real.test_share_groups import member, set_group

TOPIC = "jobs"
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "4",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.heartbeat.interval.ms": "300",
}


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    url = metadata_url("sqlite", tmp_path, request)
    with Cluster(tmp_path, url, settings=SETTINGS, shared=True) as made:
        wait_until(lambda: made.listed(1) == made.listed(2) == [1, 2], "both brokers")
        made.create(1, TOPIC, [1, 2, 1, 2])
        yield made


def send(cluster: Cluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap(1), "log_level": QUIET})
    for number in range(first, first + count):
        producer.produce(TOPIC, b"%d" % number, partition=number % 4)
    assert producer.flush(60) == 0


def accept(members: list[Any], accepted: Counter[int], total: int, limit_s: float = 60) -> None:
    """Accept records until there are as many different ones, each third after one release."""
    end = time.monotonic() + limit_s
    while len(accepted) < total and time.monotonic() < end:
        for consumer in members:
            for message in consumer.poll(0.2):
                assert message.error() is None, message.error()
                again = int(message.value()) % 3 == 0 and message.delivery_count() == 1
                kind = AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT
                consumer.acknowledge(message, kind)
                accepted.update([] if again else [int(message.value())])
            consumer.commit_sync(30)
    assert sorted(accepted) == list(range(total))


def offsets(cluster: Cluster, node: int, group: str) -> list[tuple[int, int]]:
    (found,) = Typed(cluster.bootstrap(node), "groups", "describe", group, "--json").json
    return [(row["committed"], row["lag"]) for row in found["offsets"]]


def test_share_groups_of_two_brokers(cluster: Cluster) -> None:
    """Groups of either coordinator, whose states are of both brokers; then everything moves."""
    send(cluster, 0, 40)
    seen: dict[str, Counter[int]] = {}
    coordinators: set[int] = set()
    while len(coordinators) < 2:
        group = f"pool-{len(seen)}"
        set_group(cluster.bootstrap(1), group, share_auto_offset_reset="earliest")
        members = [member(cluster.bootstrap(node), group, TOPIC) for node in (1, 2)]
        seen[group] = Counter()
        accept(members, seen[group], 40)
        for consumer in members:
            consumer.close()
        listed = Typed(cluster.bootstrap(2), "groups", "list", "--json").json
        coordinators |= {row["coordinator"] for row in listed}
        assert len(seen) < 30, f"only {coordinators} coordinates groups"
    for group in seen:
        for node in (1, 2):
            assert offsets(cluster, node, group) == [(10, 0)] * 4
    states = cluster.leaders(1, "__share_group_state")
    assert set(states.values()) == {1, 2}
    total = 40
    for drained in (1, 2):
        moved = Typed(cluster.bootstrap(1), "cluster", "drain", str(drained))
        assert moved.code == 0, moved.err
        assert set(cluster.leaders(1, "__share_group_state").values()) == {3 - drained}
        send(cluster, total, 40)
        total += 40
        for group, accepted in seen.items():
            members = [member(cluster.bootstrap(node), group, TOPIC) for node in (1, 2)]
            accept(members, accepted, total)
            for consumer in members:
                consumer.close()
            assert offsets(cluster, drained, group) == [(total // 4, 0)] * 4
        undone = Typed(cluster.bootstrap(1), "cluster", "drain", str(drained), "--undo")
        assert undone.code == 0, undone.err
    assert all(set(accepted.values()) == {1} for accepted in seen.values())
