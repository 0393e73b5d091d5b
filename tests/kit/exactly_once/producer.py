"""A transactional producer over any connection: the client half of Kafka's protocol, both versions.

One instance has one request outstanding. It repeats what may be repeated, reports everything to a
History, and ends with Fenced when another instance has taken its transactional id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.kit.exactly_once.batches import build
from tests.kit.exactly_once.history import History, Outcome, Partition

RETRY = {5, 6, 7, 14, 15, 16, 19, 51, 56}
"""Codes after which the same request is sent again; an earlier one may have been carried out after
15, 16 and 56."""
MAYBE_DONE = {7, 15, 16, 56}
FENCED = {47, 49, 90}
"""49: the transactional id has expired, and another instance may have begun it again."""
PATIENCE_S = 300.0
"""Longer than any fault of a simulation or a trial lasts; who waits longer waits forever."""
Request = Callable[[Any, int], Awaitable[Any]]


GIVES_UP = 0.3
"""The share of lost Produces after which a client aborts, as after its delivery.timeout.ms: the
request may still arrive."""


class Lost(Exception):
    """The connection ended, or the answer did not come in time: the request may be carried out."""


class Fenced(Exception):
    """Another instance has the transactional id, or the transaction timed out."""


class Abortable(Exception):
    """The open transaction can only be aborted."""


class Stuck(AssertionError):
    """A request is refused with a retriable error forever."""


class Net(Protocol):
    """The world of a client. `call`: on a connection of the client's own, which is opened again
    after it ended; raises Lost."""

    rng: Random

    def now(self) -> float: ...
    def now_ms(self) -> int: ...
    async def sleep(self, seconds: float) -> None: ...
    async def call(self, request: Any, version: int) -> Any: ...


async def repeated(
    net: Net, request: Any, version: int, codes: Callable[[Any], set[int]]
) -> tuple[Any, bool]:
    """Send until the answer has no code to retry; the answer, and whether an earlier request may
    have been carried out."""
    maybe, began, seen = False, net.now(), {-1}
    while True:
        try:
            answer = await net.call(request, version)
            seen = codes(answer)
            if not seen & RETRY:
                return answer, maybe
            maybe = maybe or bool(seen & MAYBE_DONE)
        except Lost:
            maybe = True
        if net.now() - began > PATIENCE_S:
            raise Stuck(f"{type(request).__name__} v{version} gets {seen} forever: {request}")
        await net.sleep(0.02 + net.rng.random() * 0.1)


def code(answer: Any) -> set[int]:
    """The code of an answer that has one."""
    return {answer.error_code}


class Transactional:
    """One instance. `version`: of the transaction protocol, 1 or 2; `produce_version`: below 12 for
    version 1."""

    def __init__(
        self,
        net: Net,
        history: History,
        name: str,
        transactional_id: str,
        version: int,
        produce_version: int,
        timeout_ms: int = 20_000,
    ) -> None:
        self.net, self.history = net, history
        self.name, self.id, self.version = name, transactional_id, version
        self.produce_version = produce_version
        self.timeout_ms = timeout_ms
        self.producer = (-1, -1)
        self.attempt = ""
        self.count = 0
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()
        self._begun = False

    # -- the life of an instance ----------------------------------------------------------

    async def init(self) -> None:
        """Take over the transactional id."""
        answer = await self._init(-1, -1)
        self.history.started(self.name, self.id, *self.producer, self.net.now())
        assert answer.error_code == 0, answer

    async def _init(self, producer_id: int, epoch: int) -> Any:
        request = InitProducerIdRequest(self.id, self.timeout_ms, producer_id, epoch)
        answer, _ = await repeated(self.net, request, 4, code)
        if answer.error_code in FENCED:
            raise Fenced
        if answer.error_code:
            raise AssertionError(f"InitProducerId of {self.id}: {answer}")
        self.producer = answer.producer_id, answer.producer_epoch
        self._sequences.clear()
        return answer

    def begin(self) -> str:
        """Begin a transaction, which the broker learns of with its first partition."""
        self.count += 1
        self.attempt = f"{self.name}.{self.count}"
        self.history.began(self.attempt, self.name)
        self._added.clear()
        self._begun = False
        return self.attempt

    # -- a transaction --------------------------------------------------------------------

    async def send(self, partition: Partition, values: Sequence[str]) -> None:
        """Append values to a partition, in one batch."""
        for value in values:
            self.history.sent(self.attempt, *partition, value, self.net.now())
        if self.version == 1 and partition not in self._added:
            await self._add(partition)
        self._begun = True
        sequence = self._sequences.get(partition, 0)
        raw = build(values, *self.producer, sequence, self.net.now_ms())
        topic, index = partition
        data = TopicProduceData(partition_data=[PartitionProduceData(index, raw)])
        data.name = topic
        request = ProduceRequest(self.id, -1, 30_000, [data])
        try:
            first = await self.net.call(request, self.produce_version)
        except Lost:
            if self.net.rng.random() < GIVES_UP:
                raise Abortable("Produce was not answered") from None
            first = None
        if first is None or _produce_codes(first) & RETRY:
            first, _ = await repeated(self.net, request, self.produce_version, _produce_codes)
        answer = first
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            raise Abortable(f"Produce to {partition}: {row.error_code}")
        self._sequences[partition] = sequence + len(values)
        for number, value in enumerate(values):
            self.history.acked(value, row.base_offset + number, self.net.now())

    async def _add(self, partition: Partition) -> None:
        topic, index = partition
        topics = [AddPartitionsToTxnTopic(topic, [index])]
        request = AddPartitionsToTxnRequest([], self.id, *self.producer, topics)
        answer, _ = await repeated(self.net, request, 3, _add_codes)
        (found,) = _add_codes(answer)
        self._judge(found, f"AddPartitionsToTxn of {partition}")
        self._added.add(partition)
        self._begun = True

    async def commit_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Commit offsets of a group with the transaction."""
        for (topic, index), offset in offsets.items():
            self.history.offset(self.attempt, group, topic, index, offset)
        if self.version == 1:
            add = AddOffsetsToTxnRequest(self.id, *self.producer, group)
            answer, _ = await repeated(self.net, add, 3, code)
            self._judge(answer.error_code, "AddOffsetsToTxn")
        self._begun = True
        topics = [
            TxnOffsetCommitRequestTopic(
                topic, partitions=[TxnOffsetCommitRequestPartition(index, offset)]
            )
            for (topic, index), offset in offsets.items()
        ]
        request = TxnOffsetCommitRequest(self.id, group, *self.producer, topics=topics)
        version = 5 if self.version == 2 else 3
        answer, _ = await repeated(self.net, request, version, _offset_codes)
        for found in _offset_codes(answer):
            if found:
                raise Abortable(f"TxnOffsetCommit: {found}")

    def _judge(self, found: int, what: str) -> None:
        if found in FENCED:
            raise Fenced(what)
        if found:
            raise Abortable(f"{what}: {found}")

    async def commit(self) -> Outcome:
        """End the transaction with a commit. Raises Fenced or Abortable after reporting it."""
        if not self._begun:
            return self._ended(Outcome.ABORTED)
        self.history.committing(self.attempt, self.net.now())
        answer, maybe = await self._end(True)
        if answer.error_code:
            self._ended(Outcome.UNKNOWN if maybe else Outcome.ABORTED)
            raise Fenced if answer.error_code in FENCED else Abortable(f"commit: {answer}")
        return self._ended(Outcome.COMMITTED)

    async def abort(self) -> Outcome:
        """End the transaction with an abort; afterwards the instance can begin another one. Raises
        Fenced."""
        if self._begun:
            answer, _ = await self._end(False)
            if answer.error_code in FENCED:
                self._ended(Outcome.ABORTED)
                raise Fenced
            # INVALID_TXN_STATE: there was none, because the first request was refused.
            assert answer.error_code in (0, 48), f"abort: {answer}"
        outcome = self._ended(Outcome.ABORTED)
        if self.version == 1:
            await self._init(*self.producer)  # sequences may be unknown
        return outcome

    async def _end(self, commit: bool) -> tuple[Any, bool]:
        request = EndTxnRequest(self.id, *self.producer, commit)
        version = 5 if self.version == 2 else 4
        answer, maybe = await repeated(self.net, request, version, code)
        if self.version == 2 and not answer.error_code:
            self.producer = answer.producer_id, answer.producer_epoch
            self._sequences.clear()
        return answer, maybe

    def _ended(self, outcome: Outcome) -> Outcome:
        self.history.ended(self.attempt, outcome.value, self.net.now())
        return outcome


def _produce_codes(answer: Any) -> set[int]:
    return {row.error_code for topic in answer.responses for row in topic.partition_responses}


def _add_codes(answer: Any) -> set[int]:
    return {
        row.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    }


def _offset_codes(answer: Any) -> set[int]:
    return {row.error_code for topic in answer.topics for row in topic.partitions}
