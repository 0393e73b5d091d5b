"""A producer that collects records into batches, one Produce request at a time.

Idempotent by default: a batch that is sent again after a failure is stored once (KIP-98). A batch
that is too large for the broker is sent in halves. A batch that fails is reported and counted, and
the next ones are still sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError, Closed, check
from kafkawire.client.offsets import Partition, leaders
from kafkawire.codec.batches import PRODUCER_ID_AT, Record, build, pack, read_head, records, resum
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer

# Appending record batches: at most one batch per partition in a Produce request.
#
# A caller that sends a batch again after a failure may append it twice, unless the batch has a
# producer id, epoch and sequence (KIP-98).


PRODUCE = 0
NAMES_UNTIL = 12
"""The last version of Produce that identifies topics by name; later ones use ids."""
EXPLICIT_UNTIL = 11
"""The last version of Produce that does not add partitions to a transaction (KIP-890)."""
TIMEOUT_MS = 30_000
ALL = -1
"""acks=all."""


class ProduceResult(NamedTuple):
    """Result of a batch: an error code (0: none) and its text, and the offset of the first
    record."""

    code: int
    message: str | None
    base_offset: int


def append(
    cluster: Cluster,
    node: int,
    batches: Mapping[Partition, Buffer],
    *,
    transactional_id: str | None = None,
    acks: int = ALL,
) -> dict[Partition, ProduceResult]:
    """Append one encoded batch to each of these partitions, which the broker `node` leads.

    Batches of a transaction need its `transactional_id`; their partitions must have been added to
    it. Errors of partitions are in the results. ClientError for other failures: the batches may
    have been appended. With `acks` 0 the broker does not answer, and offsets are -1.
    """
    from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    topics: dict[str, TopicProduceData] = {}
    for (topic, index), batch in batches.items():
        data = topics.setdefault(topic, TopicProduceData(name=topic, partition_data=[]))
        data.partition_data.append(PartitionProduceData(index, batch))
    asked = ProduceRequest(transactional_id, acks, TIMEOUT_MS, list(topics.values()))
    most = NAMES_UNTIL if transactional_id is None else EXPLICIT_UNTIL
    if not acks:
        cluster.node(node).send(PRODUCE, asked, at_most=most)
        return dict.fromkeys(batches, ProduceResult(0, None, -1))
    answer = cluster.node(node).request(PRODUCE, asked, at_most=most)
    return {
        (response.name, row.index): ProduceResult(
            row.error_code, row.error_message, row.base_offset
        )
        for response in answer.responses
        for row in response.partition_responses
    }


def produce(
    cluster: Cluster,
    node: int,
    partition: Partition,
    records: Sequence[tuple[bytes | None, bytes | None]],
    timestamp_ms: int,
) -> int:
    """Append (key, value) pairs; return the offset of the first. ClientError, BrokerError."""
    batch = bytes(build(records, timestamp_ms=timestamp_ms))
    found = append(cluster, node, {partition: batch})[partition]
    check(f"Produce to {partition[0]}-{partition[1]}", found.code, found.message)
    return int(found.base_offset)


INIT_PRODUCER_ID = 22
BATCH_BYTES = 256 << 10
"""Bytes of records per batch, before compression: well below the default max.message.bytes."""
BATCH_RECORDS = 10_000
"""Records per batch; small records take more memory than their bytes."""
BUFFERED_BYTES = 16 << 20
"""Bytes of records of all partitions together, before compression."""
RECORD_OVERHEAD_BYTES = 100
"""Memory that a small record takes in addition to its bytes."""
RETRY_S, RETRY_FOR_S = 0.2, 30.0
"""Interval and time limit of retries, as long as a request may take."""
SEQUENCES = 1 << 31
"""A producer's sequence numbers restart at 0 after this many."""

