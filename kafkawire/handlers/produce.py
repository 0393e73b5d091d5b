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

from kafkawire.broker.newtopics import INTERNAL_TOPICS
from kafkawire.codec.errors import ErrorCode, KafkaError, code_of
from kafkawire.codec.produce import (
    FLEXIBLE_FROM,
    ProduceItem,
    ProduceResult,
    read_request,
    write_response,
)
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.shape import Shape, cut_shape

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from log.partition import Appended, Partition

logger = logging.getLogger(__name__)

ZSTD_FROM = 7
ADMIN_CLIENT_ID = "__admin_client"
"""The one client id that Kafka lets write to internal topics (AdminUtils)."""

_ATTRIBUTES_LOW_BYTE = 22
_CODEC_MASK, _ZSTD = 7, 4


class ProduceExchange(Exchange):
    """A Produce whose batches are on their way to the disk, and what its client will be told."""

    __slots__ = ("acks", "block", "results", "size_bytes")

    def __init__(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        acks: int,
        block: Pinned,
        size_bytes: int,
    ) -> None:
        self.peer = peer
        self.version = version
        self.correlation_id = correlation_id
        self.flexible = version >= FLEXIBLE_FROM
        self.parts = None
        self.pins = None
        self.acks = acks
        self.block = block
        self.size_bytes = size_bytes
        self.results: list[ProduceResult] = []

    def tell(self, failure: BaseException | None) -> None:
        """Answer the client; a failure takes the place of each success."""
        if failure is not None:
            self.results = [_failed(result, failure) for result in self.results]
        self.answer(write_response(self.results, self.version))


class ShapedExchange(ProduceExchange):
    """One of a row of requests that differ in their batch alone (handlers.shape)."""

    __slots__ = ("done", "shape")

    shape: Shape
    done: Appended

    def tell(self, failure: BaseException | None) -> None:
        """Answer with the shape's bytes around the offsets."""
        done = self.done
        if failure is None:
            answer = self.shape.answer(
                self.correlation_id, done.base_offset, done.log_append_time_ms, done.log_start
            )
            self.parts = [answer]
            self.peer.answered(self)
        else:
            self.answer(self.shape.result(*_why(failure)))


class Turn:
    """The Produces whose batches are in one turn of the log, and the memory these lie in."""

    __slots__ = ("blocks", "exchanges", "now_ms", "number", "waiting")

    def __init__(self, number: int, now_ms: int) -> None:
        self.number = number
        self.now_ms = now_ms
        self.exchanges: list[ProduceExchange] = []
        self.waiting: list[ProduceExchange] = []  # acks=all: for the commit
        self.blocks: list[Pinned] = []

    def written(self, failure: BaseException | None) -> None:
        """The turn was written, or failed whole."""
        for block in self.blocks:
            block.unpin()
        for exchange in self.exchanges:
            peer = exchange.peer
            peer.applied(exchange.size_bytes)
            if exchange.acks == 1:
                exchange.tell(failure)
            elif failure is not None and exchange.acks == 0:
                peer.abort("a produce with acks=0 could not be written")
        self.exchanges[-1].peer.turn_over()

    def committed(self, failure: BaseException | None) -> None:
        """... and is durable, or cannot be made so."""
        for exchange in self.waiting:
            exchange.tell(failure)
        self.waiting[-1].peer.turn_over()


