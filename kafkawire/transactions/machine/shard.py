"""One coordinator partition: its transactional ids, and its decisions about them.

This is the pure half of a coordinator. `decide_*` answers a request, a result of markers, or a
task; `apply` makes steps true, those just appended and those read back from the log alike.

Driven by kafkawire.transactions.coordinator, which appends, waits and sends. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkawire.codec.errors import ErrorCode
from kafkawire.transactions.machine import add_partitions as adding
from kafkawire.transactions.machine import end_transaction as ending
from kafkawire.transactions.machine import init_producer as initializing
from kafkawire.transactions.machine.add_partitions import verify
from kafkawire.transactions.machine.decision import (
    DropMarkers,
    MarkersWritten,
    SendMarkers,
    Step,
    TransactionDecision,
)
from kafkawire.transactions.machine.records import TransactionRecord
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
    Request,
    TransactionConfig,
    VerifyPartitions,
)
from kafkawire.transactions.machine.transaction import (
    AT_REST,
    EMPTY,
    EPOCH_BUMPS_FROM,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARED,
    TopicPartition,
    Transaction,
    complete_transaction,
    decide_outcome,
    fence_producer,
    may_follow,
    with_partitions,
)

_NEEDS_PRODUCER_ID = TransactionDecision(needs_producer_id=True)

WRITTEN = frozenset(
    {
        ErrorCode.NONE,
        # Such a log never took data of a transaction.
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""Results after which a partition needs no marker (Kafka:
TransactionMarkerRequestCompletionHandler)."""
# All other results are tried again. Kafka names which are, and fails on the rest, which would leave
# the transaction open until a restart.
FENCED = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
"""Results that end the work."""


