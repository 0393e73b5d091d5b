"""Produce v3-13, from the receive buffer to the log and back.

v5 returns the log start offset; v7 allows zstd; v8 lists rejected records (KIP-467); v9 is
flexible; v10 has leader hints (KIP-951); v13 names topics by id (KIP-516).

acks=0 is never answered (an error ends the connection, as in Kafka), acks=1 after the write,
acks=all after the commit that covers it. The batches stay in the receive buffer, which is pinned
until their write batch has been written.

Differs from Kafka: a record with more than 1,048,576 headers is INVALID_RECORD.

v12 adds the partitions of transactional batches to the transaction (KIP-890); before, the client
has added them, and they are verified.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkawire.broker.new_topics import INTERNAL_TOPICS
from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.batches import CODEC_MASK
from kafkawire.codec.compression import ALL_CODECS_FROM, produce_version
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.produce import (
    ManyItems,
    ProduceItem,
    ProduceResult,
    Topic,
    has_transactional,
    is_transactional,
    read_request,
)
from kafkawire.codec.validate import LongBatch
from kafkawire.handlers.exchange import Peer, Pinned
from kafkawire.handlers.hot_rights import TopicRights
from kafkawire.handlers.leader_hints import LeaderHints
from kafkawire.handlers.produce.long import LongProduce, exchange_of
from kafkawire.handlers.produce.pending import (
    Item,
    PendingProduces,
    ProduceExchange,
    Waiting,
    refused,
)
from kafkawire.handlers.produce.repeat import Repeat
from kafkawire.handlers.produce.shape import Shapes
from kafkawire.log.append.long_batch import LongBatches
from kafkawire.log.partition.verification import NOT_ALLOWED, ONLY_OPEN
from kafkawire.security.acls.model import Operation

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.broker.verification import TransactionVerifier
    from kafkawire.handlers.produce.transactional import TransactionalBatches
    from kafkawire.log.partition.partition import Inspected, Partition
    from kafkawire.log.partition.verification import Guard

logger = logging.getLogger(__name__)

ADMIN_CLIENT_ID = "__admin_client"
"""The only client id that Kafka allows to write to internal topics (AdminUtils)."""

_ATTRIBUTES_LOW_BYTE = 22
_DECOMPRESSING_S = 0.0005
"""So long the compressed batches of a request are checked one after the other; the rest in slices.
One takes up to 4 ms."""


class Produce:
    """The handler: one for the broker's life."""

    def __init__(self, broker: Broker) -> None:
        self.env = broker.env
        self.table = broker.table
        self.log = broker.log.commit_log
        self.now_ms = broker.env.clock.now_ms
        self._monotonic = broker.env.clock.monotonic
        self.counts = broker.counts
        self.long_batches = LongBatches(broker.env)
        self._broker = broker
        self._shapes = Shapes()
        self.rights = TopicRights(broker, "Produce", Operation.WRITE)
        self.hints = LeaderHints(broker)
        self._open: dict[PendingProduces, None] = {}  # in order of arrival
        self._pending = PendingProduces(self.log, self.counts, self.now_ms(), self._open)
        broker.log.loader.register(self)

    def enter(self, partition: Partition) -> None:
        """Do nothing: it is found when it is used."""

    def leave(self, partition: Partition) -> None:
        """Answer unanswered batches of a resigned partition with an error."""
        if partition.resigned:
            for pending in list(self._open):
                pending.resign(partition, self.hints)

    def start(  # noqa: C901 (hot: no calls)
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Append the batches. False: the log has no room yet; `peer.resume` is called later."""
        log = self.log
        refusal = None
        if log.full:
            if log.refusal is None:
                log.when_room(peer.resume)
                return False
            refusal = log.refusal
        try:
            transactional_id, acks, items = read_request(buf, pos, end, version)
        except ManyItems:
            whole = exchange_of(peer, version, correlation_id, acks=1)
            LongProduce(self, whole, 0, block).begin_decoding(buf[pos:end])
            return True
        exchange = ProduceExchange(peer, version, correlation_id, acks, end - pos)
        transactional = has_transactional(buf, items)
        if (len(items) > 1 or transactional) and (
            absent := self.table.not_loaded((i[0], i[1]) for i in items)
        ):  # all are checked before the first is appended
            self.table.load_then(absent, peer.resume)
            return False
        refusal = refusal or self.refusal(acks)
        if transactional and peer.rights is not None:
            refusal = refusal or self.transaction_refusal(peer, transactional_id)
        batches = None
        if transactional and refusal is None:
            allowed = [item for item in items if self.rights.may(peer, item[0])]
            batches = self._transactional(transactional_id, version, buf, allowed)
            refusal = batches.refusal
            question = batches.question
            if question is None:
                batches = None  # all of open transactions
            elif not batches.verify_at_once(self.verifier, question):
                self._verify(exchange, block, buf, items, batches)
                return True
        try:
            self._append_all(exchange, block, buf, items, refusal, batches)
        except NotLoaded as missing:  # the only item; nothing was appended
            self.table.load_then(missing.numbers, peer.resume)
            return False
        if len(items) == 1 and not batches and exchange.results and not exchange.results[0][2]:
            guard = NOT_ALLOWED if transactional_id is None else ONLY_OPEN
            self._remember(peer, version, acks, buf, end, items[0], guard)
        return True

    def _transactional(
        self, transactional_id: str | None, version: int, buf: memoryview, items: list[ProduceItem]
    ) -> TransactionalBatches:
        """Return the transactional batches of a request. Imports what only they need."""
        from kafkawire.handlers.produce.transactional import TransactionalBatches

        batches = TransactionalBatches(transactional_id, version, self.table)
        for topic, index, start, stop in items:
            if is_transactional(buf, start, stop):
                batches.add(topic, index, buf, start)
        return batches

    def _verify(
        self,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        items: list[ProduceItem],
        batches: TransactionalBatches,
    ) -> None:
        """Append the batches when their transaction is verified."""
        from kafkawire.handlers.produce.verified import VerifiedProduce

        VerifiedProduce(self, exchange, block, buf, items, batches).begin()

    @property
    def verifier(self) -> TransactionVerifier:
        """Verifies the transactions of batches; created when it is first used."""
        return self._broker.verifier

    def append_verified(
        self,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        items: list[ProduceItem],
        batches: TransactionalBatches,
        refusal: KafkaError | None,
    ) -> None:
        """Append the batches of a request whose transaction was verified."""
        try:
            self._append_all(exchange, block, buf, items, refusal, batches)
        except NotLoaded:  # unloaded since: clients retry
            busy = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._append_all(exchange, block, buf, items, busy)

    def pending(self) -> PendingProduces:
        """Return the write batch of batches that are appended now."""
        pending = self._pending
        # Without exchanges its time would be old.
        if pending.number != self.log.batch_number or not pending.exchanges:
            pending = self._pending = PendingProduces(
                self.log, self.counts, self.now_ms(), self._open
            )
        return pending

    def _append_all(  # noqa: C901 (hot: no calls)
        self,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        items: list[ProduceItem],
        refusal: KafkaError | None,
        batches: TransactionalBatches | None = None,
    ) -> None:
        """`batches`: those that were verified."""
        pending = self.pending()
        results = exchange.results
        rights = exchange.peer.rights
        appended, until_s = 0, 0.0
        several = len(items) > 1
        for item in items:
            try:
                if refusal is not None:
                    raise refusal
                topic, index, start, stop = item
                if several and _codec_of(buf, start, stop):
                    now_s = self._monotonic()
                    until_s = until_s or now_s + _DECOMPRESSING_S
                    if now_s > until_s:
                        raise LongBatch
                if rights is not None and topic not in rights.writes:
                    self._authorize(exchange.peer, topic)
                partition = self.table.find(topic, index)
                _check(partition, exchange, buf, item)
                guard = None if batches is None else batches.guard(topic, index)
                done = partition.queue(buf[start:stop], pending.now_ms, None, guard)
                exchange.note(partition)
                results.append((topic, index, 0, *done, None, ()))
                appended += 1
            except LongBatch:
                self._continue(exchange, block, buf, items, batches)
                return
            except NotLoaded:  # of the only item
                raise
            except Exception as failure:  # earlier items are queued and must be answered
                results.append(self._refused(item, failure))
                exchange.hints = self.hints
        if exchange.acks:
            exchange.peer.exchanges.append(exchange)
        if appended:
            pending.add(exchange, block)
        else:
            self.counts.produces += 1
            if exchange.acks:
                exchange.respond(None)
                exchange.peer.answered(exchange)
        if not exchange.acks and appended < len(results):
            exchange.peer.abort("a produce with acks=0 was refused")

    def _refused(self, item: ProduceItem, failure: Exception) -> ProduceResult:
        if not isinstance(failure, KafkaError | OSError):
            where = item[0], item[1]
            logger.error(
                "appending a batch to %s-%d failed, answered with an error",
                *where,
                exc_info=failure,
            )
        why = refused(failure)
        self.counts.failed("Produce", why[0])
        return item[0], item[1], *why

    def _continue(
        self,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        items: list[ProduceItem],
        batches: TransactionalBatches | None,
    ) -> None:
        """Serve the rest of a request in slices, from its first long batch on."""
        done = exchange.results
        acks = exchange.acks
        whole = exchange_of(exchange.peer, exchange.version, exchange.correlation_id, acks)
        long = LongProduce(self, whole, acks, block)
        long.add(exchange, done, sum(stop - start for _, _, start, stop in items[: len(done)]))
        rest = items[len(done) :]
        exchange.results = []
        long.begin([item_of(buf, item) for item in rest], batches)

    def _remember(
        self,
        peer: Peer,
        version: int,
        acks: int,
        buf: memoryview,
        end: int,
        item: ProduceItem,
        guard: Guard,
    ) -> None:
        """Cache the shape of the second such request in a row; the first only sets the candidate.
        `guard`: the one of its batches."""
        candidate = (version, acks, item[0])
        if peer.repeat_candidate != candidate:
            peer.repeat_candidate = candidate
            return
        partition = self.table.find(item[0], item[1])
        shape = None
        if partition.topic not in INTERNAL_TOPICS:
            shape = self._shapes.cut(version, buf, peer.frame_at, end, item, acks)
        if shape is not None:
            peer.repeat = Repeat(self, peer, shape, item[1], partition, guard)

    def close(self) -> None:
        """Do nothing: the log answers queued batches."""

    def append(
        self,
        exchange: Waiting,
        item: Item,
        guard: Guard | None,
        inspected: Inspected | None = None,
    ) -> ProduceResult:
        """Queue one batch of a long Produce; return the result for a successful write."""
        topic, index, batch = item
        if self.log.refusal is not None:
            raise self.log.refusal
        self._authorize(exchange.peer, topic)
        partition = self.table.find(topic, index)
        if batch is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, "the batch is null")
        _check(partition, exchange, batch, (topic, index, 0, len(batch)))
        done = partition.queue(batch, self.pending().now_ms, inspected, guard)
        exchange.note(partition)
        return topic, index, 0, *done, None, ()

    async def check_schedules(self, peer: Peer, partition: Partition, batch: memoryview) -> None:
        """Check the due times and targets of the records for a schedule topic. Raises KafkaError:
        INVALID_RECORD with the reasons, TOPIC_AUTHORIZATION_FAILED for a target."""
        await self._broker.schedules.check(
            partition, batch, lambda target: self.rights.may(peer, target)
        )

    def _authorize(self, peer: Peer, topic: Topic) -> None:
        """Raise KafkaError if the client may not write to a topic, whether that exists or not."""
        if not self.rights.may(peer, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def transaction_refusal(self, peer: Peer, transactional_id: str | None) -> KafkaError | None:
        """Return the error of all batches if the client may not use the transactional id."""
        if self.rights.may_transact(peer, transactional_id):
            return None
        return KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    @staticmethod
    def refusal(acks: int) -> KafkaError | None:
        """Return the response that rejects a whole request, with an error per partition."""
        return None if -1 <= acks <= 1 else KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)


def item_of(buf: memoryview, item: ProduceItem) -> Item:
    """Return one partition of a decoded request."""
    topic, index, start, stop = item
    return Item(topic, index, None if start < 0 else buf[start:stop])


def _codec_of(buf: memoryview, start: int, stop: int) -> int:
    """Return the codec of a batch, 0 if there is no head."""
    if start < 0 or stop - start <= _ATTRIBUTES_LOW_BYTE:
        return 0
    return buf[start + _ATTRIBUTES_LOW_BYTE] & CODEC_MASK


def _check(partition: Partition, exchange: Waiting, buf: memoryview, item: ProduceItem) -> None:
    """Check what depends on the request, not only on the batch (KafkaApis.handleProduceRequest)."""
    _, _, start, stop = item
    if start < 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch is null")
    if exchange.acks == -1 and partition.too_few_replicas:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    if (  # first what needs no codec: hot
        exchange.version < ALL_CODECS_FROM
        and exchange.version < produce_version(_codec_of(buf, start, stop))
    ):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    if partition.topic in INTERNAL_TOPICS and exchange.peer.client_id != ADMIN_CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
