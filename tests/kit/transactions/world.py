"""A coordinator over a log that forgets, partitions, and producers that retry: one step at a time.

`World` carries out decisions as a coordinator does: append, apply, commit, and only then answer and
send markers. Everything between two steps is a crash point: `at` is called with its name, and may
raise Crash. A crash loses memory, answers and markers on their way, and what was not committed but
for a part that had reached the disk. `defect` breaks one rule, to show that the checks see it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kafkawire.codec.batches import iter_batches, records
from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.decision import SendMarkers, TransactionDecision
from kafkawire.transactions.machine.records import TransactionRecord, batches_of, decode_record
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    InitProducer,
    Request,
    VerifyPartitions,
)
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import TopicPartition, Transaction
from tests.kit.transactions.desk import TransactionSettings
from tests.kit.transactions.partitions import PartitionModel

BATCH_BYTES = 100_000

Reply = Callable[[Answer | None], None]
"""Takes the answer of a request; None: the connection ended before it came."""


class Crash(Exception):
    """The coordinator ends here."""


@dataclass
class Entry:
    """A batch that is appended and not committed, and what leaves after its commit."""

    batch: bytes
    leaving: list[Callable[[], None]] = field(default_factory=list)


class World:
    """The broker and its log. `early` is a defect: answers and markers leave before the commit."""

    def __init__(
        self,
        seed: int,
        settings: TransactionSettings,
        at: Callable[[str], None] = lambda name: None,
        early: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings
        self.at = at
        self.early = early
        self.now_ms = 1_000_000
        self.partitions: dict[TopicPartition, PartitionModel] = {
            ("t", index): PartitionModel() for index in range(3)
        }
        self.durable: list[bytes] = []
        self.open_entries: list[Entry] = []
        self.work: list[SendMarkers] = []
        self.results: list[tuple[SendMarkers, TopicPartition, ErrorCode]] = []
        self.replies: list[tuple[Reply, Answer]] = []
        self.waiting: list[Reply] = []
        self.epoch = 0
        self.producer_ids = 1000
        self.crashes = 0
        self.broker_acts: dict[str, int] = {}
        self.shard = TransactionShard(settings, self.epoch)

    # -- the coordinator ------------------------------------------------------------------

    def ask(self, request: Request, reply: Reply) -> None:
        self.waiting.append(reply)
        self.at("request received")
        decision = self._decided(lambda fresh: self.shard.decide(request, self.now_ms, fresh))
        if isinstance(request, InitProducer) and decision.effects:
            self._count_act(request.transactional_id)
        self._carry_out(decision, reply)

    def _count_act(self, transactional_id: str) -> None:
        self.broker_acts[transactional_id] = self.broker_acts.get(transactional_id, 0) + 1

    def _decided(self, decide: Callable[[int | None], TransactionDecision]) -> TransactionDecision:
        decision = decide(None)
        if decision.needs_producer_id:
            self.producer_ids += 1
            self.at("producer id taken")
            decision = decide(self.producer_ids)
        assert not decision.needs_producer_id
        return decision

    def _carry_out(self, decision: TransactionDecision, reply: Reply | None = None) -> None:
        leaving: list[Callable[[], None]] = []
        if reply is not None and decision.answer is not None:
            answer, to = decision.answer, reply
            leaving.append(lambda: self.replies.append((to, answer)))
        for effect in decision.effects:
            if isinstance(effect, SendMarkers):
                leaving.append(lambda effect=effect: self.work.append(effect))  # type: ignore[misc]
        changed = decision.records
        if changed:
            version = self.settings.transaction_version
            for batch in batches_of(changed, BATCH_BYTES, version, self.now_ms):
                self.open_entries.append(Entry(bytes(batch)))
            self.at("appended " + "+".join(_label(record) for record in changed))
        for step in decision.steps:
            self.shard.apply(step)
        if self.open_entries and not self.early:
            self.open_entries[-1].leaving += leaving
        else:
            for leave in leaving:
                leave()

    def commit(self) -> None:
        """One fsync: what was appended is durable; its answers and markers leave."""
        entries, self.open_entries = self.open_entries, []
        self.at("before commit")
        self.durable += [entry.batch for entry in entries]
        self.at("committed")
        for entry in entries:
            for leave in entry.leaving:
                leave()

    def answer_one(self) -> None:
        reply, answer = self.replies.pop(0)
        self.at("before answer")
        if reply in self.waiting:
            self.waiting.remove(reply)
            reply(answer)
        self.at("answered")

    # -- markers --------------------------------------------------------------------------

    def mark_one(self) -> None:
        """One marker to one partition; it may fail, or its answer may be lost with a crash."""
        work = self.work.pop(self.rng.randrange(len(self.work)))
        first, *others = sorted(work.partitions)
        if others:
            self.work.append(_only(work, frozenset(others)))
        self.at("before marker")
        if self.rng.random() < 0.1:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            code = self.partitions[first].mark(work)
        self.at("marker written")
        self.results.append((work, first, code))

    def result_one(self) -> None:
        work, partition, code = self.results.pop(self.rng.randrange(len(self.results)))
        self._carry_out(self.shard.decide_markers(work, {partition: code}, self.now_ms))

    # -- tasks, crash and load ------------------------------------------------------------

    def tick(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for transactional_id in self.shard.timed_out(self.now_ms):
            self._count_act(transactional_id)
            self._carry_out(
                self._decided(
                    lambda fresh, id_=transactional_id: self.shard.decide_timeout(  # type: ignore[misc]
                        id_, self.now_ms, fresh
                    )
                )
            )
        expired = self.shard.decide_expiry(list(self.shard.transactions), self.now_ms)
        for record in expired.records:
            self._count_act(record.transactional_id)
        self._carry_out(expired)

    def crash(self) -> None:
        """End and start again."""
        kept = self.rng.randrange(len(self.open_entries) + 1)
        self.durable += [entry.batch for entry in self.open_entries[:kept]]
        self.open_entries, self.work, self.results, self.replies = [], [], [], []
        self.crashes += 1
        self.epoch += 1
        self.shard = TransactionShard(self.settings, self.epoch)
        for record in self.stored():
            self.shard.apply(record)
        at, self.at = self.at, lambda name: None  # loading itself can be repeated
        for transactional_id in list(self.shard.pending):
            self._carry_out(self.shard.decide_resumed(transactional_id, self.now_ms))
        self.at = at
        waiting, self.waiting = self.waiting, []
        for reply in waiting:
            reply(None)

    def exhaust(self, transactional_id: str) -> None:
        """The id exists, a few epochs before the end of its producer id."""
        self.producer_ids += 1
        at = Transaction(self.producer_ids, 32_763, 1000, updated_ms=self.now_ms)
        (batch,) = batches_of([TransactionRecord(transactional_id, at)], BATCH_BYTES, 2, 0)
        self.durable.append(bytes(batch))
        self.shard.apply(TransactionRecord(transactional_id, at))

    def stored(self) -> list[TransactionRecord]:
        """All records of the log, through their bytes."""
        found = []
        for batch in self.durable:
            for position, _ in iter_batches(batch):
                for stored in records(batch, position):
                    record = decode_record(stored.key, stored.value)
                    assert record is not None
                    found.append(record)
        return found

    # -- a broker with partitions ---------------------------------------------------------

    def produce(
        self, add: AddPartitions, key: tuple[int, int], reply: Reply, *, implicit: bool
    ) -> None:
        """A transactional Produce to one partition: verified by the coordinator (version 1), or
        added there (version 2), and appended only if no marker came in between."""
        (at,) = add.partitions
        partition = self.partitions[at]
        guard = partition.at(add.producer_id).markers

        def verified(answer: Answer | None) -> None:
            if answer is None or answer.code:
                reply(answer)
            elif partition.at(add.producer_id).markers != guard:
                reply(Answer(ErrorCode.CONCURRENT_TRANSACTIONS))  # verify again
            else:
                self.waiting.append(reply)
                self.at("before data")
                self.waiting.remove(reply)
                reply(Answer(partition.append(add.producer_id, add.producer_epoch, key)))

        if implicit:
            self.ask(add, verified)
            return
        codes = self.shard.verify(
            VerifyPartitions(
                add.transactional_id, add.producer_id, add.producer_epoch, add.partitions
            )
        )
        verified(Answer(codes[at]))


def _only(work: SendMarkers, partitions: frozenset[TopicPartition]) -> SendMarkers:
    return work._replace(partitions=partitions)


def _label(record: TransactionRecord) -> str:
    return "tombstone" if record.value is None else record.value.state.label
