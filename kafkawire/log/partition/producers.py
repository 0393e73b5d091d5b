"""State of the idempotent and transactional producers of one partition (Kafka:
ProducerStateManager).

Per producer ID the epoch and the last five batches: enough to answer a retry with the offset of the
original, and to refuse a gap; with transactions also the first offset of the open one and the epoch
of the coordinator that wrote the last marker. Pure: no clock, no I/O. Called by
kafkawire.log.partition.partition and kafkawire.log.recovery.restore; checkpoints carry the state.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from kafkawire.codec.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    CONTROL,
    COUNT,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
)
from kafkawire.codec.control import ABORT, Aborted, ControlContent, TransactionMarker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.partition.transactions import AbortedIndex, PartitionTransactions
from kafkawire.log.partition.verification import (
    NOT_ALLOWED,
    NOT_VERIFIED,
    ONLY_OPEN,
    Guard,
    Guards,
)
from kafkawire.metadata.checkpoint import ProducerEntry

BATCHES_KEPT = 5
"""Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: clients keep at most five in flight."""
SEQUENCE_COUNT = 1 << 31
"""Sequence numbers wrap from 2^31 - 1 to 0."""
LAST_EPOCH = (1 << 15) - 1
"""The epoch no client owns: the coordinator fences with it (Kafka: Short.MAX_VALUE)."""

_EPOCH, _COORDINATOR, _TIME, _OPEN = range(4)
_ROWS = 4  # where the rows begin
_ROW = 4  # first sequence, last sequence, base offset, timestamp
_FULL = _ROWS + _ROW * BATCHES_KEPT

State: TypeAlias = "array[int]"
"""[epoch, coordinator epoch, timestamp of the last transactional batch or marker, first offset of
the open transaction (-1 where there is none); then for each batch, oldest first: first and last
sequence, base offset, timestamp]."""


class ProducerBatch(NamedTuple):
    """Fields of a transactional batch that is appended; `timestamp`: its newest, ms."""

    producer_id: int
    epoch: int
    first: int
    last: int
    timestamp: int


class LastBatch(NamedTuple):
    """The newest batch of an idempotent producer."""

    epoch: int
    last_sequence: int
    base_offset: int


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it (Kafka: ProducerStateManager.activeProducers). -1:
    `last_sequence` after a marker with a new epoch, `coordinator_epoch` before the first marker,
    `open_offset` without an open transaction. `last_timestamp` (ms): the newest of its last
    transactional batch or marker; without transactions the time of its last append."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_offset: int


class _Change(NamedTuple):
    """A transaction that is begun (`marker` -1) or ended by a queued batch."""

    producer_id: int
    first: int
    marker: int = -1
    aborted: bool = False


class Producers:
    """The producers of one partition: `states` as written, `fresh` as queued, `flying` in between.

    `transactions` is None until the first one; `guards`: the questions to the coordinator.
    """

    __slots__ = (
        "_flying_changes", "_fresh_changes", "_guards", "_refusing", "flying", "fresh", "states",
        "transactions",
    )  # fmt: skip

    def __init__(self) -> None:
        # Three stages: written, being written, queued. What is queued counts already, or a retry in
        # the same write batch would be stored twice.
        self.states: dict[int, State] = {}
        self.flying: dict[int, State] = {}
        self.fresh: dict[int, State] = {}
        self.transactions: PartitionTransactions | None = None
        self._guards: Guards | None = None
        self._refusing = False
        self._fresh_changes: list[_Change] = []
        self._flying_changes: list[_Change] = []

    # -- batches without a transaction

    def check(self, producer_id: int, epoch: int, first: int, last: int) -> tuple[int, int] | None:
        """(base offset, timestamp) of a duplicate's original, None for one to be appended.

        Raises OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_PRODUCER_EPOCH as
        ProducerAppendInfo.checkSequence and checkProducerEpoch do, INVALID_TXN_STATE while the
        producer has an open transaction. Hot.
        """
        state = self.fresh.get(producer_id)
        if state is None:
            state = self.flying.get(producer_id) or self.states.get(producer_id)
            if state is None:
                return None  # Kafka accepts any first sequence of a producer it does not know
        # The usual case: the next sequence of the same epoch, outside of a transaction.
        if (
            epoch == state[0]
            and len(state) > _ROWS
            and first == (state[-3] + 1) % SEQUENCE_COUNT
            and state[_OPEN] < 0
        ):
            return None
        # A duplicate before the epoch and sequence are judged: its sequence never follows.
        original = _original(state, epoch, first, last)
        if original is not None:
            return original
        _check_epoch(state, producer_id, epoch)
        _check_sequence(state, producer_id, epoch, first)
        if state[_OPEN] >= 0:
            text = f"producer {producer_id} has an open transaction"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, text)
        return None

    def queue(
        self, producer_id: int, epoch: int, first: int, last: int, base_offset: int, now_ms: int
    ) -> None:
        """Remember a checked batch that is queued. Hot."""
        # Copied once per write batch, so that a failed one can be forgotten.
        state = self.fresh.get(producer_id)
        if state is None:
            state = self._copy_newest(producer_id, epoch)
        _add(state, epoch, first, last, base_offset, now_ms)

    # -- transactions

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has an open transaction of this epoch here: its batches need no
        verification."""
        state = self._latest(producer_id)
        return state is not None and state[_OPEN] >= 0 and state[_EPOCH] == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, adds: bool
    ) -> Guard | None:
        """Return the guard for a transactional batch: the coordinator is to be asked, then the
        batch is appended with the guard. None: the transaction is open here, nothing is asked.

        INVALID_PRODUCER_EPOCH for an epoch below the known one.
        """
        # Of what is queued too: the batch before may have opened it.
        state = self._latest(producer_id)
        if state is not None:
            _check_epoch(state, producer_id, epoch)
            if state[_OPEN] >= 0 and state[_EPOCH] == epoch:
                return None
        if self._guards is None:
            self._guards = Guards()
        return self._guards.get_or_create(producer_id, epoch, sequence, now_ms, adds=adds)

    @property
    def verifying(self) -> bool:
        """Whether a question to the coordinator is not used up."""
        return self._guards is not None and len(self._guards) > 0

    def drop_guard(self, producer_id: int, guard: Guard) -> None:
        """Drop a guard that the coordinator has refused for good."""
        # A marker may have dropped it, and another batch have begun a new one.
        if self._guards is not None and self._guards.find(producer_id) is guard:
            self._guards.use(producer_id)

    def check_transactional(
        self, producer_id: int, epoch: int, first: int, last: int, guard: Guard | None
    ) -> tuple[int, int] | None:
        """As `check`, for a transactional batch; a first sequence of -1 is not checked
        (TxnOffsetCommit). INVALID_TXN_STATE without the guard that the batch needs."""
        if guard is NOT_ALLOWED:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        state = self._latest(producer_id)
        if guard is ONLY_OPEN and not self.is_open(producer_id, epoch):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)
        if state is not None:
            # A duplicate needs no guard: its transaction may have ended since.
            original = _original(state, epoch, first, last) if first >= 0 else None
            if original is not None:
                return original
            _check_epoch(state, producer_id, epoch)
        # It would begin a transaction: only with a guard that no marker has dropped.
        if state is None or state[_OPEN] < 0 or state[_EPOCH] != epoch:
            new = state is None or len(state) == _ROWS
            self._check_guard(producer_id, first, guard, new=new)
        if state is not None and first >= 0:
            _check_sequence(state, producer_id, epoch, first)
        return None

    def _check_guard(self, producer_id: int, first: int, guard: Guard | None, *, new: bool) -> None:
        """`new`: no batch of the producer is known."""
        if self._refusing:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if guard is NOT_VERIFIED:
            return
        known = self._guards.find(producer_id) if self._guards is not None else None
        # The guard of this very question: a later one belongs to another transaction.
        if guard is None or guard is not known:
            text = f"the transaction of producer {producer_id} was not verified or has ended"
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, text)
        # Batches that wait for the same answer may be appended in another order than they came: the
        # lowest sequence goes first.
        if first > guard.lowest_sequence or (guard.adds and new and first > 0):
            text = (
                f"producer {producer_id} sent sequence {first} first, lower ones must come before"
            )
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)

    def refuse_new_transactions(self, *, refuse: bool) -> None:
        """Answer NOT_LEADER_OR_FOLLOWER to batches that begin a transaction here, or accept them
        again."""
        self._refusing = refuse

    @property
    def any_open(self) -> bool:
        """Whether a transaction is open, or will be when what is queued is written."""
        opened = self.transactions is not None and bool(self.transactions.open)
        return opened or any(
            state[_OPEN] >= 0 for queued in (self.fresh, self.flying) for state in queued.values()
        )

    def queue_transactional(self, batch: ProducerBatch, base_offset: int, now_ms: int) -> None:
        """Remember a checked transactional batch that is queued."""
        producer_id, epoch, first, last, timestamp = batch
        state = self.fresh.get(producer_id)
        if state is None:
            state = self._copy_newest(producer_id, epoch)
        if first >= 0:
            _add(state, epoch, first, last, base_offset, now_ms)
        else:
            _raise_epoch(state, epoch)
        state[_TIME] = timestamp
        if state[_OPEN] < 0:
            state[_OPEN] = base_offset
            self._fresh_changes.append(_Change(producer_id, base_offset))
        # Used up: the next transaction needs another answer.
        if self._guards is not None:
            self._guards.use(producer_id)

    def check_marker(self, ending: TransactionMarker) -> None:
        """Raise INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for a marker that must not
        be appended (ProducerAppendInfo.appendEndTxnMarker). Duplicates are appended."""
        state = self._latest(ending.producer_id)
        if state is None:
            return
        known, epoch = state[_EPOCH], ending.epoch
        # Markers are sent again after a restart of the coordinator; LAST_EPOCH is its own.
        repeated = epoch == known and (state[_OPEN] < 0 or epoch == LAST_EPOCH)
        # Under transaction version 2 each transaction raises the epoch: an equal one is old.
        if epoch < known or (ending.version >= 2 and epoch == known and not repeated):
            text = f"producer {ending.producer_id} has epoch {known}, its marker {epoch}"
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        # A coordinator that has been replaced does not end transactions of the new one.
        if ending.coordinator_epoch < state[_COORDINATOR]:
            text = (
                f"the marker of producer {ending.producer_id} has coordinator epoch "
                f"{ending.coordinator_epoch}, the last one {state[_COORDINATOR]}"
            )
            raise KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED, text)

    def queue_marker(self, ending: TransactionMarker, offset: int, now_ms: int) -> None:
        """Remember a checked marker that is queued at `offset`."""
        producer_id = ending.producer_id
        state = self.fresh.get(producer_id)
        if state is None:
            state = self._copy_newest(producer_id, ending.epoch)
        first = _end(state, ending.epoch, ending.coordinator_epoch, now_ms)
        # A marker without an open transaction changes no transaction.
        if first >= 0:
            change = _Change(producer_id, first, offset, ending.kind == ABORT)
            self._fresh_changes.append(change)
        if self._guards is not None:
            self._guards.remove_guard(producer_id, ending.epoch, ending.version)

    def _latest(self, producer_id: int) -> State | None:
        state = self.fresh.get(producer_id)
        if state is None:
            state = self.flying.get(producer_id) or self.states.get(producer_id)
        return state

    def _copy_newest(self, producer_id: int, epoch: int) -> State:
        """A copy of the newest state, to be changed by what is queued; it is in `fresh`."""
        state = self.flying.get(producer_id) or self.states.get(producer_id)
        state = array("q", (epoch, -1, -1, -1)) if state is None else state[:]
        self.fresh[producer_id] = state
        return state

    # -- stages

    def depart(self) -> None:
        """Mark queued batches as in flight; later ones belong to the next write batch."""
        assert not self.flying, "one write batch is written at a time"
        # The empty dictionary of the last write batch is used again.
        self.flying, self.fresh = self.fresh, self.flying
        if self._fresh_changes:
            self._flying_changes, self._fresh_changes = self._fresh_changes, []

    def apply_in_flight(self) -> None:
        """Apply the in-flight batches, which are written."""
        # Written: these are copies of the newest states, so they replace the old ones whole.
        self.states.update(self.flying)
        self.flying.clear()
        if self._flying_changes:
            changes, self._flying_changes = self._flying_changes, []
            self._change(changes)

    def _change(self, changes: Sequence[_Change]) -> None:
        transactions = self._known_transactions()
        for producer_id, first, marker, aborted in changes:
            if marker < 0:
                transactions.open_transaction(producer_id, first)
            else:
                transactions.end_transaction(producer_id, marker, aborted=aborted)

    def _known_transactions(self) -> PartitionTransactions:
        if self.transactions is None:
            self.transactions = PartitionTransactions()
        return self.transactions

    def rollback(self) -> None:
        self.flying.clear()
        self.fresh.clear()
        self._flying_changes.clear()
        self._fresh_changes.clear()

    # -- recovery and checkpoints

    def replay(self, fields: Sequence[int], marker: ControlContent | None = None) -> None:
        """Take a batch that recovery found in the log, in the order of the offsets. It was checked
        when it was appended.

        `fields`: its head (kafkawire.codec.batches.HEAD); `marker`: the content of a control batch.
        """
        base, attributes, newest = fields[BASE_OFFSET], fields[ATTRIBUTES], fields[MAX_TIMESTAMP]
        producer_id, epoch = fields[PRODUCER_ID], fields[PRODUCER_EPOCH]
        first = fields[BASE_SEQUENCE]
        # Markers of a kind that is not known have no effect.
        if producer_id < 0 or (attributes & CONTROL and (marker is None or marker.kind < 0)):
            return
        state = self.states.get(producer_id)
        if state is None:
            # Nothing to know of it: no sequences and no transaction.
            if first < 0 and not attributes & TRANSACTIONAL:
                return
            state = self.states[producer_id] = array("q", (epoch, -1, -1, -1))
        if attributes & CONTROL:
            assert marker is not None, "it was checked above"
            begun = _end(state, epoch, marker.coordinator_epoch, newest)
            if begun >= 0:
                self._change([_Change(producer_id, begun, base, marker.kind == ABORT)])
            return
        if len(state) > _ROWS and base <= state[-2]:
            return  # the checkpoint has it already
        if first >= 0:
            _add(state, epoch, first, last_sequence(first, fields[COUNT]), base, newest)
        if attributes & TRANSACTIONAL:
            _raise_epoch(state, epoch)
            state[_TIME] = newest
            if state[_OPEN] < 0:
                state[_OPEN] = base
                self._change([_Change(producer_id, base)])

    def load(self, entries: Sequence[ProducerEntry]) -> None:
        opened: list[tuple[int, int]] = []
        for entry in entries:
            state = array(
                "q", (entry.epoch, entry.coordinator_epoch, entry.last_timestamp, entry.open_offset)
            )
            for row in entry.batches:
                state.extend(row)
            self.states[entry.producer_id] = state
            if entry.open_offset >= 0:
                opened.append((entry.open_offset, entry.producer_id))
        # In the order of offsets: PartitionTransactions takes its first one as the oldest.
        for first, producer_id in sorted(opened):
            self._known_transactions().open_transaction(producer_id, first)

    def load_aborted(self, entries: Sequence[Aborted]) -> None:
        """Take over the aborted transactions whose markers are in the journals; the caller found
        transactions there, or knows of some."""
        transactions = self._known_transactions()
        transactions.aborted = AbortedIndex.from_entries(entries, transactions.open.values())

    def entries(self) -> list[ProducerEntry]:
        return [
            ProducerEntry(
                producer_id, state[_EPOCH], batches_of(state), state[_COORDINATOR], state[_TIME],
                state[_OPEN],
            )
            for producer_id, state in self.states.items()
        ]  # fmt: skip

    def active(self) -> Iterator[ActiveProducer]:
        """Yield each producer as of what is written."""
        # A copy: others run between two of them, and may forget producers, which are left out.
        for producer_id in tuple(self.states):
            state = self.states.get(producer_id)
            if state is None:
                continue
            known = len(state) > _ROWS
            # Without transactions the time of its last append.
            timestamp = state[_TIME] if state[_TIME] >= 0 or not known else state[-1]
            yield ActiveProducer(
                producer_id, state[_EPOCH], state[-3] if known else -1, timestamp,
                state[_COORDINATOR], state[_OPEN],
            )  # fmt: skip

    def open_since(self, before_ms: int) -> int:
        """Return how many open transactions have no batch with a timestamp from `before_ms` on."""
        opened = self.transactions.open if self.transactions is not None else ()
        return sum(self.states[producer_id][_TIME] < before_ms for producer_id in opened)

    def next_sequence(self, producer_id: int) -> int | None:
        """Return the sequence number that follows the last batch of a producer, None if no batch
        of it is known."""
        state = self._latest(producer_id)
        if state is None or len(state) == _ROWS:
            return None
        return (state[-3] + 1) % SEQUENCE_COUNT

    def find_last(self, producer_id: int) -> LastBatch | None:
        """Return the last batch of a producer, also one that is queued; None if no batch of it is
        known."""
        state = self._latest(producer_id)
        if state is None or len(state) == _ROWS:
            return None
        return LastBatch(state[_EPOCH], state[-3], state[-2])

    def expire(self, before_ms: int) -> list[int]:
        """Forget the producers that were idle since `before_ms` and have no open transaction;
        their IDs. Guards that are older are dropped too."""
        if self._guards is not None:
            self._guards.expire(before_ms)
        old = [
            producer_id
            for producer_id, state in self.states.items()
            # An open transaction needs its producer to be ended.
            if state[_OPEN] < 0
            and (state[-1] if len(state) > _ROWS else state[_TIME]) < before_ms
            # Batches in the current write batch refer to it.
            and producer_id not in self.fresh
            and producer_id not in self.flying
        ]
        for producer_id in old:
            del self.states[producer_id]
        return old


