"""Workers that are killed while partitions move between them, under load.

Covers: kafkawire.broker.moving.mover, kafkawire.supervisor.worker.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.kit.cli import Typed
from tests.kit.cluster import QUIET
from tests.kit.steady_load import PARTITIONS, TOPIC, check, loaded
from tests.kit.waiting import wait_until
from tests.kit.workers import Workers

pytestmark = pytest.mark.real


def run(workers: Workers, *words: str) -> bool:
    return Typed(workers.bootstrap, "cluster", *words).code == 0


@pytest.mark.parametrize("first", [1, 2])
def test_worker_killed_during_moves_loses_nothing(tmp_path: Path, first: int) -> None:
    """The leader that hands over is killed, then the broker that takes over."""
    with Workers(tmp_path) as workers:
        workers.create(TOPIC, PARTITIONS)
        with loaded(workers.bootstrap) as loads:
            for drained, killed in ((1, first), (2, 3 - first)):
                other = 3 - drained
                wait_until(lambda: run(workers, "drain", str(drained), "--no-wait"), "a drain")  # noqa: B023
                pid = workers.kill_worker(killed)
                workers.wait_for_worker(killed, pid)
                wait_until(
                    lambda: set(workers.leaders_of(TOPIC, PARTITIONS).values()) == {other},  # noqa: B023
                    "the end of the moves",
                )
                wait_until(lambda: run(workers, "drain", str(drained), "--undo"), "its end")  # noqa: B023
                for each in loads:
                    each.wait_for_more()
            assert check(loads, workers.bootstrap) > 0


def test_records_that_are_due_during_moves_are_delivered_once(tmp_path: Path) -> None:
    count, spread_ms = 2000, 4000
    with Workers(tmp_path) as workers:
        admin = workers.admin()
        later = NewTopic("later", 4, 1, config={"schedule.target.topic": "orders"})
        for topic in (NewTopic("orders", 1, 1), later):
            admin.create_topics([topic])[topic.topic].result(60)
        producer = Producer({"bootstrap.servers": workers.bootstrap, "log_level": QUIET})
        begin = int(time.time() * 1000) + 1000
        for number in range(count):
            due = begin + number * spread_ms // count
            producer.produce("later", b"%d" % number, partition=number % 4, timestamp=due)
        assert producer.flush(60) == 0
        for drained in ("1", "2"):
            assert run(workers, "drain", drained)
            assert run(workers, "drain", drained, "--undo")

        def delivered() -> list[int]:
            return [int(value) for value in workers.read_all("orders", 1)[0]]

        wait_until(lambda: len(delivered()) >= count, "all deliveries")
        assert sorted(delivered()) == list(range(count))