class Produce:
    """The handler: one for the broker's life."""

    def __init__(self, broker: Broker) -> None:
        self._by_name = broker.table.by_name
        self._table = broker.table
        self._commit_log = broker.log.commit_log
        self._now_ms = broker.env.clock.now_ms
        self._turn = Turn(-1, 0)

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Append what is asked. False: the log has no room yet, `peer.resume` will tell."""
        log = self._commit_log
        refused = None
        if log.full:
            if log.refusal is None:
                log.when_room(peer.resume)
                return False
            refused = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.refusal)
        if self._turn.number != log.turn_number:
            self._turn = Turn(log.turn_number, self._now_ms())
        shape = peer.memo
        if (
            refused is None
            and shape.__class__ is Shape
            and shape.version == version
            and not shape.partition.removed
        ):
            found = shape.find(buf, pos, end)
            if found is not None:
                exchange = ShapedExchange(
                    peer, version, correlation_id, shape.acks, block, end - pos
                )
                self._append_shaped(exchange, shape, buf[found[0] : found[1]])
                return True
        transactional_id, acks, items = read_request(buf, pos, end, version)
        general = ProduceExchange(peer, version, correlation_id, acks, block, end - pos)
        self._append_all(general, buf, items, refused or _refusal(acks, transactional_id))
        if len(items) == 1 and not general.results[0][2]:
            self._remember(peer, version, acks, buf, pos, items[0])
        return True

    def _append_shaped(self, exchange: ShapedExchange, shape: Shape, batch: memoryview) -> None:
        acks = shape.acks
        if acks:
            exchange.peer.exchanges.append(exchange)
        try:
            partition = shape.partition
            if acks == -1 and partition.config.min_insync_replicas > 1:
                raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
            exchange.done = partition.append(batch, self._turn.now_ms)
        except (KafkaError, OSError) as failure:
            if acks:
                exchange.answer(shape.result(*_why(failure)))
            else:
                exchange.peer.abort("a produce with acks=0 was refused")
            return
        exchange.shape = shape
        self._wait(exchange)

    def _append_all(
        self,
        exchange: ProduceExchange,
        buf: memoryview,
        items: list[ProduceItem],
        refusal: KafkaError | None,
    ) -> None:
        now_ms = self._turn.now_ms
        results = exchange.results
        appended = 0
        for item in items:
            try:
                if refusal is not None:
                    raise refusal
                results.append(self._append(exchange, buf, item, now_ms))
                appended += 1
            except (KafkaError, OSError) as failure:
                results.append((item[0], item[1], *_refused(failure)))
        if exchange.acks:
            exchange.peer.exchanges.append(exchange)
        if appended:
            self._wait(exchange)
        elif exchange.acks:
            exchange.tell(None)
        if not exchange.acks and appended < len(results):
            exchange.peer.abort("a produce with acks=0 was refused")

    def _wait(self, exchange: ProduceExchange) -> None:
        """Answer when the log says so; keep the batches where they are until they are written."""
        turn = self._turn
        if not turn.exchanges:
            self._commit_log.after_write(turn.written)
        turn.exchanges.append(exchange)
        block = exchange.block
        if not turn.blocks or turn.blocks[-1] is not block:
            block.pin()
            turn.blocks.append(block)
        exchange.peer.applying(exchange.size_bytes)
        if exchange.acks == -1:
            if not turn.waiting:
                self._commit_log.after_commit(turn.committed)
            turn.waiting.append(exchange)

    def _remember(
        self, peer: Peer, version: int, acks: int, buf: memoryview, pos: int, item: ProduceItem
    ) -> None:
        """The second such request in a row makes a shape; the first only says what it was."""
        target = (version, acks, item[0], item[1])
        if peer.memo != target:
            peer.memo = target
            return
        partition = self._find(item)
        if partition.topic not in INTERNAL_TOPICS:
            peer.memo = cut_shape(version, buf, pos, item, acks, partition)

    def close(self) -> None:
        """Nothing waits here: the log answers what it has been given."""

    def _find(self, item: ProduceItem) -> Partition:
        topic, index, _, _ = item
        if isinstance(topic, str):
            return self._table.named(topic, index)
        return self._table.identified(topic, index)

    def _append(
        self, exchange: ProduceExchange, buf: memoryview, item: ProduceItem, now_ms: int
    ) -> ProduceResult:
        """Queue one batch on its partition; what the client is told if the write succeeds."""
        topic, index, start, stop = item
        partition = self._find(item)
        _check(partition, exchange, buf, item)
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
    partition: Partition, exchange: ProduceExchange, buf: memoryview, item: ProduceItem
) -> None:
    """The checks that need the request, not only the batch (KafkaApis.handleProduceRequest)."""
    _, _, start, stop = item
    if start < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch is null")
    if exchange.acks == -1 and partition.config.min_insync_replicas > 1:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    if (
        exchange.version < ZSTD_FROM
        and stop - start > _ATTRIBUTES_LOW_BYTE
        and buf[start + _ATTRIBUTES_LOW_BYTE] & _CODEC_MASK == _ZSTD
    ):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if partition.topic in INTERNAL_TOPICS and exchange.peer.client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)


def _why(failure: BaseException) -> tuple[int, str | None, tuple[tuple[int, str], ...]]:
    """(code, message, record errors) of a failure."""
    if isinstance(failure, KafkaError):
        return int(failure.code), failure.message, tuple(failure.record_errors)
    return int(code_of(failure)), None, ()


def _refused(
    failure: BaseException,
) -> tuple[int, int, int, int, str | None, tuple[tuple[int, str], ...]]:
    code, message, records = _why(failure)
    return code, -1, -1, -1, message, records


def _failed(result: ProduceResult, failure: BaseException) -> ProduceResult:
    return result if result[2] else (result[0], result[1], *_refused(failure))
