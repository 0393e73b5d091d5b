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
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

from kafkawire.broker.new_topics import INTERNAL_TOPICS
from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.batches import CODEC_MASK
from kafkawire.codec.compression import ALL_CODECS_FROM, produce_version
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.validate import LongBatch
from kafkawire.handlers.exchange import Exchange, Peer, Pinned
from kafkawire.handlers.hot_rights import TopicRights
from kafkawire.handlers.leader_hints import LeaderHints
from kafkawire.handlers.produce.long import LongProduce
from kafkawire.handlers.produce.pending import (
    PendingProduces,
    ProduceExchange,
    Waiting,
    build_failure_fields,
)
from kafkawire.handlers.produce.repeat import Repeat
from kafkawire.handlers.produce.shape import Shapes
from kafkawire.log.append.long_batch import LongBatches
from kafkawire.log.io.slices import run_at_once
from kafkawire.log.partition.verification import NOT_ALLOWED, ONLY_OPEN
from kafkawire.messages.flat_produce import (
    ProduceAsk,
    ProduceItem,
    ProduceResult,
    has_transactional,
    is_transactional,
    read_request,
)
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

_DECODED: Final = object()
"""In place of the next step of a request that is decoded."""


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

    def partition_loaded(self, partition: Partition) -> None:
        """Do nothing: it is found when it is used."""

    def leave(self, partition: Partition) -> None:
        """Answer unanswered batches of a resigned partition with an error."""
        if partition.resigned:
            for pending in list(self._open):
                pending.answer_resigned(partition, self.hints)

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
        """Append the batches. False: the log has no room yet; `peer.resume` is called later."""
        log = self.log
        refusal = None
        if log.full:
            if log.refusal is None:
                log.when_room(peer.resume)
                return False
            refusal = log.refusal
        ask = ProduceAsk()
        decoding = read_request(ask, buf, pos, end, version)
        if next(decoding, _DECODED) is not _DECODED:
            LongProduce(self, peer, version, correlation_id, ask, buf, block).serve_request(
                decoding
            )
            return True
        acks, items = ask.acks, ask.items
        transactional = has_transactional(buf, items)
        if (len(items) > 1 or transactional) and (
            absent := self.table.not_loaded((i[0], i[1]) for i in items)
        ):  # all are checked before the first is appended
            self.table.load_then(absent, peer.resume)
            return False
        refusal = refusal or self.refusal(acks)
        exchange = ProduceExchange(peer, version, correlation_id, acks, end - pos)
        batches = None
        if transactional and refusal is None:
            batches = run_at_once(self.collect_transactional(exchange, ask, buf))
            assert batches is not None, "there are some"
            refusal = batches.refusal
            question = batches.question
            if question is None:
                batches = None  # all of open transactions
            elif not batches.verify_at_once(self.verifier, question):
                long = LongProduce(self, peer, version, correlation_id, ask, buf, block)
                long.serve_request(None, batches)
                return True
        try:
            self._append_all(exchange, block, buf, ask, refusal, batches)
        except NotLoaded as missing:  # the only item; nothing was appended
            self.table.load_then(missing.numbers, peer.resume)
            return False
        if len(items) == 1 and not batches and exchange.results and not exchange.results[0][2]:
            guard = NOT_ALLOWED if ask.transactional_id is None else ONLY_OPEN
            self._remember(peer, version, acks, buf, end, items[0], guard)
        return True

    def collect_transactional(
        self, exchange: Exchange, ask: ProduceAsk, buf: memoryview
    ) -> Generator[None, None, TransactionalBatches | None]:
        """Return the transactional batches of a request, with the error of the whole request;
        None: it has none."""
        peer = exchange.peer
        batches = None
        for topic, index, start, stop in ask.items:
            if is_transactional(buf, start, stop):
                if batches is None:
                    batches = self._transactional(exchange, ask)
                if batches.refusal is None and self.rights.may(peer, topic):
                    batches.add(topic, index, buf, start)
            yield
        return batches

    def _transactional(self, exchange: Exchange, ask: ProduceAsk) -> TransactionalBatches:
        """Import what only transactions need."""
        from kafkawire.handlers.produce.transactional import TransactionalBatches

        refusal = None
        if not self.rights.may_transact(exchange.peer, ask.transactional_id):
            refusal = KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return TransactionalBatches(ask.transactional_id, exchange.version, self.table, refusal)

    @property
    def verifier(self) -> TransactionVerifier:
        """Verifies the transactions of batches; created when it is first used."""
        return self._broker.verifier

    def pending(self) -> PendingProduces:
        """Return the write batch of batches that are appended now."""
        pending = self._pending
        # Without exchanges its time would be old.
        if pending.number != self.log.batch_number or not pending.exchanges:
            pending = self._pending = PendingProduces(
                self.log, self.counts, self.now_ms(), self._open
            )
        return pending

    def _append_all(  # noqa: C901 (hot: few calls)
        self,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        ask: ProduceAsk,
        refusal: KafkaError | None,
        batches: TransactionalBatches | None,
    ) -> None:
        """Append the batches of a request at once, or from the first long one on in slices.
        `batches`: those that were verified."""
        pending = self.pending()
        results = exchange.results
        appended, until_s = 0, 0.0
        several = len(ask.items) > 1
        for item in ask.items:
            try:
                if refusal is not None:
                    raise refusal
                if several and _codec_of(buf, item[2], item[3]):
                    now_s = self._monotonic()
                    until_s = until_s or now_s + _DECOMPRESSING_S
                    if now_s > until_s:
                        raise LongBatch
                guard = None if batches is None else batches.guard(item[0], item[1])
                results.append(self.append(exchange, buf, item, pending.now_ms, guard))
                appended += 1
            except LongBatch:
                self._continue(exchange, block, buf, ask, batches)
                return
            except NotLoaded:  # of the only item
                raise
            except Exception as failure:  # earlier items are queued and must be answered
                results.append(self.failure_result(item, failure))
                exchange.hints = self.hints
        if exchange.acks:
            exchange.peer.exchanges.append(exchange)
        if appended:
            pending.add(exchange, block)
        else:
            self.counts.produces += 1
            if exchange.acks:
                exchange.respond(None)
                exchange.peer.note_answered(exchange)
        if not exchange.acks and appended < len(results):
            exchange.peer.abort("a produce with acks=0 was refused")

    def append(
        self,
        exchange: Waiting,
        buf: memoryview,
        item: ProduceItem,
        now_ms: int,
        guard: Guard | None,
        inspected: Inspected | None = None,
    ) -> ProduceResult:
        """Queue one batch; return the result for a successful write. Raises the error of the batch,
        LongBatch if its records must be checked in slices, and NotLoaded. Hot."""
        topic, index, start, stop = item
        rights = exchange.peer.rights
        if (  # whether the topic exists or not
            rights is not None
            and topic not in rights.writes
            and not self.rights.may(exchange.peer, topic)
        ):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = self.table.find(topic, index)
        _check(partition, exchange, buf, item)
        done = partition.queue(buf[start:stop], now_ms, inspected, guard)
        exchange.note_batch(partition)
        return topic, index, 0, *done, None, ()

    def failure_result(self, item: ProduceItem, failure: Exception) -> ProduceResult:
        """Return the result of a batch that was not appended. A defect is logged, and affects no
        other batch."""
        if isinstance(failure, NotLoaded):  # unloaded meanwhile: clients retry
            failure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not isinstance(failure, KafkaError | OSError):
            where = item[0], item[1]
            logger.error(
                "appending a batch to %s-%d failed, answered with an error",
                *where,
                exc_info=failure,
            )
        why = build_failure_fields(failure)
        self.counts.count_error("Produce", why[0])
        # The error of a log that refuses all batches is one object: with the frames of each request
        # it would hold the memory of all of them.
        failure.__traceback__ = None
        return item[0], item[1], *why

    def _continue(
        self,
        exchange: ProduceExchange,
        block: Pinned,
        buf: memoryview,
        ask: ProduceAsk,
        batches: TransactionalBatches | None,
    ) -> None:
        """Serve the rest of a request in slices, from its first long batch on."""
        done, exchange.results = exchange.results, []
        peer, version, number = exchange.peer, exchange.version, exchange.correlation_id
        size_bytes = sum(stop - start for _, _, start, stop in ask.items[: len(done)])
        long = LongProduce(self, peer, version, number, ask, buf, block)
        long.continue_after(exchange, done, size_bytes, batches)

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

    async def check_schedules(self, peer: Peer, partition: Partition, batch: memoryview) -> None:
        """Check the due times and targets of the records for a schedule topic. Raises KafkaError:
        INVALID_RECORD with the reasons, TOPIC_AUTHORIZATION_FAILED for a target."""
        await self._broker.schedules.check(
            partition, batch, lambda target: self.rights.may(peer, target)
        )

    @staticmethod
    def refusal(acks: int) -> KafkaError | None:
        """Return the response that rejects a whole request, with an error per partition."""
        return None if -1 <= acks <= 1 else KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)


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
