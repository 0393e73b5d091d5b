"""One coordinator partition asked directly: `Desk` applies each decision and keeps its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine.decision import SendMarkers, TransactionDecision
from kafkawire.transactions.machine.records import TransactionRecord, decode_record, encode_record
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
    Request,
    VerifyPartitions,
)
from kafkawire.transactions.machine.shard import TransactionShard
from kafkawire.transactions.machine.transaction import (
    EMPTY,
    ONGOING,
    PREPARED,
    TopicPartition,
    Transaction,
    TransactionState,
)

ID = "T"
PID = 1000
NEXT_PID = 2000
EPOCH = 5
T0, T1 = ("t", 0), ("t", 1)
NOW_MS = 1_000_000


@dataclass
class TransactionSettings:
    """The settings that the machine reads, with Kafka's defaults."""

    transaction_version: int = 2
    transaction_max_timeout_ms: int = 900_000
    transaction_two_phase_commit_enable: bool = False
    transactional_id_expiration_ms: int = 604_800_000


def some(
    state: TransactionState,
    *,
    epoch: int = EPOCH,
    last: int = -1,
    partitions: frozenset[TopicPartition] | None = None,
    **more: int,
) -> Transaction:
    """The id T in some state, as it typically is there."""
    if partitions is None:
        partitions = frozenset({T0}) if state is ONGOING or state in PREPARED else frozenset()
    values: dict[str, int] = {
        "timeout_ms": 60_000,
        "started_ms": -1 if state is EMPTY else NOW_MS - 100,
        "updated_ms": NOW_MS - 50,
        "previous_producer_id": PID,
        **more,
    }
    return Transaction(
        values.pop("producer_id", PID),
        epoch,
        state=state,
        partitions=partitions,
        last_producer_epoch=last,
        **values,
    )


@dataclass
class Desk:
    """A shard, and decisions carried out on it at once: durable as soon as decided."""

    settings: TransactionSettings = field(default_factory=TransactionSettings)
    now_ms: int = NOW_MS
    next_pid: int = NEXT_PID
    appended: list[TransactionRecord] = field(default_factory=list)
    work: list[SendMarkers] = field(default_factory=list)
    decision: TransactionDecision = field(default_factory=TransactionDecision)

    def __post_init__(self) -> None:
        self.shard = TransactionShard(self.settings, coordinator_epoch=7)

    def has(self, at: Transaction, *, pending: bool | None = None) -> Desk:
        """The id T is `at`, as read from the log. `pending` False: no markers are under way, which
        happens in Kafka only before they are queued."""
        self.shard.apply(TransactionRecord(ID, at))
        if pending is False:
            self.shard.pending.pop(ID, None)
        return self

    @property
    def at(self) -> Transaction:
        return self.shard.transactions[ID]

    def ask(self, request: Request) -> Answer:
        answer = self.do(request)
        assert answer is not None
        return answer

    def do(self, request: Request) -> Answer | None:
        decision = self.shard.decide(request, self.now_ms)
        if decision.needs_producer_id:
            assert not decision.steps
            self.next_pid += 1
            decision = self.shard.decide(request, self.now_ms, self.next_pid - 1)
        return self.carry_out(decision)

    def carry_out(self, decision: TransactionDecision) -> Answer | None:
        assert not decision.needs_producer_id
        self.decision = decision
        self.appended += decision.records
        for step in decision.steps:
            self.shard.apply(step)
        self.work += [effect for effect in decision.effects if isinstance(effect, SendMarkers)]
        return decision.answer

    # -- short forms ----------------------------------------------------------------------

    def init(self, pid: int = -1, epoch: int = -1, timeout_ms: int = 60_000, id_: str = ID,
             **more: bool) -> Answer:  # fmt: skip
        return self.ask(InitProducer(id_, timeout_ms, pid, epoch, **more))

    def add(self, *partitions: TopicPartition, pid: int = PID, epoch: int = EPOCH, tv: int = 0,
            id_: str = ID) -> ErrorCode:  # fmt: skip
        return self.ask(AddPartitions(id_, pid, epoch, frozenset(partitions or [T0]), tv)).code

    def verify(self, *partitions: TopicPartition, pid: int = PID, epoch: int = EPOCH,
               id_: str = ID) -> list[int]:  # fmt: skip
        asked = partitions or (T0,)
        codes = self.shard.verify(VerifyPartitions(id_, pid, epoch, frozenset(asked)))
        return [int(codes[partition]) for partition in asked]

    def end(self, *, commit: bool, pid: int = PID, epoch: int = EPOCH, tv: int = 0,
            id_: str = ID) -> Answer:  # fmt: skip
        return self.ask(EndTransaction(id_, pid, epoch, commit, tv))

    def markers(self, code: ErrorCode | None = ErrorCode.NONE) -> list[SendMarkers]:
        """All queued markers are answered with `code`; what was queued."""
        queued, self.work = self.work, []
        for work in queued:
            results = dict.fromkeys(work.partitions, code)
            self.carry_out(self.shard.decide_markers(work, results, self.now_ms))
        return queued

    def time_out(self) -> list[str]:
        overdue = self.shard.timed_out(self.now_ms)
        for transactional_id in overdue:
            decision = self.shard.decide_timeout(transactional_id, self.now_ms)
            if decision.needs_producer_id:
                self.next_pid += 1
                decision = self.shard.decide_timeout(
                    transactional_id, self.now_ms, self.next_pid - 1
                )
            self.carry_out(decision)
        return overdue

    def reload(self) -> Desk:
        """Another coordinator over the records, by way of their bytes, at the next epoch."""
        records = self.appended
        self.shard = TransactionShard(self.settings, self.shard.coordinator_epoch + 1)
        self.work = []
        for record in records:
            version = self.settings.transaction_version
            found = decode_record(*encode_record(record, version))
            assert found is not None
            self.shard.apply(found)
        for transactional_id in list(self.shard.pending):
            self.carry_out(self.shard.decide_resumed(transactional_id, self.now_ms))
        return self
