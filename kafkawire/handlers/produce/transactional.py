"""Transactional batches of a Produce: what is checked before any batch of the request is appended.

A partition that takes the first batch of a transaction is verified by the transaction coordinator
(kafkawire.broker.verification), all partitions of a request by one question. Batches of a
transaction that is open in the partition need no question. Pure but for lookups of partitions; used
by kafkawire.handlers.produce.handler and long.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING

from kafkawire.broker.partitions import NotLoaded
from kafkawire.broker.verification import Question
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.slices import empty_slowly

if TYPE_CHECKING:
    from kafkawire.broker.partitions import PartitionTable
    from kafkawire.broker.verification import TransactionVerifier
    from kafkawire.codec.flat import Topic
    from kafkawire.groups.model.transactional import Verified
    from kafkawire.log.partition.verification import Guard
    from kafkawire.transactions.machine.transaction import TopicPartition

logger = logging.getLogger(__name__)

ADDS_FROM = 12
"""The first version of Produce that adds partitions to the transaction by itself (KIP-890)."""
ABORTABLE_FROM = 11
"""The first version that answers TRANSACTION_ABORTABLE."""

_PRODUCER_AT = 43
_PRODUCER = Struct(">qhi")  # producer id, epoch, first sequence

_UNAVAILABLE = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class TransactionalBatches:
    """The transactional batches of one request: `add` each, then `verify` them.

    `refusal`: the error of the whole request (Kafka: KafkaApis.handleProduceRequest).
    """

    def __init__(
        self,
        transactional_id: str | None,
        version: int,
        table: PartitionTable,
        refusal: KafkaError | None,
    ) -> None:
        self._transactional_id = transactional_id
        self._version = version
        self._table = table
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._places: dict[tuple[Topic, int], TopicPartition] = {}
        self._verified: dict[TopicPartition, Verified] = {}
        self.refusal = refusal

    def add(self, topic: Topic, index: int, buf: memoryview, start: int) -> None:
        """Add the next batch of the request, which begins at `start`. Its partition is in memory
        if it is led here."""
        if self._transactional_id is None:
            self.refusal = KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch needs a transactional id in its request",
            )
            return
        producer_id, epoch, sequence = _PRODUCER.unpack_from(buf, start + _PRODUCER_AT)
        if producer_id < 0:
            return  # refused when it is appended
        if self._producer is None:
            self._producer = producer_id, epoch
        elif self._producer != (producer_id, epoch):
            self.refusal = KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "the transactional batches of a request are of more than one producer",
            )
            return
        try:
            partition = self._table.find(topic, index)
        except (KafkaError, NotLoaded):
            return  # the append meets the same error
        if not partition.producers.is_open(producer_id, epoch):
            at = partition.topic, partition.index
            self._places[topic, index] = at
            self._sequences.setdefault(at, sequence)

    @property
    def question(self) -> Question | None:
        """The question to ask before the batches may be appended; None: there is none."""
        if self.refusal is not None or not self._sequences:
            return None
        assert self._transactional_id is not None, "refused without one"
        assert self._producer is not None, "that of the batches"
        adds = self._version >= ADDS_FROM
        return Question(self._transactional_id, *self._producer, self._sequences, adds, adds)

    def verify_at_once(self, verifier: TransactionVerifier, question: Question) -> bool:
        """Ask `question`, that of the property, if the answer is known at once. To be called in the
        event-loop iteration of the append."""
        verified = verifier.verify_at_once(question)
        if verified is not None:
            self._verified = verified
        return verified is not None

    async def verify(self, verifier: TransactionVerifier) -> KafkaError | None:
        """Ask `question`, if there is one. Return the error of the whole request, or None."""
        question = self.question
        if question is not None:
            try:
                self._verified = await verifier.verify(question)
            except Exception:  # a defect: no batch is appended
                logger.exception(
                    "verifying a transaction of transactional id %s failed, its batches are "
                    "answered with an error",
                    self._transactional_id,
                )
                self.refusal = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return self.refusal

    def guard(self, topic: Topic, index: int) -> Guard | None:
        """Return the guard that the append of a batch needs. Raises the error for the producer."""
        at = self._places.get((topic, index))
        found = None if at is None else self._verified.get(at)
        if found is None:
            return None
        if found.code is not ErrorCode.NONE:
            raise produce_error(found.code, self._version)
        return found.guard

    async def release(self, give_way: Callable[[], Awaitable[None]]) -> None:
        """Free the entries of a long request, in slices."""
        for entries in (self._places, self._sequences, self._verified):
            await empty_slowly(entries, give_way)


def produce_error(code: ErrorCode, version: int) -> KafkaError:
    """Return the error that a producer of this version of Produce expects for a code of the
    transaction coordinator (Kafka: ReplicaManager.handleProduceAppend)."""
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return KafkaError(ErrorCode.INVALID_TXN_STATE)
    if code in _UNAVAILABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_FROM):
        text = f"the transaction of the batch cannot be verified now: {code.name}"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    return KafkaError(code)
