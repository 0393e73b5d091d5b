"""Produce v3-13, from the receive buffer to the log and back.

v5 answers the log start offset; v7 allows zstd; v8 lists the records that were refused (KIP-467);
v9 is flexible; v10 has leader hints (KIP-951); v13 names topics by id (KIP-516).

acks=0 is never answered (an error ends the connection, as in Kafka), acks=1 after the write,
acks=all after the commit that covers it. The batches stay where they were received: their memory
is pinned until the turn they belong to has been written.

Not done: transactions (INVALID_TXN_STATE per batch, so that no half-open one enters the log),
leader hints, since a client finds the leader through Metadata anyway.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.produce import ProduceItem, ProduceResult, read_request, write_response
from kafkawire.handlers.exchange import Exchange, Pinned

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from log.partition import Partition

logger = logging.getLogger(__name__)

ZSTD_FROM = 7
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that Kafka lets write to internal topics (AdminUtils)."""

_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK, _ZSTD = 7, 4


class ProduceExchange(Exchange):
    """A Produce whose batches are on their way to the disk, and what its client will be told."""

    __slots__ = ("acks", "block", "results", "size_bytes")

    acks: int
    block: Pinned
    results: list[ProduceResult]
    size_bytes: int

    def written(self, failure: BaseException | None) -> None:
        """The turn was written, or failed whole."""
        self.block.unpin()
        self.peer.applied(self.size_bytes)
        if self.acks == 1:
            self.tell(failure)
        elif failure is not None and self.acks == 0:
            self.peer.abort("a produce with acks=0 could not be written")

    def tell(self, failure: BaseException | None) -> None:
        """Answer the client; a failure takes the place of each success."""
        if failure is not None:
            self.results = [_failed(result, failure) for result in self.results]
        self.answer(write_response(self.results, self.version))


class Produce:
    """The handler: one for the broker's life."""

    exchange = ProduceExchange

    def __init__(self, broker: Broker) -> None:
        self._by_name = broker.table.by_name
        self._table = broker.table
        self._commit_log = broker.log.commit_log
        self._now_ms = broker.env.clock.now_ms

    def start(
        self, exchange: ProduceExchange, block: Pinned, buf: memoryview, pos: int, end: int
    ) -> bool:
        """Append what is asked. False: the log has no room yet, `peer.applied` will tell."""
        log = self._commit_log
        if log.full:
            log.when_room(exchange.peer.resume)
            return False
        transactional_id, acks, items = read_request(buf, pos, end, exchange.version)
        results: list[ProduceResult] = []
        appended = 0
        refusal = _refusal(acks, transactional_id)
        now_ms = self._now_ms()
        for item in items:
            try:
                if refusal is not None:
                    raise refusal
                results.append(self._append(exchange, buf, item, acks, now_ms))
                appended += 1
            except (KafkaError, OSError) as failure:
                results.append(_refused(item, failure))
        exchange.acks = acks
        exchange.results = results
        if appended:
            exchange.block = block
            exchange.size_bytes = size = end - pos
            block.pin()
            exchange.peer.applying(size)
            log.after_write(exchange.written)
            if acks == -1:
                log.after_commit(exchange.tell)
        elif acks:
            exchange.tell(None)
        if acks == 0:
            exchange.peer.unanswered(exchange)
            if appended < len(results):
                exchange.peer.abort("a produce with acks=0 was refused")
        return True

    def close(self) -> None:
        """Nothing waits here: the log answers what it has been given."""

    def _append(
        self, exchange: ProduceExchange, buf: memoryview, item: ProduceItem, acks: int, now_ms: int
    ) -> ProduceResult:
        """Queue one batch on its partition; what the client is told if the write succeeds."""
        topic, index, start, stop = item
        if isinstance(topic, str):
            rows = self._by_name.get(topic)
            if rows is not None and 0 <= index < len(rows):
                partition = rows[index]
            else:
                partition = self._table.named(topic, index)
        else:
            partition = self._table.identified(topic, index)
        if partition is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if exchange.version < ZSTD_FROM or acks == -1 or partition.topic in INTERNAL_TOPICS:
            _check(partition, exchange, buf, item, acks)
        if start < 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, "the batch is null")
        done = partition.append(buf[start:stop], now_ms)
        return topic, index, 0, done.base_offset, done.log_append_time_ms, done.log_start, None, ()


def _refusal(acks: int, transactional_id: str | None) -> KafkaError | None:
    """What refuses a request whole, partition by partition."""
    if not -1 <= acks <= 1:
        return KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
    if transactional_id is not None:
        return KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "this broker does not serve transactions yet",
        )
    return None


def _check(
    partition: Partition, exchange: Exchange, buf: memoryview, item: ProduceItem, acks: int
) -> None:
    """The checks that need the request, not only the batch (KafkaApis.handleProduceRequest)."""
    _, _, start, stop = item
    if acks == -1 and partition.config.min_insync_replicas > 1:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    if (
        exchange.version < ZSTD_FROM
        and stop - start > _ATTRIBUTES_LOW_BYTE
        and buf[start + _ATTRIBUTES_LOW_BYTE] & _CODEC_MASK == _ZSTD
    ):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if partition.topic in INTERNAL_TOPICS and exchange.peer.client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)


def _refused(item: ProduceItem, failure: Exception) -> ProduceResult:
    message = failure.message if isinstance(failure, KafkaError) else None
    records = tuple(failure.record_errors) if isinstance(failure, KafkaError) else ()
    return (item[0], item[1], int(code_of(failure)), -1, -1, -1, message, records)


def _failed(result: ProduceResult, failure: BaseException) -> ProduceResult:
    if result[2]:
        return result
    return (result[0], result[1], int(code_of(failure)), -1, -1, -1, None, ())
