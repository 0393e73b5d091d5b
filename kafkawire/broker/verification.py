"""Verification that partitions belong to a transaction before records of it are appended (KIP-890).

The partition is asked first, which knows open transactions, then the transaction coordinator, here
or at another broker: one question for all partitions of a request. A refusal for good drops the
guard; after a retriable error it stays, so that a batch with a lower sequence is still appended
first (KAFKA-14920).

Used by Produce and, for the partitions of `__consumer_offsets`, by TxnOffsetCommit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafkawire.broker.new_topics import GROUP_METADATA_TOPIC
from kafkawire.broker.partitions import NotLoaded
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.transactional import Verification, Verified
from kafkawire.log.partition.verification import NOT_VERIFIED, Guard
from kafkawire.transactions.machine.request import AddPartitions, VerifyPartitions
from kafkawire.transactions.machine.transaction import TopicPartition

if TYPE_CHECKING:
    from kafkawire.broker.other_brokers import RemoteCoordinators
    from kafkawire.broker.parts import BrokerParts
    from kafkawire.log.partition.partition import Partition

WITHOUT_SEQUENCE = -1
VERSION_2 = 2
"""The transaction.version of requests that add partitions themselves."""


class Question(NamedTuple):
    """Whether partitions belong to the transaction of one producer; led here and in memory.

    `sequences`: the first sequence of the batch for each partition. `adds`: add the partitions to
    the transaction (transaction version 2), otherwise only check. `retries`: wait a little for a
    transaction of the same id that is being completed.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequences: Mapping[TopicPartition, int]
    adds: bool
    retries: bool = False

    def about(self, partitions: frozenset[TopicPartition]) -> AddPartitions | VerifyPartitions:
        """Return the request to the coordinator about some of the partitions."""
        who = self.transactional_id, self.producer_id, self.producer_epoch
        if self.adds:
            return AddPartitions(*who, partitions, VERSION_2)
        return VerifyPartitions(*who, partitions)


Asked = tuple["Partition", Guard]


class TransactionVerifier:
    """Asks for all requests of a broker. A question is bounded by its request; a connection has one
    at a time, and each partition has at most MAX_GUARDS guards."""

    def __init__(self, broker: BrokerParts, remote: RemoteCoordinators) -> None:
        self._broker = broker
        self._remote = remote

    def close(self) -> None:
        """End the connections to other coordinators."""
        self._remote.close()

    async def verify(self, question: Question) -> dict[TopicPartition, Verified]:
        """Return for each partition NONE and the guard that the append needs, or the error."""
        broker = self._broker
        give_way = broker.env.slices.give_way
        if not question.adds and not broker.config.transaction_partition_verification_enable:
            return dict.fromkeys(question.sequences, Verified(guard=NOT_VERIFIED))
        verified: dict[TopicPartition, Verified] = {}
        asked: dict[TopicPartition, Asked] = {}
        for at in question.sequences:
            self._begin(question, at, verified, asked)
            await give_way()
        if asked:  # errors of the partitions are known
            codes = await self._ask(question, frozenset(asked))
            for at, (partition, guard) in asked.items():
                verified[at] = _settle(question, partition, guard, codes[at])
                await give_way()
        return verified

    def verify_at_once(self, question: Question) -> dict[TopicPartition, Verified] | None:
        """As `verify`, without waiting; None if that is not possible, or the coordinator refuses.

        For few partitions, and a caller that appends before the event loop runs on: what the
        coordinator has just written need not be durable yet.
        """
        if not question.adds and not self._broker.config.transaction_partition_verification_enable:
            return dict.fromkeys(question.sequences, Verified(guard=NOT_VERIFIED))
        verified: dict[TopicPartition, Verified] = {}
        asked: dict[TopicPartition, Asked] = {}
        for at in question.sequences:
            self._begin(question, at, verified, asked)
        if asked:
            request = question.about(frozenset(asked))
            if not self._broker.transactions.answer_at_once(request):
                return None
            for at, (partition, guard) in asked.items():
                partition.begin_frame()  # no crash may keep the records alone
                verified[at] = Verified(guard=guard)
        return verified

    def _begin(
        self,
        question: Question,
        at: TopicPartition,
        verified: dict[TopicPartition, Verified],
        asked: dict[TopicPartition, Asked],
    ) -> None:
        """Ask the partition itself: enter its answer in `verified`, or a guard in `asked`."""
        broker = self._broker
        try:
            partition = broker.table.find_by_name(*at)
            guard = partition.begin_verification(
                question.producer_id,
                question.producer_epoch,
                question.sequences[at],
                broker.env.clock.now_ms(),
                adds=question.adds,
            )
        except KafkaError as error:
            verified[at] = Verified(error.code)
            return
        except NotLoaded:  # unloaded since the request was decoded: clients retry
            verified[at] = Verified(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if guard is None:
            verified[at] = Verified()  # the transaction is open in this partition
        else:
            asked[at] = partition, guard

    async def _ask(
        self, question: Question, partitions: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Ask the coordinator."""
        request = question.about(partitions)
        elsewhere = self._remote.find(question.transactional_id)
        if isinstance(request, VerifyPartitions):
            if elsewhere is not None:
                return await self._remote.request_verification(elsewhere, request)
            return await self._broker.transactions.verify(request)
        return dict.fromkeys(partitions, await self._add(request, elsewhere, question.retries))

    async def _add(self, request: AddPartitions, elsewhere: int | None, retries: bool) -> ErrorCode:
        """Add partitions, here or at the coordinator of another broker. While markers of the
        transaction before are written, ask again for a while: the producer has begun the next one
        as soon as it was allowed to."""
        broker = self._broker
        config, clock = broker.config, broker.env.clock
        until = clock.monotonic() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            code = await self._add_once(request, elsewhere)
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS or not retries:
                return code
            if clock.monotonic() >= until:
                return code
            backoff_s = config.add_partitions_to_txn_retry_backoff_ms / 1000
            if elsewhere is None:
                await broker.transactions.wait_for_completion(request.transactional_id, backoff_s)
            else:
                await broker.env.sleep(backoff_s)

    async def _add_once(self, request: AddPartitions, elsewhere: int | None) -> ErrorCode:
        """Return NONE if all partitions are part of the transaction, or the error of one."""
        if elsewhere is None:
            return (await self._broker.transactions.answer_request(request)).code
        codes = await self._remote.request_verification(elsewhere, request)
        errors = [code for code in codes.values() if code is not ErrorCode.NONE]
        reasons = [code for code in errors if code is not ErrorCode.OPERATION_NOT_ATTEMPTED]
        return next(iter(reasons or errors), ErrorCode.NONE)

    async def verify_offsets(self, asked: Verification) -> Verified:
        """Verify a partition of `__consumer_offsets`, or add it to the transaction: the port of the
        groups. CONCURRENT_TRANSACTIONS goes to the client, as in Kafka."""
        at = (GROUP_METADATA_TOPIC, asked.partition)
        await self._broker.table.load([at])
        question = Question(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            {at: WITHOUT_SEQUENCE},
            asked.adds,
        )
        return (await self.verify(question))[at]


def _settle(question: Question, partition: Partition, guard: Guard, code: ErrorCode) -> Verified:
    """Return the result for one partition; after a final error no guard remains."""
    if code is ErrorCode.NONE:
        return Verified(code, guard)
    if not code.retriable:
        partition.producers.drop_guard(question.producer_id, guard)
    return Verified(code)