_NOT_RETRIED = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CORRUPT_MESSAGE}
"""Retriable by Kafka's table, but a caller has checked that the topic exists, and the same bytes
are damaged again."""
_TOO_LARGE = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
_LOST = {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
"""The broker does not know the producer any more, after days without a batch: the batch was not
stored, and is sent once more with a new producer id, as Kafka's producer does."""
_MISSING = ProduceResult(int(ErrorCode.UNKNOWN_SERVER_ERROR), "no result in the answer", -1)
_PRODUCER = Struct(">qhi")


class Failure(NamedTuple):
    """Records of one partition that were not stored: numbers as passed to `send`, the reason, and
    the broker's error code (0: none)."""

    partition: Partition
    numbers: Sequence[int]
    reason: str
    code: int = 0


class _Pending(NamedTuple):
    """A batch to send: its records with their numbers, or its bytes (of `count` records)."""

    records: list[Record]
    numbers: Sequence[int]
    codec: int
    encoded: bytearray | None = None

    @property
    def amount(self) -> int:
        return len(self.numbers)


class _Buffer:
    """Records of one partition that are not yet in a batch."""

    __slots__ = ("codec", "numbers", "records", "size")

    def __init__(self, codec: int) -> None:
        self.codec = codec
        self.records: list[Record] = []
        self.numbers: list[int] = []
        self.size = 0


class Producer:
    """Appends records to partitions. `failed` is called for records that were not stored, and
    `acknowledged` for those that were, with their partition, numbers and first offset (-1 if it is
    not known); `flush` sends what was collected. `codec`: number of a compression; `acks`: -1
    (all), 1 or 0.

    `stored` counts the records that were acknowledged (with acks=0: sent), `first` and `last` have
    their offsets by partition (-1 if not known).
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        failed: Callable[[Failure], None],
        codec: int = 0,
        acks: int = -1,
        idempotent: bool = True,
        acknowledged: Callable[[Partition, Sequence[int], int], None] | None = None,
    ) -> None:
        self.stored = 0
        self.first: dict[Partition, int] = {}
        self.last: dict[Partition, int] = {}
        self._cluster = cluster
        self._failed = failed
        self._acknowledged = acknowledged
        self._codec = codec
        self._acks = acks
        self._idempotent = idempotent and acks == -1
        self._identity: tuple[int, int] | None = None
        self._sequences: dict[Partition, int] = {}
        self._leaders: dict[Partition, int] = {}
        self._buffers: dict[Partition, _Buffer] = {}
        self._buffered = 0

    def send(
        self, partition: Partition, record: Record, number: int = 0, *, codec: int | None = None
    ) -> None:
        """Collect a record; sends batches when they are full. The record's offset is ignored;
        `number` is reported if it fails. `codec`: another compression, from the next batch on."""
        codec = self._codec if codec is None else codec
        buffer = self._buffers.setdefault(partition, _Buffer(codec))
        size = _size(record)
        if buffer.records and (
            buffer.size + size > BATCH_BYTES or len(buffer.records) >= BATCH_RECORDS
        ):
            self.flush()
            buffer = self._buffers.setdefault(partition, _Buffer(codec))
        buffer.records.append(_change_offset(record, len(buffer.records)))
        buffer.numbers.append(number)
        buffer.size += size
        self._buffered += size
        if self._buffered > BUFFERED_BYTES:
            self.flush()

    def send_batch(
        self, partition: Partition, batch: bytearray, count: int, number: int = 0
    ) -> None:
        """Send an encoded batch of `count` records with offset deltas 0 to count - 1. `number` is
        that of the first one."""
        self.flush()
        self._send({partition: _Pending([], range(number, number + count), 0, batch)})

    def flush(self) -> None:
        """Send everything that was collected."""
        filled = {key: buffer for key, buffer in self._buffers.items() if buffer.records}
        self._buffers.clear()
        self._buffered = 0
        self._send(
            {key: _Pending(each.records, each.numbers, each.codec) for key, each in filled.items()}
        )

    def _send(self, pending: Mapping[Partition, _Pending]) -> None:
        """Send one batch to each partition; those that are too large in halves."""
        waiting = dict(pending)
        refused: list[tuple[Partition, _Pending, ProduceResult]] = []
        deadline = time.monotonic() + RETRY_FOR_S
        renewed: set[Partition] = set()
        while waiting:
            again: dict[Partition, _Pending] = {}
            lost: dict[Partition, _Pending] = {}
            results = self._attempt(waiting)
            for partition, batch in waiting.items():
                result = results.get(partition, _MISSING)
                if result.code in (0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._store(partition, batch, -1 if result.code else result.base_offset)
                elif _retriable(result.code):
                    again[partition] = batch
                elif result.code in _LOST and partition not in renewed:
                    lost[partition] = batch
                else:
                    refused.append((partition, batch, result))
            if again:
                self._pause(again, deadline)
            if lost:
                self._forget()
                renewed.update(lost)
            waiting = again | lost
        if refused:
            self._forget()  # a gap in the sequence numbers would fail every later batch
        for each in refused:
            self._handle_refusal(*each)

    def _pause(self, batches: Mapping[Partition, _Pending], deadline: float) -> None:
        """Wait before these batches are sent again. ClientError after the deadline."""
        if time.monotonic() > deadline:
            self._end(batches)
        time.sleep(RETRY_S)
        self._leaders.clear()

    def _handle_refusal(self, partition: Partition, batch: _Pending, result: ProduceResult) -> None:
        """Send a batch that is too large in halves; report any other."""
        if result.code in _TOO_LARGE and batch.amount > 1:
            for half in _halves(batch):
                self._send({partition: half})
            return
        reason = str(BrokerError(_name(partition), result.code, result.message))
        self._failed(Failure(partition, batch.numbers, reason, result.code))

    def _end(self, batches: Mapping[Partition, _Pending]) -> None:
        """Report the batches as failed and end with an error: the next ones would wait as long."""
        reason = f"no broker has stored it within {RETRY_FOR_S:g} s"
        for partition, batch in batches.items():
            self._failed(Failure(partition, batch.numbers, f"{_name(partition)}: {reason}"))
        names = ", ".join(_name(partition) for partition in batches)
        raise ClientError(f"{names}: no broker has stored a batch within {RETRY_FOR_S:g} s")

    def _store(self, partition: Partition, batch: _Pending, base: int) -> None:
        self.stored += batch.amount
        if base >= 0:
            self.first.setdefault(partition, base)
            self.last[partition] = base + batch.amount - 1
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + batch.amount) % SEQUENCES
        if self._acknowledged is not None:
            self._acknowledged(partition, batch.numbers, base)

    def _forget(self) -> None:
        """Use a new producer id from now on."""
        self._identity = None
        self._sequences.clear()

    def _attempt(self, batches: Mapping[Partition, _Pending]) -> dict[Partition, ProduceResult]:
        """Send each batch once; a result for each."""
        try:
            by_node = self._by_node(batches)
        except Closed as error:
            self._cluster.reconnect()
            return _all_failed(batches, error)
        except ClientError as error:
            return _all_failed(batches, error)
        results: dict[Partition, ProduceResult] = {}
        for node, partitions in by_node.items():
            if node < 0:
                code = int(ErrorCode.LEADER_NOT_AVAILABLE)
                results.update(dict.fromkeys(partitions, ProduceResult(code, None, -1)))
                continue
            try:
                encoded = {key: self._encode(key, batches[key]) for key in partitions}
                results.update(append(self._cluster, node, encoded, acks=self._acks))
            except ClientError as error:
                self._cluster.disconnect(node)
                results.update(_all_failed(partitions, error))
        return results

    def _by_node(self, partitions: Iterable[Partition]) -> dict[int, list[Partition]]:
        missing = {topic for topic, index in partitions if (topic, index) not in self._leaders}
        if missing:
            self._leaders.update(leaders(self._cluster, missing))
        by_node: dict[int, list[Partition]] = {}
        for partition in partitions:
            node = self._leaders.get(partition)
            if node is None:
                raise BrokerError(_name(partition), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            by_node.setdefault(node, []).append(partition)
        return by_node

    def _encode(self, partition: Partition, batch: _Pending) -> bytearray:
        encoded = batch.encoded
        if encoded is None:
            encoded = pack(batch.records, codec=batch.codec)
        if self._idempotent:
            if self._identity is None:
                self._identity = new_producer_id(self._cluster)
            sequence = self._sequences.get(partition, 0)
            _PRODUCER.pack_into(encoded, PRODUCER_ID_AT, *self._identity, sequence)
            resum(encoded, 0, len(encoded))
        return encoded


def _name(partition: Partition) -> str:
    return f"{partition[0]}:{partition[1]}"


def _retriable(code: int) -> bool:
    return code in set(ErrorCode) and ErrorCode(code).retriable and code not in _NOT_RETRIED


def _change_offset(record: Record, offset: int) -> Record:
    return Record(offset, record.timestamp, record.key, record.value, record.headers)


def _size(record: Record) -> int:
    size = RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    return size + sum(2 * len(name) + len(value or b"") for name, value in record.headers)


def _halves(batch: _Pending) -> Iterable[_Pending]:
    items, codec = batch.records, batch.codec
    if batch.encoded is not None:
        items, codec = list(records(batch.encoded)), read_head(batch.encoded).codec
    middle = batch.amount // 2
    for part in (slice(0, middle), slice(middle, None)):
        rows = [_change_offset(record, at) for at, record in enumerate(items[part])]
        yield _Pending(rows, batch.numbers[part], codec)


def _all_failed(
    partitions: Iterable[Partition], error: ClientError
) -> dict[Partition, ProduceResult]:
    code = error.code if isinstance(error, BrokerError) else int(ErrorCode.NETWORK_EXCEPTION)
    return {key: ProduceResult(code, str(error), -1) for key in partitions}


def new_producer_id(cluster: Cluster) -> tuple[int, int]:
    """Return a producer id and epoch. BrokerError."""
    from kafkawire.messages.init_producer_id import InitProducerIdRequest

    answer = cluster.request(INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
    check("InitProducerId", answer.error_code)
    return answer.producer_id, answer.producer_epoch
