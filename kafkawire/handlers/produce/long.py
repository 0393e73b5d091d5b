"""Produces that would block the event loop too long: with many partitions or long batches.

The request is decoded in slices, by the declaration of its message; its batches are appended in
portions, each in the write batch that is open then. The next request of the connection starts when
all are queued, which keeps the order; the response is encoded when all portions have been written
(acks=1) or committed (acks=all).

Called by handlers.produce, which serves all other Produces.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.compile import DecodeError
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.produce import (
    FLEXIBLE_FROM,
    TOPIC_IDS_FROM,
    ProduceResult,
    Topic,
    is_transactional,
)
from kafkawire.codec.validate import LongBatch
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.produce.pending import Item, Portion, Waiting, refused
from kafkawire.handlers.slices import decoded, encoded, released
from kafkawire.log.io.slices import emptied
from kafkawire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kafkawire.handlers.leader_hints import HintedLeaders
    from kafkawire.handlers.produce.ports import ProduceHandler
    from kafkawire.handlers.produce.transactional import TransactionalBatches
    from kafkawire.log.partition.verification import Guard

logger = logging.getLogger(__name__)

MAX_AT_ONCE = 32
"""Batches of a portion: half a millisecond, and as much when their write batch is written."""


class LongProduce:
    """One request. Call `begin_decoding` or `begin` once."""

    def __init__(
        self, produce: ProduceHandler, exchange: Exchange, acks: int, block: Pinned
    ) -> None:
        self._produce = produce
        self._exchange = exchange
        self._acks = acks
        self._block = block
        self._portions: list[Portion] = []
        self._untold = 0
        self._all_reported: asyncio.Future[None] | None = None
        self._batches: TransactionalBatches | None = None

    def begin_decoding(self, body: memoryview) -> None:
        """Serve a request that is not decoded yet: its exchange is the peer's last."""
        self._spawn(self._decode(body), "Produce of many partitions")

    def begin(self, items: list[Item], batches: TransactionalBatches | None) -> None:
        """Serve the rest of a request; `batches`: those that were verified."""
        self._batches = batches
        self._spawn(self._go_on(iter(items), None), "Produce of a long batch")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        peer = self._exchange.peer
        self._block.pin()
        peer.begin(self._exchange)
        who = f"{name} of client {peer.client_id} at {peer.client_host}"
        self._produce.env.spawn(peer.timed(self._serve(work)), who)

    async def _serve(self, work: Coroutine[Any, Any, None]) -> None:
        peer = self._exchange.peer
        try:
            await work
        except DecodeError as wrong:
            peer.abort(str(wrong))
        finally:
            self._block.unpin()
            peer.served(self._exchange)
        if peer.closed:
            return
        if not self._acks:
            self._drop()
            return
        if self._untold:
            self._all_reported = asyncio.get_running_loop().create_future()
            await self._all_reported
        if not peer.closed:
            await self._answer()

    async def _decode(self, body: memoryview) -> None:
        env, version = self._produce.env, self._exchange.version
        asked = await decoded(env.slices, ProduceRequest, version, body)
        await self._append_all(asked[0], version >= TOPIC_IDS_FROM)
        await env.slices.run(released(asked))

    async def _append_all(self, request: ProduceRequest, by_id: bool) -> None:
        self._acks = request.acks
        give_way = self._produce.env.slices.give_way
        topics = await _filled(request, give_way)
        refusal = self._produce.refusal(request.acks)
        await self._produce.table.load(
            (item.topic, item.partition) for item in _items(topics, by_id)
        )
        if refusal is None:
            refusal = await self._verify(request, _items(topics, by_id))
        await self._go_on(_items(topics, by_id), refusal)
        await emptied(topics, give_way)
        if self._batches is not None:
            await self._batches.release(give_way)

    async def _verify(self, request: ProduceRequest, items: Iterator[Item]) -> KafkaError | None:
        """Verify the transaction of the batches. Return the error of the whole request."""
        give_way, peer = self._produce.env.slices.give_way, self._exchange.peer
        batches = None
        for topic, index, batch in items:
            if batch is not None and is_transactional(batch, 0, len(batch)):
                if batches is None:
                    refusal = self._produce.transaction_refusal(peer, request.transactional_id)
                    if refusal is not None:
                        return refusal
                    batches = self._transactional(request)
                if self._produce.rights.may(peer, topic):
                    batches.add(topic, index, batch, 0)
            await give_way()
        if batches is None:
            return None
        self._batches = batches
        return await batches.verify(self._produce.verifier)

    def _transactional(self, request: ProduceRequest) -> TransactionalBatches:
        from kafkawire.handlers.produce.transactional import TransactionalBatches

        version = self._exchange.version
        return TransactionalBatches(request.transactional_id, version, self._produce.table)

    def _guard(self, item: Item) -> Guard | None:
        """Return the guard that the append of a batch needs. Raises the error of its check."""
        batches = self._batches
        return None if batches is None else batches.guard(item.topic, item.partition)

    async def _go_on(self, items: Iterator[Item], refusal: KafkaError | None) -> None:
        """Append all batches, in portions."""
        peer, slices = self._exchange.peer, self._produce.env.slices
        portion = self._portion()
        for item in items:
            if peer.closed:
                return
            if len(portion.results) >= MAX_AT_ONCE or slices.over():
                self._send(portion)
                await slices.pause()
                portion = self._portion()
            if self._produce.log.full and self._produce.log.refusal is None:
                self._send(portion)
                await self._room()
                portion = self._portion()
            try:
                self._append(portion, item, refusal)
            except LongBatch:
                self._send(portion)
                portion = self._portion()
                await self._append_long(portion, item)
        self._send(portion)

    def _append(self, portion: Portion, item: Item, refusal: KafkaError | None) -> None:
        try:
            if refusal is not None:
                raise refusal
            portion.queued(item, self._produce.append(portion, item, self._guard(item)))
        except NotLoaded:
            busy = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # unloaded meanwhile: clients retry
            portion.results.append((item.topic, item.partition, *refused(busy)))
        except LongBatch:
            raise
        except Exception as failure:
            self._refuse(portion, item, failure)

    @staticmethod
    def _refuse(portion: Portion, item: Item, failure: Exception) -> None:
        """Reject a batch with its error; a defect is logged and affects no other batch."""
        if not isinstance(failure, KafkaError | OSError | NotLoaded):
            where = item.topic, item.partition
            logger.error(
                "appending a batch to %s-%d failed, answered with an error",
                *where,
                exc_info=failure,
            )
        portion.results.append((item.topic, item.partition, *refused(failure)))

    async def _append_long(self, portion: Portion, item: Item) -> None:
        """Verify the records of a long batch, then append it."""
        produce = self._produce
        assert item.batch is not None
        try:
            partition = produce.table.find(item.topic, item.partition)
            seen = await produce.long_batches.inspect(partition, item.batch, produce.now_ms())
            if partition.config.schedules:
                await produce.check_schedules(self._exchange.peer, partition, item.batch)
            portion.queued(item, produce.append(portion, item, self._guard(item), seen))
        except Exception as failure:
            self._refuse(portion, item, failure)

    async def _room(self) -> None:
        """Wait until the log accepts more."""
        room = asyncio.Event()
        self._produce.log.when_room(room.set)
        await room.wait()

    def _portion(self) -> Portion:
        return Portion(self._exchange, self._acks, self._reported, first=not self._portions)

    def add(self, begun: Waiting, results: list[ProduceResult], size_bytes: int) -> None:
        """Add a portion whose batches are queued, those of `begun`."""
        portion = self._portion()
        portion.queued_before(begun, results, size_bytes)
        self._send(portion)

    def _send(self, portion: Portion) -> None:
        """Register a portion with its write batch."""
        if not portion.results:
            return
        self._portions.append(portion)
        failures = [result[2] for result in portion.results if result[2]]
        for code in failures:
            self._produce.counts.failed("Produce", code)
        if len(failures) < len(portion.results):
            if self._acks:
                self._untold += 1
            self._produce.pending().add(portion, self._block)
        if failures and not self._acks:
            self._exchange.peer.abort("a produce with acks=0 was refused")

    def _reported(self) -> None:
        self._untold -= 1
        if not self._untold and self._all_reported is not None and not self._all_reported.done():
            self._all_reported.set_result(None)

    def _drop(self) -> None:
        """End a request without a response."""
        exchange = self._exchange
        if exchange in exchange.peer.exchanges:
            exchange.parts = []
            exchange.peer.answered(exchange)

    async def _answer(self) -> None:
        exchange, slices = self._exchange, self._produce.env.slices
        response = ProduceResponse(throttle_time_ms=exchange.throttle_ms)
        leaders = self._produce.hints.of_long_produce(exchange.peer, exchange.version)
        for portion in self._portions:
            for result in portion.results:
                _add(response, result, leaders)
                await slices.give_way()
        response.node_endpoints = leaders.endpoints()
        await emptied(self._portions, slices.give_way)
        answer = [response]
        del response
        exchange.answer_parts(await encoded(slices, answer, exchange.version))


