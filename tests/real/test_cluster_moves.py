"""Partitions that move between two brokers of one data folder under load: `kafkawire cluster`.

Covers: kafkawire.cli.cluster.moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from tests.kit.cli import Typed
from tests.kit.cluster import QUIET, Cluster, metadata_url
from tests.kit.steady_load import PARTITIONS, TOPIC, check, loaded
from tests.kit.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    url = metadata_url(request.param, tmp_path, request)
    with Cluster(tmp_path, url, shared=True) as made:
        wait_until(lambda: made.listed(1) == made.listed(2) == [1, 2], "both brokers")
        yield made


def run(cluster: Cluster, *words: str) -> Typed:
    done = Typed(cluster.bootstrap(1), "cluster", *words)
    assert done.code == 0, done.err
    return done


def counts(cluster: Cluster) -> Counter[int]:
    return Counter(cluster.leaders(1, TOPIC).values())


def test_balance_and_drain_under_load_lose_nothing(cluster: Cluster) -> None:
    cluster.create(1, TOPIC, [1] * PARTITIONS)
    with loaded(f"{cluster.bootstrap(1)},{cluster.bootstrap(2)}") as loads:
        planned = run(cluster, "balance", "--dry-run", "--json").json
        assert {(row["from"], row["to"]) for row in planned} == {(1, 2)}
        assert counts(cluster) == {1: PARTITIONS}
        run(cluster, "balance")
        assert min(counts(cluster).values()) >= 1
        assert run(cluster, "balance", "--dry-run", "--json").json == []
        run(cluster, "drain", "1")
        assert counts(cluster) == {2: PARTITIONS}
        cluster.restart(1)  # it leads nothing: nothing is missing meanwhile
        run(cluster, "drain", "1", "--undo")
        run(cluster, "balance")
        run(cluster, "drain", "2")
        assert counts(cluster) == {1: PARTITIONS}
        assert run(cluster, "moves", "--json").json == []
        for each in loads:
            each.wait_for_more()
        assert check(loads, cluster.bootstrap(1), cluster.bootstrap(2)) > 0


def test_groups_keep_their_offsets_when_their_coordinator_moves(cluster: Cluster) -> None:
    cluster.create(1, TOPIC, [1, 2])
    producer = Producer({"bootstrap.servers": cluster.bootstrap(1), "log_level": QUIET})
    for number in range(100):
        producer.produce(TOPIC, str(number).encode(), partition=number % 2)
    assert producer.flush(60) == 0
    consumer = cluster.consumer(2, "group")
    consumer.subscribe([TOPIC])
    seen: list[bytes] = []

    def more(total: int) -> bool:
        for message in consumer.consume(10, 0.2):
            assert message.error() is None, message.error()
            seen.append(message.value() or b"")
        return len(seen) >= total

    wait_until(lambda: more(100), "the first records")
    consumer.commit(asynchronous=False)

    def committed(wanted: list[int]) -> bool:
        # librdkafka does not retry this one request after NOT_COORDINATOR.
        try:
            found = consumer.committed([TopicPartition(TOPIC, n) for n in (0, 1)], 60)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return False
        assert [each.offset for each in found] == wanted
        return True

    for moved, drained in enumerate(("1", "2")):
        run(cluster, "drain", drained)
        coordinators = set(cluster.leaders(1, "__consumer_offsets").values())
        assert coordinators == {3 - int(drained)}
        wait_until(partial(committed, [50 + moved * 5] * 2), "the committed offsets")
        for number in range(10):
            producer.produce(TOPIC, str(number).encode(), partition=number % 2)
        assert producer.flush(60) == 0
        expected = len(seen) + 10
        wait_until(partial(more, expected), "records after the move")
        consumer.commit(asynchronous=False)
        run(cluster, "drain", drained, "--undo")
    assert len(seen) == 120
    consumer.close()


def test_drain_that_nothing_can_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sql").mkdir()
    with Cluster(tmp_path, f"sqlite:///{tmp_path}/sql/metadata.db", nodes=[1]) as alone:
        alone.create(1, TOPIC, [1])
        refused = Typed(alone.bootstrap(1), "cluster", "drain", "1")
        assert refused.code == 1
        assert "nothing can take its partitions" in refused.err
        refused = Typed(alone.bootstrap(1), "cluster", "decommission", "1")
        assert refused.code == 2
        assert "none can take what it has" in refused.err
        for command in ("drain", "decommission"):
            unknown = Typed(alone.bootstrap(1), "cluster", command, "7")
            assert unknown.code == 1
            assert "there is no broker 7" in unknown.err
