"""Produces that take longer than one event-loop iteration: with many partitions, with long batches,
or whose transaction must be verified first.

A task continues where `handlers.produce` could not: it takes the steps that are left in slices, and
appends the batches in portions, each in the write batch that is open then. The next request of the
connection starts when all are queued, so that batches of one producer stay in the order of their
sequence numbers; in Kafka every Produce holds its connection so until it is answered. The response
is encoded when all portions have been written (acks=1) or committed (acks=all).

One request of each connection waits for a verification at most, its bytes pinned in the receive
memory, which is bounded; it waits for one write to `__transaction_state`, and for
add.partitions.to.txn.retry.backoff.max.ms while the transaction before is being completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from kafkawire.codec.compile import DecodeError
from kafkawire.codec.flat import Topic
from kafkawire.codec.validate import LongBatch
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.produce.pending import Portion, Waiting
from kafkawire.log.io.slices import empty_slowly
from kafkawire.messages.flat_produce import (
    FLEXIBLE_FROM,
    ProduceAsk,
    ProduceItem,
    ProduceResult,
    encode_response,
)

if TYPE_CHECKING:
    from kafkawire.codec.errors import KafkaError
    from kafkawire.handlers.produce.ports import ProduceHandler
    from kafkawire.handlers.produce.transactional import TransactionalBatches
    from kafkawire.log.partition.verification import Guard

MAX_AT_ONCE = 32
"""Batches of a portion: half a millisecond, and as much when their write batch is written."""


class LongProduce:
    """One request, whose acks are known. Call `serve_request` or `continue_after` once."""

    def __init__(
        self,
        produce: ProduceHandler,
        peer: Peer,
        version: int,
        correlation_id: int,
        ask: ProduceAsk,
        buf: memoryview,
        block: Pinned,
    ) -> None:
        self._produce = produce
        self._exchange = Exchange(peer, version, correlation_id, version >= FLEXIBLE_FROM)
        if ask.acks:
            peer.exchanges.append(self._exchange)  # its position in the order of responses
        self._ask = ask
        self._buf = buf
        self._block = block
        self._portions: list[Portion] = []
        self._counted = False  # as a request
        self._unreported = 0
        self._all_reported: asyncio.Future[None] | None = None
        self._batches: TransactionalBatches | None = None

    def serve_request(
        self,
        decoding: Generator[None, None, None] | None,
        batches: TransactionalBatches | None = None,
    ) -> None:
        """Serve the request. `decoding`: the steps that are left; None: it is decoded, and
        `batches` must be verified."""
        self._batches = batches
        name = "Produce of many partitions" if decoding else "verify a transaction"
        self._spawn(name, 0, decoding, checked=False)

    def continue_after(
        self,
        begun: Waiting,
        results: list[ProduceResult],
        size_bytes: int,
        batches: TransactionalBatches | None,
    ) -> None:
        """Serve the rest of a request. `begun` queued its first batches, of `size_bytes`, with
        these results. `batches`: those that were verified."""
        self._batches = batches
        portion = self._portion()
        portion.add_queued_before(begun, results, size_bytes)
        self._send(portion)
        self._spawn("Produce of a long batch", len(results), None, checked=True)

    def _spawn(
        self, name: str, first: int, decoding: Generator[None, None, None] | None, *, checked: bool
    ) -> None:
        peer = self._exchange.peer
        self._block.pin()
        peer.note_started(self._exchange)
        who = f"{name} of client {peer.client_id} at {peer.client_host}"
        self._produce.env.spawn(peer.meter_work(self._serve(first, decoding, checked)), who)

    async def _serve(
        self, first: int, decoding: Generator[None, None, None] | None, checked: bool
    ) -> None:
        peer, give_way = self._exchange.peer, self._produce.env.slices.give_way
        try:
            if decoding is not None:
                await self._produce.env.slices.run(decoding)
            await self._append_all(first, None if checked else await self._check())
        except DecodeError as wrong:
            peer.abort(str(wrong))
        finally:
            self._block.unpin()
            peer.note_served(self._exchange)
        await empty_slowly(self._ask.items, give_way)
        if self._batches is not None:
            await self._batches.release(give_way)
        if self._unreported and self._ask.acks:
            self._all_reported = asyncio.get_running_loop().create_future()
            await self._all_reported
        if self._ask.acks and not peer.closed:
            await self._answer()

    async def _check(self) -> KafkaError | None:
        """Load the partitions and verify the transaction. Return the error of the whole
        request."""
        produce, ask = self._produce, self._ask
        if self._batches is None:
            await produce.table.load(self._keys())
            refusal = produce.refusal(ask.acks)
            if refusal is not None:
                return refusal
            collecting = produce.collect_transactional(self._exchange, ask, self._buf)
            self._batches = await produce.env.slices.run(collecting)
        if self._batches is None:
            return None
        refusal = await self._batches.verify(produce.verifier)
        await produce.table.load(self._keys())  # if they were unloaded meanwhile
        return refusal

    def _keys(self) -> Iterator[tuple[Topic, int]]:
        for item in self._ask.items:
            yield item[0], item[1]

    def _guard(self, item: ProduceItem) -> Guard | None:
        """Return the guard that the append of a batch needs. Raises the error of its check."""
        return None if self._batches is None else self._batches.guard(item[0], item[1])

    async def _append_all(self, first: int, refusal: KafkaError | None) -> None:
        """Append the batches from the `first` on, in portions."""
        produce, items = self._produce, self._ask.items
        log, slices = produce.log, produce.env.slices
        portion = self._portion()
        for at in range(first, len(items)):
            item = items[at]
            if self._exchange.peer.closed:
                break
            if len(portion.results) >= MAX_AT_ONCE or (at > first and slices.over()):
                self._send(portion)
                await slices.pause()
                portion = self._portion()
            if log.full and log.refusal is None:
                self._send(portion)
                await self._room()
                portion = self._portion()
            try:
                why = refusal or log.refusal
                if why is not None:
                    raise why
                now_ms = produce.pending().now_ms
                done = produce.append(portion, self._buf, item, now_ms, self._guard(item))
                portion.add_queued(done, item[3] - item[2])
            except LongBatch:
                self._send(portion)
                portion = self._portion()
                await self._append_long(portion, item)
            except Exception as failure:
                portion.results.append(produce.failure_result(item, failure))
        self._send(portion)

    async def _append_long(self, portion: Portion, item: ProduceItem) -> None:
        """Verify the records of a long batch, then append it."""
        produce = self._produce
        topic, index, start, stop = item
        batch = self._buf[start:stop]
        try:
            partition = produce.table.find(topic, index)
            seen = await produce.long_batches.inspect(partition, batch, produce.now_ms())
            if partition.config.schedules:
                await produce.check_schedules(self._exchange.peer, partition, batch)
            if produce.log.refusal is not None:
                raise produce.log.refusal
            now_ms = produce.pending().now_ms
            done = produce.append(portion, self._buf, item, now_ms, self._guard(item), seen)
            portion.add_queued(done, stop - start)
        except Exception as failure:
            portion.results.append(produce.failure_result(item, failure))

    async def _room(self) -> None:
        """Wait until the log accepts more."""
        room = asyncio.Event()
        self._produce.log.when_room(room.set)
        await room.wait()

    def _portion(self) -> Portion:
        return Portion(self._exchange, self._ask.acks, self._note_reported, first=not self._counted)

    def _send(self, portion: Portion) -> None:
        """Register a portion with its write batch."""
        if not portion.results:
            return
        self._portions.append(portion)
        failed = sum(1 for result in portion.results if result[2])
        if failed < len(portion.results):
            self._counted = True
            self._unreported += 1
            self._produce.pending().add(portion, self._block)
        if failed and not self._ask.acks:
            self._exchange.peer.abort("a produce with acks=0 was refused")

    def _note_reported(self) -> None:
        self._unreported -= 1
        waiting = self._all_reported
        if not self._unreported and waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def _answer(self) -> None:
        exchange, slices = self._exchange, self._produce.env.slices
        results: list[ProduceResult] = []
        for portion in self._portions:
            results += portion.results
            await slices.give_way()
        await empty_slowly(self._portions, slices.give_way)
        if not self._counted:
            self._produce.counts.produces += 1
        body = bytearray()
        await slices.run(self._encode(results, body))
        await empty_slowly(results, slices.give_way)
        exchange.answer_parts([body])

    def _encode(self, results: list[ProduceResult], body: bytearray) -> Generator[None, None, None]:
        exchange = self._exchange
        leaders = self._produce.hints.of_long_produce(exchange.peer, exchange.version)
        for result in results:
            if result[2]:
                leaders.add(result[0], result[1], result[2])
            yield
        yield from encode_response(
            body, results, exchange.version, exchange.throttle_ms, leaders.tags()
        )
