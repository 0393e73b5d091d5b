"""A cluster in memory for tests of the sink: transactions, fencing and committed offsets of groups.

`FakeCluster` stands for `kafkawire.client`: `patch` replaces the functions that the sink calls.
Every call is a *step*; `kill_at` ends the driver before or after one of them, as kill -9 would:
every later call of that driver fails, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from kafkawire.client.errors import BrokerError
from kafkawire.client.producer import ProduceResult
from kafkawire.client.transactions import TransactionalProducer
from kafkawire.codec.batches import records
from kafkawire.codec.errors import ErrorCode
from kafkawire_spark.sink import transaction
from kafkawire_spark.sink.transaction import SinkConnection

Partition = tuple[str, int]


class Killed(BaseException):
    """The driver was killed."""


@dataclass
class _Open:
    """State of a transactional id: what its open transaction has written."""

    epoch: int = -1
    partitions: set[Partition] = field(default_factory=set)
    values: list[tuple[Partition, bytes]] = field(default_factory=list)
    sequences: dict[Partition, int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    offsets: dict[str, dict[Partition, tuple[int, str | None]]] = field(default_factory=dict)


class FakeCluster:
    """Topics whose committed records are in `values`, and what a driver called, in `steps`."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.topics = dict(topics)
        self.values: list[tuple[Partition, bytes]] = []
        self.offsets: dict[str, dict[Partition, tuple[int, str | None]]] = {}
        self.steps: list[str] = []
        self.kill_at: tuple[int, str] | None = None
        self.trouble: Callable[[str], None] = lambda step: None
        self._ids: dict[str, _Open] = {}

    def restart_driver(self) -> None:
        """Start another driver, after one was killed."""
        self.steps, self.kill_at = [], None

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the sink use this cluster."""
        for name in ("init_producer", "add_partitions", "append", "add_offsets", "commit_offsets",
                     "end", "fetch_committed_offsets"):  # fmt: skip
            monkeypatch.setattr(transaction, name, self._step(name, getattr(self, f"_{name}")))
        monkeypatch.setattr(SinkConnection, "create", lambda self, topic: None)
        monkeypatch.setattr(SinkConnection, "leader", lambda self, cluster, place: 1)
        monkeypatch.setattr("kafkawire_spark.sink.transaction.Cluster", lambda *a: _NoCluster())
        monkeypatch.setattr("kafkawire_spark.sink.transaction.pause", lambda attempt: None)

    def _step(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(cluster: Any, *given: Any, **named: Any) -> Any:
            if self.kill_at is not None and len(self.steps) > self.kill_at[0]:
                raise Killed
            self.steps.append(name)
            dies = self.kill_at if self.kill_at and self.kill_at[0] == len(self.steps) - 1 else None
            if dies and dies[1] == "before":
                raise Killed
            self.trouble(name)
            found = call(*given, **named)
            if dies:
                raise Killed
            return found

        return step

    def _state(self, producer: TransactionalProducer) -> _Open:
        state = self._ids[producer.transactional_id]
        if state.epoch != producer.epoch:
            raise BrokerError("the producer", ErrorCode.PRODUCER_FENCED)
        return state

    def _init_producer(self, who: str, timeout_ms: int) -> TransactionalProducer:
        epoch = self._ids[who].epoch + 1 if who in self._ids else 0
        self._ids[who] = _Open(epoch)  # what was open is aborted
        return TransactionalProducer(who, 7, epoch)

    def _add_partitions(
        self, producer: TransactionalProducer, partitions: Iterable[Partition]
    ) -> None:
        self._state(producer).partitions |= set(partitions)

    def _append(
        self, node: int, batches: Mapping[Partition, bytearray], *, transactional_id: str
    ) -> dict[Partition, ProduceResult]:
        state = self._ids[transactional_id]
        found = {}
        for place, data in batches.items():
            epoch, first, count = (
                int.from_bytes(data[at : at + size], "big")
                for at, size in ((51, 2), (53, 4), (57, 4))
            )
            expected = state.sequences.get(place, 0)
            code = 0
            if place not in state.partitions:
                code = ErrorCode.INVALID_TXN_STATE
            elif epoch != state.epoch:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            elif first + count == expected:
                pass  # stored already
            elif first != expected:
                code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            else:
                state.values += [(place, record.value or b"") for record in records(data)]
                state.sequences[place] = first + count
            found[place] = ProduceResult(code, None, 0)
        return found

    def _add_offsets(self, producer: TransactionalProducer, group: str) -> None:
        self._state(producer).groups.add(group)

    def _commit_offsets(
        self,
        producer: TransactionalProducer,
        group: str,
        offsets: Mapping[Partition, tuple[int, str | None]],
    ) -> None:
        state = self._state(producer)
        assert group in state.groups
        state.offsets.setdefault(group, {}).update(offsets)

    def _end(self, producer: TransactionalProducer, *, committed: bool) -> None:
        state = self._state(producer)
        if committed:
            self.values += state.values
            for group, offsets in state.offsets.items():
                self.offsets.setdefault(group, {}).update(offsets)
        epoch = state.epoch
        self._ids[producer.transactional_id] = _Open(epoch)

    def _fetch_committed_offsets(
        self, group: str, *, stable: bool
    ) -> dict[Partition, tuple[int, str | None]]:
        assert stable
        return self.offsets.get(group, {})


class _NoCluster:
    def close(self) -> None:
        """Nothing is open."""


def read_committed(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value) of the records of a topic, by librdkafka with read_committed: at
    least `count` of them, to the last stable offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": f"reader-of-{topic}",
            "enable.auto.commit": False, "isolation.level": "read_committed",
            "enable.partition.eof": True, "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        found: list[tuple[int, bytes, bytes]] = []
        ended: set[int] = set()
        until = time.monotonic() + 120
        while (len(found) < count or len(ended) < len(partitions)) and time.monotonic() < until:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value()))
                ended.discard(message.partition())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return found
    finally:
        consumer.close()
