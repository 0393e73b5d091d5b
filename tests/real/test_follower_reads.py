"""librdkafka with `client.rack` reads records that were just produced at the follower of its rack:
three machines in two racks, of which the leader's is killed under load whose history is checked.

Covers: kafkawire.broker.rack_reads.copies, kafkawire.handlers.fetch.rack_reads,
kafkawire.log.followers.service.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkawire.codec.configs.table import RACK_AWARE
from tests.kit.history.clients import RecordedLoad
from tests.kit.machines import REPLICATED, Machines, running
from tests.kit.minio import Minio
from tests.kit.ports import free_ports
from tests.kit.waiting import wait_until
from tests.real.librdkafka import produce

pytestmark = pytest.mark.machines

TOPIC, LOADED, PARTITIONS, RECORDS = "fresh", "load", 4, 200
RACKS = {1: "a", 2: "b", 3: "b"}
SETTINGS = {
    **REPLICATED,
    "replica.selector.class": RACK_AWARE,
    "tier.paused": True,  # no record of these tests can come from the bucket
}
READ: dict[str, Any] = {
    "client_rack": "b",
    "isolation_level": "read_committed",
    "metadata_max_age_ms": 5000,
}


class InRacks:
    """Machine 1 in rack a, machines 2 and 3 in rack b. Broker 1 leads TOPIC."""

    def __init__(self, machines: Machines, pages: dict[int, int]) -> None:
        self.machines = machines
        self._pages = pages

    def metric(self, node: int, name: str) -> float:
        url = f"http://127.0.0.1:{self._pages[node]}/metrics"
        page = str(urllib.request.urlopen(url, timeout=30).read(), "utf-8")
        rows = [row for row in page.splitlines() if row.startswith(f"kafkawire_{name}")]
        return sum(float(row.split()[-1]) for row in rows)

    def at_followers(self) -> float:
        """Return the bytes that brokers of rack b have served of what others lead."""
        return sum(self.metric(node, "fetch_replica_bytes_total") for node in (2, 3))


@pytest.fixture
def racks(
    tmp_path: Path, request: pytest.FixtureRequest, minio: Minio, tier_url: str
) -> Iterator[InRacks]:
    pages = dict(zip(RACKS, free_ports(len(RACKS)), strict=True))
    own = {
        node: {"broker.rack": rack, "metrics.listener": f"127.0.0.1:{pages[node]}"}
        for node, rack in RACKS.items()
    }
    with running(tmp_path, request, minio, tier_url, SETTINGS, own=own) as made:
        made.create_everywhere(TOPIC, [1])
        made.create_everywhere(LOADED, [1] * PARTITIONS)
        made.wait_for_in_sync(1, {2, 3})
        yield InRacks(made, pages)


def send(racks: InRacks, word: str) -> list[bytes]:
    values = [b"%s-%d" % (word.encode(), at) for at in range(RECORDS)]
    rows = [{"value": value, "partition": 0} for value in values]
    produce(racks.machines.bootstrap(1), TOPIC, rows, acks="all")
    return values


def send_transactions(racks: InRacks) -> list[bytes]:
    """Write transactions, of which every second one is aborted; return the committed values."""
    settings = {"bootstrap.servers": racks.machines.bootstrap(1), "transactional.id": "x"}
    producer = Producer(settings)
    producer.init_transactions(60)
    committed = []
    for number in range(6):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, at) for at in range(20)]
        for value in values:
            producer.produce(TOPIC, value, partition=0)
        assert producer.flush(60) == 0
        if number % 2:
            producer.commit_transaction(60)
            committed += values
        else:
            producer.abort_transaction(60)
    return committed


def read(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 1):
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    return found


def test_records_that_were_just_produced_come_from_the_follower(racks: InRacks) -> None:
    sent = send(racks, "before") + send_transactions(racks)
    with closing(racks.machines.consumer(1, "unused", **READ)) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        assert read(consumer, len(sent)) == sent
        for word in ("first", "second"):
            before = racks.at_followers()
            more = send(racks, word)
            assert read(consumer, len(more)) == more
            wait_until(lambda before=before: racks.at_followers() > before, word)  # type: ignore[misc]
        assert racks.metric(1, "fetch_redirects_total") > 0
        assert racks.metric(1, "fetched_bytes_total") == 0, "all came from a follower"


def test_readers_of_followers_see_one_history(racks: InRacks, tmp_path: Path) -> None:
    """The leader is killed while consumers read at followers, and returns; then a follower is."""
    machines = racks.machines
    with RecordedLoad(machines.addresses, LOADED, PARTITIONS, readers=2, **READ) as load:
        load.wait_for_progress()
        wait_until(lambda: racks.at_followers() > 0, "reads at followers")
        load.history.fault("kill machine 1")
        machines.kill(1)
        machines.wait_for_host(1, {2, 3})
        load.wait_for_progress()
        load.history.fault("start machine 1")
        machines.start(1)
        machines.wait_for_all_at_home()
        machines.wait_for_in_sync(1, {2, 3})
        load.heal("machine 1 runs its broker")
        before = racks.at_followers()
        wait_until(lambda: racks.at_followers() > before, "reads at followers again")
        load.history.fault("kill the follower of machine 2")
        machines.kill_follower(2)
        load.wait_for_progress()
        machines.wait_for_in_sync(1, {2, 3})
        load.heal("the follower is back")
    assert load.findings(machines.bootstrap(1), tmp_path / "history") == []
