"""Records produced for one user: requests that wait at the same time share batches.

One thread sends. While a Produce request is at the broker, further records collect, and the next
Produce request has all of them. So a single record waits for no timer, and many are cheap.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.offsets import Partition, leaders
from kafkawire.client.producer import Failure, Producer
from kafkawire.codec.batches import Record
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.murmur2 import key_partition
from kafkawire.console.views.actions import READ_ONLY
from kafkawire.console.views.plans import NotAllowed

MAX_WAITING_BYTES = 32 << 20
"""Records of one user that wait for the broker: twice what the producer has in one request."""
RECORD_OVERHEAD_BYTES = 200
"""Memory of a record that waits, in addition to its key, value and headers."""
IDLE_S = 30.0
"""After this time without records the thread ends, and the connection is closed."""
TOPIC_S = 30.0
"""How long the number of a topic's partitions is remembered."""
MAX_TOPICS = 1000
"""Topics whose number of partitions is remembered."""


class ProducerBusy(ClientError):
    """More records wait than are held in memory."""


class NewRecord(NamedTuple):
    """A record to produce. None: `partition` by the key, `timestamp_ms` now."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Produced(NamedTuple):
    """The result of a record. `offset` None: it was not stored, for `error`, or it was stored by an
    attempt whose answer was lost. `code`: the broker's error."""

    partition: int | None
    offset: int | None
    error: str = ""
    code: int = 0


class _Waiting:
    """A request with its results."""

    __slots__ = ("future", "left", "records", "results", "size", "topic")

    def __init__(self, topic: str, records: Sequence[NewRecord]) -> None:
        self.topic = topic
        self.records = records
        self.size = sum(_size(each) for each in records)
        self.results: list[Produced | None] = [None] * len(records)
        self.left = len(records)
        self.future: Future[list[Produced]] = Future()

    def finish(self, at: int, result: Produced) -> None:
        """Store the result of a record; the last one completes the request."""
        if self.results[at] is None:
            self.results[at] = result
            self.left -= 1
            if not self.left and self.future.set_running_or_notify_cancel():
                self.future.set_result([each for each in self.results if each is not None])

    def finish_rest(self, error: ClientError) -> None:
        """Store an error as the result of the records that have none."""
        code = error.code if isinstance(error, BrokerError) else 0
        for at, result in enumerate(self.results):
            if result is None:
                self.finish(at, Produced(None, None, str(error), code))


class RecordProducer:
    """Produces records with acks=all, and each record once (KIP-98). `connect`: opens connections
    of the user; `may_change`: whether the console may."""

    def __init__(self, connect: Callable[[], Cluster], may_change: bool) -> None:
        self._connect = connect
        self._may_change = may_change
        self._condition = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        # Used by the thread only:
        self._cluster: Cluster | None = None
        self._producer: Producer | None = None
        self._topics: dict[str, tuple[int, float]] = {}
        self._sent: list[tuple[_Waiting, int]] = []
        self._turns = itertools.count()

    def queue(self, topic: str, records: Sequence[NewRecord]) -> Future[list[Produced]]:
        """Queue at least one record of a topic, in order; the future has the result of each when
        the broker has acknowledged or refused all. NotAllowed; ProducerBusy."""
        if not self._may_change:
            raise NotAllowed(READ_ONLY)
        asked = _Waiting(topic, records)
        with self._condition:
            if self._bytes + asked.size > MAX_WAITING_BYTES or self._closed:
                raise ProducerBusy("too many records are waiting for the broker")
            self._bytes += asked.size
            self._waiting.append(asked)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="produce", daemon=True)
                self._thread.start()
            self._condition.notify()
        return asked.future

    def close(self) -> None:
        """Take no more records; the thread sends what waits, then it ends."""
        with self._condition:
            self._closed = True
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._waiting and not self._closed:
                    self._condition.wait(IDLE_S)
                taken, self._waiting = self._waiting, []
                if not taken:
                    self._thread = None
                    self._disconnect()
                    return
            by_topic: dict[str, list[_Waiting]] = {}
            for each in taken:
                by_topic.setdefault(each.topic, []).append(each)
            # A Produce request has one topic: one that is deleted meanwhile fails no other.
            for topic, requests in by_topic.items():
                self._send(topic, requests)
            with self._condition:
                self._bytes -= sum(each.size for each in taken)

    def _send(self, topic: str, requests: Sequence[_Waiting]) -> None:
        error = ClientError("the broker did not say what became of the record")
        self._sent.clear()
        try:
            partitions = self._count_partitions(topic)
            producer = self._open_producer()
            now_ms, turn = time.time_ns() // 1_000_000, next(self._turns)
            for asked in requests:
                for at, new in enumerate(asked.records):
                    index = _choose(new, partitions, turn)
                    if index >= partitions:
                        sentence = f"partition={index}: topic {topic} has {partitions} partitions"
                        code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                        asked.finish(at, Produced(None, None, sentence, code))
                        continue
                    when = now_ms if new.timestamp_ms is None else new.timestamp_ms
                    self._sent.append((asked, at))
                    record = Record(0, when, new.key, new.value, new.headers)
                    producer.send((topic, index), record, len(self._sent) - 1)
            producer.flush()
        except ClientError as failure:
            error = failure
            if not isinstance(failure, BrokerError):
                self._disconnect()
        for asked in requests:
            asked.finish_rest(error)

    def _count_partitions(self, topic: str) -> int:
        count, until = self._topics.get(topic, (0, 0.0))
        if time.monotonic() >= until:
            self._topics.pop(topic, None)
            if self._cluster is None:
                self._cluster = self._connect()
            try:
                count = len(leaders(self._cluster, [topic]))
            except BrokerError:
                raise
            except ClientError:  # the connection was closed while nothing was sent
                self._disconnect()
                self._cluster = self._connect()
                count = len(leaders(self._cluster, [topic]))
            if len(self._topics) >= MAX_TOPICS:
                self._topics.clear()
            self._topics[topic] = count, time.monotonic() + TOPIC_S
        return count

    def _open_producer(self) -> Producer:
        if self._producer is None:
            if self._cluster is None:
                self._cluster = self._connect()
            self._producer = Producer(
                self._cluster, failed=self._fail, acknowledged=self._acknowledge
            )
        return self._producer

    def _acknowledge(self, partition: Partition, numbers: Sequence[int], base: int) -> None:
        for delta, number in enumerate(numbers):
            asked, at = self._sent[number]
            asked.finish(at, Produced(partition[1], base + delta if base >= 0 else None))

    def _fail(self, failure: Failure) -> None:
        self._topics.pop(failure.partition[0], None)
        for number in failure.numbers:
            asked, at = self._sent[number]
            result = Produced(failure.partition[1], None, failure.reason, failure.code)
            asked.finish(at, result)

    def _disconnect(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = self._producer = None


def _choose(new: NewRecord, partitions: int, turn: int) -> int:
    """Return the partition of a record. Those without a key stay together, as in Kafka's clients:
    fewer and larger batches."""
    if new.partition is not None:
        return new.partition
    return turn % partitions if new.key is None else key_partition(new.key, partitions)


def _size(new: NewRecord) -> int:
    size = RECORD_OVERHEAD_BYTES + len(new.key or b"") + len(new.value or b"")
    return size + sum(2 * len(name) + len(value or b"") for name, value in new.headers)
