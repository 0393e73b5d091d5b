"""Produces that wait for the verification of their transaction.

Until the batches are appended, the connection starts no other request, so that batches of one
producer stay in the order of their sequence numbers; in Kafka every Produce holds its connection so
until it is answered. So one request of each connection waits at most, its bytes pinned in the
receive memory, which is bounded; it waits for one write to `__transaction_state`, and for
add.partitions.to.txn.retry.backoff.max.ms while the transaction before is being completed.

Called by kafkawire.handlers.produce.handler.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kafkawire.codec.errors import KafkaError

if TYPE_CHECKING:
    from kafkawire.codec.produce import ProduceItem
    from kafkawire.handlers.exchange import Pinned
    from kafkawire.handlers.produce.pending import ProduceExchange
    from kafkawire.handlers.produce.ports import ProduceHandler
    from kafkawire.handlers.produce.transactional import TransactionalBatches


class VerifiedProduce:
    """One request with a few partitions, decoded. Call `begin` once."""

    def __init__(
        self,
        produce: ProduceHandler,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        items: list[ProduceItem],
        batches: TransactionalBatches,
    ) -> None:
        self._produce = produce
        self._exchange = exchange
        self._block = block
        self._buf = buf
        self._items = items
        self._batches = batches

    def begin(self) -> None:
        """Verify, then append, in a task of its own."""
        exchange = self._exchange
        peer = exchange.peer
        self._block.pin()
        if exchange.acks:
            peer.exchanges.append(exchange)  # its position in the order of responses
        peer.begin(exchange)
        who = f"verify a transaction of client {peer.client_id} at {peer.client_host}"
        self._produce.env.spawn(peer.timed(self._serve()), who)

    async def _serve(self) -> None:
        exchange, block = self._exchange, self._block
        try:
            refusal = await self._batches.verify(self._produce.verifier)
            refusal = await self._ready() or refusal
            if exchange.peer.closed:
                return
            if exchange.acks:
                last = exchange.peer.exchanges.pop()
                assert last is exchange, "no request was started meanwhile"
            self._produce.append_verified(
                exchange, block, self._buf, self._items, self._batches, refusal
            )
        finally:
            block.unpin()
            exchange.peer.served(exchange)

    async def _ready(self) -> KafkaError | None:
        """Wait until the log has room and the partitions are in memory, as before any append.
        Return the error if the log refuses all batches."""
        log, table = self._produce.log, self._produce.table
        while log.full and log.refusal is None:
            room = asyncio.Event()
            log.when_room(room.set)
            await room.wait()
        if log.full:
            return log.refusal
        await table.load((item[0], item[1]) for item in self._items)
        return None