async def _filled(
    request: ProduceRequest, give_way: Callable[[], Awaitable[None]]
) -> list[TopicProduceData]:
    """Return the topics that have partitions. A request may have millions that have none, between
    which nothing gives way."""
    found: list[TopicProduceData] = []
    for topic in request.topic_data:
        if topic.partition_data:
            found.append(topic)
        await give_way()
    return found


def _items(topics: list[TopicProduceData], by_id: bool) -> Iterator[Item]:
    for topic in topics:
        name: Topic = topic.topic_id if by_id else topic.name
        for partition in topic.partition_data:
            records = partition.records
            batch = memoryview(records) if isinstance(records, memoryview) else None
            yield Item(name, partition.index, batch)


def _add(response: ProduceResponse, result: ProduceResult, leaders: HintedLeaders) -> None:
    """Add one result; those of a topic are adjacent, in request order."""
    topic, index, code, base, time_ms, start, message, record_errors = result
    name, topic_id = (topic, bytes(16)) if isinstance(topic, str) else ("", topic)
    topics = response.responses
    if not topics or (topics[-1].name, topics[-1].topic_id) != (name, topic_id):
        topics.append(TopicProduceResponse(name=name, topic_id=topic_id))
    topics[-1].partition_responses.append(
        PartitionProduceResponse(
            index=index,
            error_code=code,
            base_offset=base,
            log_append_time_ms=time_ms,
            log_start_offset=start,
            record_errors=[
                BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=text)
                for number, text in record_errors
            ],
            error_message=message,
            current_leader=leaders.current_leader(topic, index, code) if code else None,
        )
    )


def exchange_of(peer: Peer, version: int, correlation_id: int, acks: int) -> Exchange:
    """Return the exchange of a long Produce, the last in its peer's order if it has a response."""
    exchange = Exchange(peer, version, correlation_id, version >= FLEXIBLE_FROM)
    if acks:
        peer.exchanges.append(exchange)
    return exchange
