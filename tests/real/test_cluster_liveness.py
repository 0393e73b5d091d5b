"""Broker processes of one cluster that end: how others see it, and what becomes of their topics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.kit.cluster import Cluster, metadata_url
from tests.real.librdkafka import produce
from tests.real.members import wait_for


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    url = metadata_url(request.param, tmp_path, request)
    with Cluster(tmp_path, url, settings={"lease.ms": 3000}) as made:
        made.restart(1)
        for node in (1, 2):
            wait_for(partial(sees_both, made, node))
        yield made


def sees_both(cluster: Cluster, node: int) -> bool:
    return cluster.listed(node) == [1, 2]


def create(cluster: Cluster, name: str, partitions: int) -> list[int]:
    """Create a topic at broker 1; return the leaders."""
    topic = NewTopic(name, partitions)
    cluster.admin(1).create_topics([topic])[name].result(60)
    wait_for(lambda: len(cluster.leaders(1, name)) == partitions)
    return list(cluster.leaders(1, name).values())


numbers = count()


def test_broker_that_ends_is_not_listed_and_gets_no_partitions(cluster: Cluster) -> None:
    cluster.create(1, "both", [1, 2])
    wait_for(lambda: set(create(cluster, f"new-{next(numbers)}", 2)) == {1, 2})
    cluster.kill(2)
    wait_for(lambda: cluster.listed(1) == [1])
    assert cluster.leaders(1, "both") == {0: 1, 1: -1}
    assert create(cluster, "without", 4) == [1] * 4
    rows = [{"value": b"x", "partition": 0}]
    assert produce(cluster.bootstrap(1), "both", rows, acks="all") == [0]
    cluster.start(2)
    wait_for(lambda: cluster.listed(1) == [1, 2])
    assert cluster.leaders(1, "both") == {0: 1, 1: 2}
    wait_for(lambda: set(create(cluster, f"new-{next(numbers)}", 2)) == {1, 2})
    cluster.stop(2)
    wait_for(lambda: cluster.listed(1) == [1])
    wait_for(lambda: "broker 2 has shut down" in cluster.brokers[1].output)
    assert "broker 2 has stored no heartbeat for 3000 ms" in cluster.brokers[1].output
    cluster.start(2)
    cluster.stop(1)
    wait_for(lambda: cluster.listed(2) == [2])
    assert cluster.admin(2).list_topics(timeout=30).controller_id == 2
    cluster.start(1)
    wait_for(lambda: cluster.listed(2) == [1, 2])