def last_sequence(first: int, count: int) -> int:
    """The sequence number of the last of `count` records."""
    return (first + count - 1) % SEQUENCE_COUNT


def batches_of(state: State) -> list[tuple[int, int, int, int]]:
    """(first sequence, last sequence, base offset, timestamp) of each batch, oldest first."""
    return [
        (state[at], state[at + 1], state[at + 2], state[at + 3])
        for at in range(_ROWS, len(state), _ROW)
    ]


def _original(state: State, epoch: int, first: int, last: int) -> tuple[int, int] | None:
    """(base offset, timestamp) of the known batch with these sequences."""
    if epoch == state[_EPOCH]:
        for at in range(_ROWS, len(state), _ROW):
            if state[at] == first and state[at + 1] == last:
                return state[at + 2], state[at + 3]
    return None


def _check_epoch(state: State, producer_id: int, epoch: int) -> None:
    known = state[_EPOCH]
    if epoch < known:
        text = f"producer {producer_id} has epoch {known}, not {epoch}"
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)


def _check_sequence(state: State, producer_id: int, epoch: int, first: int) -> None:
    known = len(state) > _ROWS
    # A new epoch starts with sequence 0, and so does a producer after a marker.
    if epoch != state[_EPOCH] or not known:
        if first and (epoch != state[_EPOCH] or state[_TIME] >= 0):
            text = f"producer {producer_id} starts epoch {epoch} with sequence {first}, not 0"
            raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
    elif first != (state[-3] + 1) % SEQUENCE_COUNT:
        text = f"producer {producer_id} sent sequence {first}, after {state[-3]}"
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)


def _raise_epoch(state: State, epoch: int) -> None:
    """Sequences start again with each epoch."""
    if state[_EPOCH] != epoch:
        del state[_ROWS:]
        state[_EPOCH] = epoch


def _end(state: State, epoch: int, coordinator_epoch: int, when_ms: int) -> int:
    """Enter a marker; the first offset of the transaction that it ended, or -1."""
    _raise_epoch(state, epoch)
    state[_COORDINATOR] = coordinator_epoch
    state[_TIME] = when_ms
    first, state[_OPEN] = state[_OPEN], -1
    return first


def _add(state: State, epoch: int, first: int, last: int, base_offset: int, when_ms: int) -> None:
    if state[0] != epoch:
        del state[_ROWS:]  # sequences start again with each epoch
        state[0] = epoch
    elif len(state) == _FULL:
        # The oldest of five: clients keep at most five in flight.
        del state[_ROWS : _ROWS + _ROW]
    state.extend((first, last, base_offset, when_ms))
