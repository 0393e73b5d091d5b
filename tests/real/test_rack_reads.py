"""librdkafka with `client.rack`: it reads old records at the broker of its rack, from the bucket,
and the others at the leader.

Covers: kafkawire.handlers.fetch.rack_reads, kafkawire.broker.rack_reads.views,
kafkawire.broker.rack_reads.selector.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkawire.codec.configs.table import RACK_AWARE
from tests.kit.cli import Typed
from tests.kit.cluster import Cluster, metadata_url
from tests.kit.ports import free_ports
from tests.kit.waiting import wait_until
from tests.real.librdkafka import produce

pytestmark = pytest.mark.real

TOPIC, PARTITIONS, RECORDS, LIMIT_S = "cold", 2, 200, 60
SETTINGS = {
    "journal.bytes": 1 << 20,
    "journal.roll.ms": 500,
    "cut.interval.ms": 100,
    "hot.bytes": 1 << 20,
    "tier.cache.bytes": 16 << 20,
    "replica.selector.class": RACK_AWARE,
}
CONFIGS = {"tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "1", "retention_ms": "-1"}
Values = dict[int, list[bytes]]


class InRacks:
    """Brokers 1 and 2 in racks a and b, with data folders of their own; broker 1 leads all."""

    def __init__(self, cluster: Cluster, pages: dict[int, int]) -> None:
        self.cluster = cluster
        self._pages = pages
        self.sent: Values = {index: [] for index in range(PARTITIONS)}

    def metric(self, node: int, name: str) -> float:
        url = f"http://127.0.0.1:{self._pages[node]}/metrics"
        page = str(urllib.request.urlopen(url, timeout=30).read(), "utf-8")
        (line,) = [row for row in page.splitlines() if row.startswith(f"kafkawire_{name} ")]
        return float(line.split()[1])

    def tier(self, *words: str) -> Any:
        done = Typed(self.cluster.bootstrap(1), "tier", *words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    def send(self, word: str) -> None:
        for index, sent in self.sent.items():
            values = [b"%s-%d" % (word.encode(), at) for at in range(RECORDS)]
            rows = [{"value": value, "partition": index} for value in values]
            produce(self.cluster.bootstrap(1), TOPIC, rows, acks="all")
            sent += values

    def transactions(self) -> None:
        """Write transactions, of which every second one is aborted, with small batches."""
        settings = {"bootstrap.servers": self.cluster.bootstrap(1), "transactional.id": "x"}
        producer = Producer({**settings, "linger.ms": 0, "batch.num.messages": 10})
        producer.init_transactions(LIMIT_S)
        for number in range(8):
            producer.begin_transaction()
            for index, sent in self.sent.items():
                values = [b"%d-%d" % (number, at) for at in range(RECORDS // 4)]
                for value in values:
                    producer.produce(TOPIC, value, partition=index)
                if number % 2:
                    sent += values
            if number % 2:
                producer.commit_transaction(LIMIT_S)
            else:
                assert producer.flush(LIMIT_S) == 0
                producer.abort_transaction(LIMIT_S)

    def uploaded(self) -> bool:
        rows = self.tier("status", "--topic", TOPIC)["partitions"]
        return all(row["commit"] == row["high_watermark"] > 0 for row in rows)

    def read(self, consumer: Consumer, found: Values) -> None:
        """Read until everything that was sent is there, and in order."""
        while any(len(found[index]) < len(sent) for index, sent in self.sent.items()):
            for message in consumer.consume(1000, 1):
                assert message.error() is None, message.error()
                found[message.partition()].append(message.value() or b"")
        assert found == self.sent


@pytest.fixture(params=["sqlite", "postgresql"])
def racks(tmp_path: Path, request: pytest.FixtureRequest, tier_url: str) -> Iterator[InRacks]:
    url = metadata_url(request.param, tmp_path, request)
    pages = dict(zip((1, 2), free_ports(2), strict=True))
    own = {
        node: {"broker.rack": rack, "metrics.listener": f"127.0.0.1:{pages[node]}"}
        for node, rack in ((1, "a"), (2, "b"))
    }
    settings = {**SETTINGS, "tier.url": tier_url}
    with Cluster(tmp_path, url, settings=settings, own=own) as made:
        wait_until(lambda: made.listed(1) == made.listed(2) == [1, 2], "both brokers")
        made.create(1, TOPIC, [1] * PARTITIONS, **CONFIGS)
        yield InRacks(made, pages)


def test_old_records_are_read_in_the_rack_of_the_client(racks: InRacks) -> None:
    racks.send("before")
    racks.transactions()
    wait_until(racks.uploaded, "all uploaded")
    racks.tier("pause")
    racks.send("after")  # only the leader has these
    old = racks.metric(1, "fetched_bytes_total"), racks.metric(1, "fetch_redirects_total")
    found: Values = {index: [] for index in range(PARTITIONS)}
    settings = {"client_rack": "b", "isolation_level": "read_committed"}
    with closing(racks.cluster.consumer(1, "unused", **settings)) as consumer:
        consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
        racks.read(consumer, found)
        here = racks.metric(1, "fetched_bytes_total") - old[0]
        there = racks.metric(2, "fetch_replica_bytes_total")
        assert racks.metric(2, "fetched_bytes_total") == there > here > 0
        assert racks.metric(1, "fetch_redirects_total") - old[1] >= PARTITIONS
        racks.send("later")  # the reader follows the leader
        racks.read(consumer, found)
        assert racks.metric(2, "fetch_replica_bytes_total") == there


def test_clients_of_a_reader_that_ends_read_at_the_leader(racks: InRacks) -> None:
    racks.send("before")
    wait_until(racks.uploaded, "all uploaded")
    racks.tier("pause")
    found: Values = {index: [] for index in range(PARTITIONS)}
    with closing(racks.cluster.consumer(1, "unused", client_rack="b")) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found[0].append(consumer.consume(1, LIMIT_S)[0].value() or b"")
        assert racks.metric(2, "fetch_replica_bytes_total")
        racks.cluster.kill(2)
        consumer.assign([TopicPartition(TOPIC, index, len(found[index])) for index in found])
        racks.read(consumer, found)