class TransactionShard:
    """The transactional ids of one partition of `__transaction_state`. `coordinator_epoch` is the
    leader epoch of that partition; markers carry it."""

    __slots__ = ("coordinator_epoch", "pending", "settings", "transactions")

    def __init__(self, settings: TransactionConfig, coordinator_epoch: int) -> None:
        self.settings = settings
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        # Of each id whose outcome is decided, the partitions that still need a marker. Kafka has a
        # pending state also while a record is being appended; here it is applied at once.
        self.pending: dict[str, set[TopicPartition]] = {}

    # -- requests -------------------------------------------------------------------------

    def decide(self, ask: Request, now_ms: int, fresh_id: int | None = None) -> TransactionDecision:
        """The answer to one request. Changes nothing. `fresh_id`: a producer id that was never
        used, given when a decision without one needs it; it may then turn out not to be used."""
        if isinstance(ask, InitProducer):
            return self._init_producer(ask, now_ms, fresh_id)
        if isinstance(ask, AddPartitions):
            return self._add_partitions(ask, now_ms)
        return self._end(ask, now_ms, fresh_id)

    def _init_producer(
        self, ask: InitProducer, now_ms: int, fresh_id: int | None
    ) -> TransactionDecision:
        at = self.transactions.get(ask.transactional_id)
        code = initializing.check_request(ask, self.settings)
        # Before the producer is checked: where a new producer id is about to take over, the old one
        # is still stored.
        if code is ErrorCode.NONE and ask.transactional_id in self.pending:
            code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is ErrorCode.NONE and at is not None:
            code = initializing.check_producer(at, ask)
            if code is ErrorCode.NONE and at.state in PREPARED:
                code = ErrorCode.CONCURRENT_TRANSACTIONS
        if code is not ErrorCode.NONE:
            return TransactionDecision(Answer(code))
        if fresh_id is None and initializing.needs_producer_id(
            at, ask, self.settings.transaction_version
        ):
            return _NEEDS_PRODUCER_ID
        if at is not None and at.state is ONGOING:
            # The producer that began it is fenced. Its successor waits for the markers, and then
            # gets an epoch that is higher again: the bumped one was never given to anyone.
            decision = self._fence(ask.transactional_id, at, now_ms, fresh_id)
            decision.answer = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
            return decision
        after = initializing.initialize(
            at, ask, NO_PRODUCER_ID if fresh_id is None else fresh_id, now_ms
        )
        if isinstance(after, ErrorCode):
            return TransactionDecision(Answer(after))
        step = _step(ask.transactional_id, at, after)
        return TransactionDecision(initializing.answer_of(after), [step])

    def _add_partitions(self, ask: AddPartitions, now_ms: int) -> TransactionDecision:
        at = self.transactions.get(ask.transactional_id)
        code = adding.check_add(at, ask, pending=ask.transactional_id in self.pending)
        if at is None or code is not ErrorCode.NONE or adding.contains_all(at, ask):
            return TransactionDecision(Answer(code))
        after = with_partitions(at, ask.partitions, ask.transaction_version, now_ms)
        return TransactionDecision(Answer(code), [_step(ask.transactional_id, at, after)])

    def is_large(self, ask: AddPartitions) -> bool:
        return adding.is_large(self.transactions.get(ask.transactional_id), ask)

    def partitions_after(self, ask: AddPartitions) -> frozenset[TopicPartition]:
        """The partitions of the transaction once those of the request are added."""
        at = self.transactions.get(ask.transactional_id)
        return ask.partitions if at is None else at.partitions | ask.partitions

    def verify(self, ask: VerifyPartitions) -> dict[TopicPartition, ErrorCode]:
        """A code per partition: whether it is part of the open transaction (KIP-890 part 1)."""
        return verify(self.transactions.get(ask.transactional_id), ask)

    def _end(self, ask: EndTransaction, now_ms: int, fresh_id: int | None) -> TransactionDecision:
        at = self.transactions.get(ask.transactional_id)
        found = ending.check(at, ask, pending=ask.transactional_id in self.pending)
        if isinstance(found, ErrorCode):
            return TransactionDecision(Answer(found))
        assert at is not None, "an unknown id has been refused"
        if found is ending.DONE:
            return TransactionDecision(Answer(ErrorCode.NONE, at.producer_id, at.producer_epoch))
        next_id = NO_PRODUCER_ID
        if ending.needs_producer_id(at, ask):
            if fresh_id is None:
                return _NEEDS_PRODUCER_ID
            next_id = fresh_id
        after = decide_outcome(
            at,
            commit=ask.commit,
            client_version=ask.transaction_version,
            next_producer_id=next_id,
            now_ms=now_ms,
        )
        decision = self._prepare(ask.transactional_id, at, after, now_ms)
        # The client continues with these when the markers are written, at the earliest.
        if next_id != NO_PRODUCER_ID:
            decision.answer = Answer(ErrorCode.NONE, next_id, 0)
        else:
            decision.answer = Answer(ErrorCode.NONE, after.producer_id, after.producer_epoch)
        return decision

    # -- markers --------------------------------------------------------------------------

    def _fence(
        self, transactional_id: str, at: Transaction, now_ms: int, fresh_id: int | None
    ) -> TransactionDecision:
        """Abort an open transaction and fence its producer."""
        after = fence_producer(
            at,
            transaction_version=self.settings.transaction_version,
            next_producer_id=NO_PRODUCER_ID if fresh_id is None or not at.exhausted else fresh_id,
            now_ms=now_ms,
        )
        return self._prepare(transactional_id, at, after, now_ms)

    def _prepare(
        self, transactional_id: str, before: Transaction, after: Transaction, now_ms: int
    ) -> TransactionDecision:
        """Store a decided outcome; then send markers, or complete it if none are needed."""
        decision = TransactionDecision(steps=[_step(transactional_id, before, after)])
        if after.partitions:
            decision.effects.append(self._work(transactional_id, after, after.partitions))
        # No marker is needed: both records are appended together.
        else:
            decision.steps.append(
                _step(transactional_id, after, complete_transaction(after, now_ms))
            )
        return decision

    def _work(
        self, transactional_id: str, at: Transaction, partitions: frozenset[TopicPartition]
    ) -> SendMarkers:
        return SendMarkers(
            transactional_id,
            at.producer_id,
            at.producer_epoch,
            at.commits,
            self.coordinator_epoch,
            at.client_version,
            partitions,
        )

    def decide_markers(
        self, work: SendMarkers, results: Mapping[TopicPartition, ErrorCode | None], now_ms: int
    ) -> TransactionDecision:
        """Decide on results of `work`, some or all of its partitions. None: the partition has no
        leader in the metadata, so its topic is gone."""
        decision = TransactionDecision()
        at = self.transactions.get(work.transactional_id)
        remaining = self.pending.get(work.transactional_id)
        # A result may come twice, or from before the coordinator was loaded.
        if at is None or remaining is None:
            return decision
        # Work of an earlier transaction, or of an earlier coordinator epoch: its markers do not end
        # the present one.
        if self._work(work.transactional_id, at, work.partitions) != work:
            return decision
        written: set[TopicPartition] = set()
        failed: set[TopicPartition] = set()
        stopped: set[TopicPartition] = set()
        for partition, code in results.items():
            if partition in remaining:
                done = code is None or code in WRITTEN
                (written if done else stopped if code in FENCED else failed).add(partition)
        if written:
            decision.steps.append(MarkersWritten(work.transactional_id, frozenset(written)))
        # A partition has seen a newer epoch of coordinator or producer: this work is outdated.
        if stopped:
            decision.effects.append(DropMarkers(work, frozenset(stopped)))
        elif failed:
            decision.effects.append(self._work(work.transactional_id, at, frozenset(failed)))
        if written == remaining:
            decision.steps.append(
                _step(work.transactional_id, at, complete_transaction(at, now_ms))
            )
        return decision

    # -- tasks ----------------------------------------------------------------------------

    def timed_out(self, now_ms: int, among: Iterable[str] | None = None) -> list[str]:
        """The ids (of all, or `among` some) whose transaction is open longer than its timeout."""
        return [
            transactional_id
            for transactional_id in (self.transactions if among is None else among)
            if (at := self.transactions.get(transactional_id)) and _is_overdue(at, now_ms)
        ]

    def decide_timeout(
        self, transactional_id: str, now_ms: int, fresh_id: int | None = None
    ) -> TransactionDecision:
        """Abort the transaction of an id if it is overdue, and fence its producer."""
        at = self.transactions.get(transactional_id)
        if at is None or not _is_overdue(at, now_ms):
            return TransactionDecision()
        bumps = self.settings.transaction_version >= EPOCH_BUMPS_FROM
        if bumps and at.exhausted and fresh_id is None:
            return _NEEDS_PRODUCER_ID
        return self._fence(transactional_id, at, now_ms, fresh_id)

    def decide_expiry(self, transactional_ids: Iterable[str], now_ms: int) -> TransactionDecision:
        """Forget those of the ids that no request has changed for
        transactional.id.expiration.ms."""
        oldest_ms = now_ms - self.settings.transactional_id_expiration_ms
        steps: list[Step] = [
            TransactionRecord(transactional_id, None)
            for transactional_id in transactional_ids
            if (at := self.transactions.get(transactional_id)) and _is_expired(at, oldest_ms)
        ]
        return TransactionDecision(steps=steps)

    def decide_resumed(self, transactional_id: str, now_ms: int) -> TransactionDecision:
        """Decide what an id that is in `pending` after loading needs: its markers again, with the
        epoch of this coordinator. To be called once."""
        # Which of them were written before is not known; written twice they are legal. But one sent
        # twice from here may be written after the next transaction has begun, and end that one
        # (transaction version 1).
        at = self.transactions[transactional_id]
        remaining = self.pending[transactional_id]
        if remaining:
            return TransactionDecision(
                effects=[self._work(transactional_id, at, frozenset(remaining))]
            )
        return TransactionDecision(
            steps=[_step(transactional_id, at, complete_transaction(at, now_ms))]
        )

    # -- steps ----------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Make one step true: just decided and appended, or read from the log."""
        if isinstance(step, MarkersWritten):
            self.pending[step.transactional_id] -= step.partitions
            return
        transactional_id, after = step.transactional_id, step.value
        if after is None:
            self.transactions.pop(transactional_id, None)
            self.pending.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = after
        # All partitions: the progress of markers is not in the log.
        if after.state in PREPARED:
            self.pending[transactional_id] = set(after.partitions)
        else:
            self.pending.pop(transactional_id, None)

    def live(self) -> list[tuple[str, Transaction]]:
        """The transactional ids as of now, the contents of the live records."""
        # A list of references, as there may be a hundred thousand; the values are immutable.
        return list(self.transactions.items())


def _step(
    transactional_id: str, before: Transaction | None, after: Transaction
) -> TransactionRecord:
    """The record of a step, which has to be one that the states allow."""
    state = EMPTY if before is None else before.state
    assert may_follow(state, after.state), f"{transactional_id}: {state} -> {after.state}"
    return TransactionRecord(transactional_id, after)


def _is_overdue(at: Transaction, now_ms: int) -> bool:
    return (
        at.state is ONGOING
        and at.timeout_ms != NO_TIMEOUT_MS
        and at.started_ms + at.timeout_ms < now_ms
    )


def _is_expired(at: Transaction, oldest_ms: int) -> bool:
    return at.state in AT_REST and at.updated_ms <= oldest_ms
