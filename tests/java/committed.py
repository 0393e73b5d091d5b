"""Topics as a consumer with isolation.level=read_committed sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.real.members import wait_for

LIMIT_S = 90.0


class CommittedReader:
    """Reads committed records of some topics from their start, without a group."""

    def __init__(self, bootstrap: str, *topics: str) -> None:
        self.records: list[Message] = []
        self._ended: set[tuple[str, int]] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self.partitions = partitions_of(self._consumer, *topics)
        self._consumer.assign([TopicPartition(t, p, 0) for t, p in self.partitions])

    def poll(self) -> None:
        """Take what has arrived. Ends of partitions are noted; a broken connection is retried."""
        for message in self._consumer.consume(500, 0.05):
            error = message.error()
            at = (message.topic(), message.partition())
            if error is None:
                self._ended.discard(at)
                self.records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(at)
            else:
                assert error.retriable() or error.code() < 0, error

    def wait_for(self, enough: Callable[[list[Message]], bool]) -> None:
        """Read until `enough(records)`."""

        def done() -> bool:
            self.poll()
            return enough(self.records)

        wait_for(done, LIMIT_S, lambda: f"{len(self.records)} records; the last: {self._last()}")

    def count(self, count: int) -> None:
        """Read until there are `count` records in all."""
        self.wait_for(lambda records: len(records) >= count)

    def more(self, count: int) -> None:
        """Read until there are `count` records more than now."""
        self.count(len(self.records) + count)

    def _last(self) -> list[Any]:
        return [(m.topic(), m.key(), m.value()) for m in self.records[-3:]]

    def to_end(self) -> list[Message]:
        """Read to the last stable offset of all partitions, and close."""
        self.wait_for(lambda _: len(self._ended) == len(self.partitions))
        self._consumer.close()
        return self.records


def partitions_of(client: Consumer | AdminClient, *topics: str) -> list[tuple[str, int]]:
    """Return all partitions of the topics, which must exist soon."""
    wait_for(lambda: all(topic_partitions(client, topic) for topic in topics), LIMIT_S)
    return [at for topic in topics for at in topic_partitions(client, topic)]


def topic_partitions(client: Consumer | AdminClient, topic: str) -> list[tuple[str, int]]:
    """Return the partitions of a topic, none while it does not exist."""
    return [(topic, p) for p in client.list_topics(topic, timeout=60).topics[topic].partitions]


def read_all(bootstrap: str, *topics: str) -> list[Message]:
    """All committed records, once no transaction is open in the topics."""
    wait_until_stable(bootstrap, *topics)
    return CommittedReader(bootstrap, *topics).to_end()


def wait_until_stable(bootstrap: str, *topics: str) -> None:
    """Wait until the last stable offset of every partition is its end."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    latest = {TopicPartition(t, p): OffsetSpec.latest() for t, p in partitions_of(admin, *topics)}

    def offsets(level: IsolationLevel) -> dict[tuple[str, int], int]:
        asked = admin.list_offsets(latest, isolation_level=level, request_timeout=10)
        return {(at.topic, at.partition): f.result(60).offset for at, f in asked.items()}

    def stable() -> bool:
        both = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
        return offsets(both[0]) == offsets(both[1])

    wait_for(stable, LIMIT_S, lambda: str([offsets(level) for level in IsolationLevel]))
