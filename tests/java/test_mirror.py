"""MirrorMaker 2 with exactly-once source support between two brokers."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.java.brokers import OwnBroker, create_topics, run_broker
from tests.java.committed import CommittedReader, read_all
from tests.java.conftest import Program
from tests.kit.ports import free_port
from tests.real.conftest import OTHER_BROKER
from tests.real.members import wait_for

ROUND = 200
"""Committed records of each round; every transaction of 20 is followed by an aborted one."""
SIZE = 20


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[OwnBroker, OwnBroker]]:
    """The source and the target."""
    if OTHER_BROKER and "," not in OTHER_BROKER:
        pytest.skip("needs two brokers: host:port,host:port")
    with run_broker(tmp_path / "source", 0) as source, run_broker(tmp_path / "target", 1) as target:
        yield source, target


def write_properties(folder: Path, source: str, target: str, topic: str) -> Path:
    port = free_port()
    settings = {
        "clusters": "source, target",
        "source.bootstrap.servers": source,
        "target.bootstrap.servers": target,
        "source->target.enabled": "true",
        "target->source.enabled": "false",
        "source->target.topics": topic,
        "source->target.groups": f"{topic}-group",
        "source.consumer.isolation.level": "read_committed",
        "target.exactly.once.source.support": "enabled",
        # A restarted worker waits for transactions of the killed one in its offsets topic. A
        # restart of the broker must take less.
        "target.producer.transaction.timeout.ms": "8000",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{port}",
        "tasks.max": "2",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "offset.storage.partitions": "2",
        "status.storage.partitions": "1",
        "offset.lag.max": "0",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.interval.seconds": "1",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "target.session.timeout.ms": "3000",
        "target.heartbeat.interval.ms": "500",
        "target.rebalance.timeout.ms": "5000",
        "target.scheduled.rebalance.max.delay.ms": "0",
        "target.task.shutdown.graceful.timeout.ms": "1000",
        "plugin.discovery": "service_load",  # it reads its own settings with plugins too
        "target.plugin.discovery": "service_load",
    }
    path = folder / "mirror.properties"
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return path


class Writer:
    """Writes numbers in transactions to two partitions, each also in a transaction that aborts."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written: dict[int, list[bytes]] = {0: [], 1: []}
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"}
        )
        self._producer.init_transactions(60)

    def write(self) -> None:
        """One round."""
        for _ in range(ROUND // SIZE):
            self._transaction(b"aborted")
            self._producer.abort_transaction(60)
            self._transaction(b"")
            self._producer.commit_transaction(60)

    def _transaction(self, value: bytes) -> None:
        self._producer.begin_transaction()
        for i in range(SIZE):
            rows = self.written[i % 2]
            sent = value or b"%d" % len(rows)
            self._producer.produce(self._topic, sent, partition=i % 2)
            if not value:
                rows.append(sent)


def test_topic_is_mirrored_exactly_once(
    pair: tuple[OwnBroker, OwnBroker], program: Program, tmp_path: Path, name: str
) -> None:
    """MirrorMaker 2 is killed; then both brokers are. Every committed record arrives once, in
    order, no aborted one does; offsets of a group are translated and synchronised."""
    source, target = pair
    create_topics(source.bootstrap, {name: 2})
    writer = Writer(source.bootstrap, name)
    writer.write()
    properties = write_properties(tmp_path, source.bootstrap, target.bootstrap, name)
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    mirror = program(main, str(properties), "--clusters", "target")
    mirror.start()
    mirrored = CommittedReader(target.bootstrap, f"source.{name}")
    mirrored.count(ROUND)
    writer.write()
    mirror.kill()
    mirror.start()
    mirrored.count(2 * ROUND)
    writer.write()
    target.crash()
    writer.write()
    source.crash()
    mirrored.count(4 * ROUND)
    writer.write()
    mirrored.count(5 * ROUND)
    ends = commit_ends(source.bootstrap, f"{name}-group", name)
    remote = [TopicPartition(f"source.{name}", p) for p in (0, 1)]
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    wait_for(lambda: len(committed(admin, f"{name}-group", remote)) == len(remote))
    writer.write()
    mirrored.count(6 * ROUND)
    mirror.stop()
    records = mirrored.to_end()
    assert by_partition(records) == writer.written
    for at in committed(admin, f"{name}-group", remote):
        end = ends[at.partition]
        assert 0 < before(records, at) <= before(read_all(source.bootstrap, name), at, end)
    for topic in ("source.checkpoints.internal", "heartbeats"):
        assert read_all(target.bootstrap, topic)
    assert read_all(source.bootstrap, "mm2-offset-syncs.target.internal")


def before(records: list[Message], at: TopicPartition, offset: int | None = None) -> int:
    """Count the records of the partition before `offset`, by default the one of `at`."""
    limit = at.offset if offset is None else offset
    return sum(m.partition() == at.partition and (m.offset() or 0) < limit for m in records)


def commit_ends(bootstrap: str, group: str, topic: str) -> list[int]:
    """Commit the ends of both partitions for a group; return them. MirrorMaker translates no offset
    that is older than its last start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    partitions = [TopicPartition(topic, p) for p in (0, 1)]
    ends = [consumer.get_watermark_offsets(each, 20)[1] for each in partitions]
    offsets = [TopicPartition(topic, p, end) for p, end in enumerate(ends)]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    return ends


def committed(
    admin: AdminClient, group: str, partitions: list[TopicPartition]
) -> list[TopicPartition]:
    """The group's offsets, those that are set."""
    asked = ConsumerGroupTopicPartitions(group, partitions)
    (found,) = admin.list_consumer_group_offsets([asked]).values()
    return [at for at in found.result(60).topic_partitions if at.offset >= 0]


def by_partition(records: list[Message]) -> dict[int, list[bytes]]:
    """The values of each partition, in their order."""
    found: dict[int, list[bytes]] = collections.defaultdict(list)
    for record in records:
        found[int(record.partition() or 0)].append(record.value() or b"")
    return found
