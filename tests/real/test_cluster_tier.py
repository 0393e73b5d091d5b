"""Two broker processes of one cluster with one bucket: what either uploads is read by both, and by
readers of the bucket alone, before and after partitions have moved.

Covers: kafkawire.tiering.store.store_folder, kafkawire.tiering.upload.other_uploads,
kafkawire.reading.files.manifests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kafkawire.reading as reading
from tests.kit.cli import Typed
from tests.kit.cluster import Cluster, metadata_url
from tests.kit.waiting import wait_until
from tests.real.librdkafka import produce

pytestmark = pytest.mark.real

TOPIC, LEADERS, RECORDS = "cold", [1, 2, 1, 2], 300
SETTINGS = {
    "journal.bytes": 1 << 20,
    "journal.roll.ms": 500,
    "cut.interval.ms": 100,
    "hot.bytes": 1 << 20,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 1,
    "tier.cache.bytes": 16 << 20,
}
CONFIGS = {
    "tiering.max.lag.ms": "5000",
    "tiering.min.object.bytes": "1",
    "local.retention.ms": "1",
    "retention.ms": "-1",
}
Values = dict[int, list[bytes]]


@pytest.fixture(params=["sqlite", "postgresql"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest, tier_url: str) -> Iterator[Cluster]:
    url = metadata_url(request.param, tmp_path, request)
    settings = {**SETTINGS, "tier.url": tier_url}
    with Cluster(tmp_path, url, settings=settings, shared=True) as made:
        wait_until(lambda: made.listed(1) == made.listed(2) == [1, 2], "both brokers")
        yield made


def send(cluster: Cluster, node: int, sent: Values, word: str) -> None:
    """Produce to all partitions with one broker as bootstrap."""
    for index in range(len(LEADERS)):
        values = [b"%s-%d-%d" % (word.encode(), index, at) for at in range(RECORDS)]
        rows = [{"value": value, "partition": index} for value in values]
        produce(cluster.bootstrap(node), TOPIC, rows, acks="all")
        sent[index] += values


def command(cluster: Cluster, node: int, *words: str) -> Any:
    done = Typed(cluster.bootstrap(node), *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)  # a scrub shows its progress on stderr


def uploaded(cluster: Cluster) -> bool:
    """Whether both brokers have uploaded all records of the topic and removed their files."""
    for node in (1, 2):
        rows = command(cluster, node, "tier", "status", "--topic", TOPIC)["partitions"]
        for row in rows:
            if not row["commit"] == row["local_log_start"] == row["high_watermark"] > 0:
                return False
    return True


def in_bucket(tier_url: str) -> Values:
    """All records of the topic, by partition, read without a broker."""
    found: Values = {index: [] for index in range(len(LEADERS))}
    with reading.open_bucket(tier_url) as reader:
        for record in reader.read(TOPIC):
            found[record.partition].append(record.value or b"")
    return found


def test_bucket_of_two_brokers(cluster: Cluster, tier_url: str) -> None:
    cluster.create(1, TOPIC, LEADERS, **{name.replace(".", "_"): v for name, v in CONFIGS.items()})
    sent: Values = {index: [] for index in range(len(LEADERS))}
    send(cluster, 2, sent, "before")
    wait_until(lambda: uploaded(cluster), "all uploaded")
    assert in_bucket(tier_url) == sent
    for node in (1, 2):
        assert cluster.read_all(node, TOPIC) == sent

    drained = Typed(cluster.bootstrap(2), "cluster", "drain", "1")
    assert drained.code == 0, drained.err
    wait_until(lambda: set(cluster.leaders(2, TOPIC).values()) == {2}, "all led by broker 2")
    send(cluster, 1, sent, "after")
    for node in (1, 2):
        assert cluster.read_all(node, TOPIC) == sent
    wait_until(lambda: uploaded(cluster), "all uploaded again")
    for node in (1, 2):
        assert cluster.read_all(node, TOPIC) == sent
        assert command(cluster, node, "tier", "scrub", "--deep")["findings"] == []
    assert in_bucket(tier_url) == sent
    counted = Counter({index: len(values) for index, values in in_bucket(tier_url).items()})
    assert counted == dict.fromkeys(range(len(LEADERS)), 2 * RECORDS)
