"""Producers of the simulation: each is an instance of a transactional producer, as a generator.

A generator yields a call that takes a reply, and is sent the answer; None: the connection ended.
Instances retry what they may, die when they are fenced, and note what they were answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
)
from kafkawire.transactions.machine.transaction import EMPTY, EXHAUSTED_FROM
from tests.kit.transactions.partitions import Key
from tests.kit.transactions.world import Reply, World

Call = Callable[[Reply], None]
Script = Generator[Call, "Answer | None", None]

RETRIED = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"


class Over(Exception):
    """The instance ends."""


class Fenced(Exception):
    """Another instance has taken the transactional id."""


@dataclass
class History:
    """The knowledge of all producers. `known`: how a transaction ended, by the answers;
    `inits`: the instance whose InitProducerId last changed an id; `given`: the instance that got a
    producer id and epoch."""

    known: dict[Key, str] = field(default_factory=dict)
    inits: dict[str, int] = field(default_factory=dict)
    given: dict[tuple[int, int], int] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)


class Producer:
    """One instance. `version` is 1 or 2, of the transaction protocol."""

    def __init__(
        self, world: World, history: History, number: int, transactional_id: str, version: int
    ) -> None:
        self.world = world
        self.history = history
        self.number = number
        self.id = transactional_id
        self.tv = 2 if version == 2 else 0
        self.rng = random.Random(number)
        self.pid, self.epoch = -1, -1
        self.done = False
        self.busy = False
        self._initializing = False
        self._acts_seen = 0
        self._crashes_seen = 0
        self._script = self.live()
        self._answer: Answer | None = None

    def step(self) -> None:
        """Send the next request."""
        self.busy = True
        try:
            call = self._script.send(self._answer)
        except StopIteration:
            self.done, self.busy = True, False
            return
        self._answer = None
        call(self._answered)

    def _answered(self, answer: Answer | None) -> None:
        self._answer, self.busy = answer, False

    # -- the life of an instance ----------------------------------------------------------

    def live(self) -> Script:
        try:
            yield from self.init()
            for number in range(self.rng.randrange(1, 5)):
                yield from self.transaction((self.number, number))
        except Fenced:
            self.judge_fence()
        except Over:
            pass

    def judge_fence(self) -> None:
        """A producer is fenced only because another instance came, the broker aborted its
        transaction or forgot its id, or a crash made the broker forget the epoch before the last.
        After an abort InitProducerId succeeds if the cluster has version 2."""
        newest = self.history.inits.get(self.id, self.number) == self.number
        aborts = self.world.broker_acts.get(self.id, 0) > self._acts_seen
        if self._initializing and self.world.settings.transaction_version >= 2:
            aborts = False
        if newest and not aborts and self.world.crashes == self._crashes_seen:
            self.history.fenced.append(f"instance {self.number} of {self.id} at {self.epoch}")

    def init(self) -> Script:
        """InitProducerId until it succeeds; with the producer one had, if any (KIP-360)."""
        self._initializing = True
        ask = InitProducer(self.id, 1000, self.pid, self.epoch)

        answer = yield from self.until_answered(lambda reply: self._ask(ask, reply))
        if answer.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            # As in Kafka: the epoch is recovered at the very end of a producer id.
            assert self.epoch >= EXHAUSTED_FROM - 2
            raise Over
        if answer.code:
            raise Fenced
        self._initializing = False
        self._take(answer)

    def _ask(self, ask: InitProducer | EndTransaction, reply: Reply) -> None:
        """Send what may give a new epoch. What happened before it was given is no reason for a
        fence any more."""
        before = self.world.shard.transactions.get(self.id)
        self.world.ask(ask, reply)
        after = self.world.shard.transactions.get(self.id)
        if after is before or after is None:
            return
        if isinstance(ask, InitProducer) and after.state is EMPTY:
            self.history.inits[self.id] = self.number
        if isinstance(ask, EndTransaction) or after.state is EMPTY:
            self._acts_seen = self.world.broker_acts.get(self.id, 0)
            self._crashes_seen = self.world.crashes

    def _take(self, answer: Answer) -> None:
        self.pid, self.epoch = answer.producer_id, answer.producer_epoch
        owner = self.history.given.setdefault((self.pid, self.epoch), self.number)
        assert owner == self.number, f"{answer} was given to {owner} and to {self.number}"

    def transaction(self, key: Key) -> Script:
        partitions = self.rng.sample(sorted(self.world.partitions), self.rng.randrange(1, 4))
        commit = self.rng.random() < 0.6
        self.history.known[key] = ABORTED  # until a client asks for a commit
        for partition in partitions:
            if not (yield from self.write(partition, key)):
                commit = False
                break
        if self.rng.random() < 0.1:
            return (yield from self.abandon())
        yield from self.end(key, commit)

    def abandon(self) -> Script:
        """Forget the transaction: begin again with the producer one has, or as a new instance."""
        if self.rng.random() < 0.5:
            self.pid, self.epoch = -1, -1
        yield from self.init()

    def write(self, partition: tuple[str, int], key: Key) -> Generator[Call, Answer | None, bool]:
        add = AddPartitions(self.id, self.pid, self.epoch, frozenset({partition}), self.tv)
        if not self.tv:
            answer = yield from self.until_answered(lambda reply: self.world.ask(add, reply))
            if answer.code:
                return self._may_go_on(answer.code)
        for _ in range(self.rng.randrange(1, 3)):
            answer = yield from self.until_answered(
                lambda reply: self.world.produce(add, key, reply, implicit=bool(self.tv))
            )
            if answer.code:
                return self._may_go_on(answer.code)
        return True

    def _may_go_on(self, code: ErrorCode) -> bool:
        """False: abort and go on. Raises Fenced."""
        if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH) and not self.tv:
            raise Fenced
        if code is ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            raise Fenced  # expired, or another instance has got a new producer id
        return False

    def until_answered(self, call: Call) -> Generator[Call, Answer | None, Answer]:
        while True:
            answer = yield call
            if answer is not None and answer.code not in RETRIED:
                return answer

    def end(self, key: Key, commit: bool) -> Script:
        """EndTxn until it is answered; an answer that is lost leaves the outcome open."""
        ask = EndTransaction(self.id, self.pid, self.epoch, commit, self.tv)
        while True:
            answer = yield lambda reply: self._ask(ask, reply)
            if commit and (answer is None or answer.code is ErrorCode.NOT_COORDINATOR):
                self.history.known[key] = UNKNOWN  # it may be done
            if answer is not None and answer.code not in RETRIED:
                break
        if answer.code is ErrorCode.NONE:
            self.history.known[key] = COMMITTED if commit else ABORTED
            if self.tv:
                self._take(answer)
        elif answer.code is ErrorCode.INVALID_TXN_STATE:
            yield from self.init()  # nothing was open, or it timed out
        else:
            raise Fenced
