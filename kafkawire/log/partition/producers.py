"""State of the idempotent producers of one partition (Kafka: ProducerStateManager).

For each producer id the epoch and the last five batches: enough to answer a retry with the offset
of the original, and to refuse a gap. Pure. A queued batch counts already, or a retry in the same
write batch would be stored twice; `rollback` forgets those of a write batch that failed. Called by
kafkawire.log.partition.partition and kafkawire.log.recovery.recover; checkpoints contain the state.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.metadata.checkpoint import ProducerEntry

BATCHES_KEPT = 5
"""Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: clients keep at most five in flight."""
SEQUENCE_COUNT = 1 << 31
"""Sequence numbers wrap from 2^31 - 1 to 0."""

_ROW = 4  # first sequence, last sequence, base offset, timestamp
_FULL = 1 + _ROW * BATCHES_KEPT

State: TypeAlias = "array[int]"
"""[epoch, then for each batch, oldest first: first and last sequence, base offset, timestamp]."""


class Producers:
    """The producers of one partition: `states` as written, `flying` as being written, `fresh` as
    queued."""

    __slots__ = ("flying", "fresh", "states")

    def __init__(self) -> None:
        self.states: dict[int, State] = {}
        self.flying: dict[int, State] = {}
        self.fresh: dict[int, State] = {}

    def check(self, producer_id: int, epoch: int, first: int, last: int) -> tuple[int, int] | None:
        """Return (base offset, timestamp) of a duplicate's original, None for a batch to be
        appended.

        Raises OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_PRODUCER_EPOCH as
        ProducerAppendInfo.checkSequence and checkProducerEpoch do.
        """
        state = self.fresh.get(producer_id)
        if state is None:
            state = self.flying.get(producer_id) or self.states.get(producer_id)
            if state is None:
                return None  # Kafka accepts any first sequence of a producer it does not know
        known = state[0]
        if epoch == known:
            if len(state) == 1 or first == (state[-3] + 1) % SEQUENCE_COUNT:
                return None
            for at in range(1, len(state), _ROW):
                if state[at] == first and state[at + 1] == last:
                    return state[at + 2], state[at + 3]
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {first}, after {state[-3]}",
            )
        if epoch < known:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {known}, not {epoch}",
            )
        if first != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} starts epoch {epoch} with sequence {first}, not 0",
            )
        return None

    def queue(
        self, producer_id: int, epoch: int, first: int, last: int, base_offset: int, now_ms: int
    ) -> None:
        """Remember a checked batch that is queued."""
        state = self.fresh.get(producer_id)
        if state is None:
            state = self.flying.get(producer_id) or self.states.get(producer_id)
            state = array("q", (epoch,)) if state is None else state[:]
            self.fresh[producer_id] = state
        _add(state, epoch, first, last, base_offset, now_ms)

    def depart(self) -> None:
        """Mark queued batches as in flight; later ones belong to the next write batch."""
        assert not self.flying, "one write batch is written at a time"
        self.flying, self.fresh = self.fresh, self.flying

    def apply(self) -> None:
        """Apply the in-flight batches, which are written."""
        self.states.update(self.flying)
        self.flying.clear()

    def rollback(self) -> None:
        """Forget queued and in-flight batches, which were not written."""
        self.flying.clear()
        self.fresh.clear()

    def replay(
        self, producer_id: int, epoch: int, first: int, last: int, base_offset: int, when_ms: int
    ) -> None:
        """Add a batch found in the log by recovery; it was checked when it was appended."""
        state = self.states.get(producer_id)
        if state is None:
            state = self.states[producer_id] = array("q", (epoch,))
        elif len(state) > 1 and base_offset <= state[-2]:
            return  # the checkpoint has it already
        _add(state, epoch, first, last, base_offset, when_ms)

    def load(self, entries: list[ProducerEntry]) -> None:
        """Take over a checkpoint's entries."""
        for entry in entries:
            state = array("q", (entry.epoch,))
            for row in entry.batches:
                state.extend(row)
            self.states[entry.producer_id] = state

    def entries(self) -> list[ProducerEntry]:
        """Return the state as stored in checkpoints."""
        return [
            ProducerEntry(producer_id, state[0], batches_of(state))
            for producer_id, state in self.states.items()
        ]

    def expire(self, before_ms: int) -> list[int]:
        """Forget the producers that were idle since `before_ms`; return their ids."""
        old = [
            producer_id
            for producer_id, state in self.states.items()
            if (len(state) == 1 or state[-1] < before_ms)
            and producer_id not in self.fresh
            and producer_id not in self.flying
        ]
        for producer_id in old:
            del self.states[producer_id]
        return old


def last_sequence(first: int, count: int) -> int:
    """Return the sequence number of the last of `count` records."""
    return (first + count - 1) % SEQUENCE_COUNT


def batches_of(state: State) -> list[tuple[int, int, int, int]]:
    """(first sequence, last sequence, base offset, timestamp) of each batch, oldest first."""
    return [
        (state[at], state[at + 1], state[at + 2], state[at + 3])
        for at in range(1, len(state), _ROW)
    ]


def _add(state: State, epoch: int, first: int, last: int, base_offset: int, when_ms: int) -> None:
    if state[0] != epoch:
        del state[1:]  # sequences start again with each epoch
        state[0] = epoch
    elif len(state) == _FULL:
        del state[1 : 1 + _ROW]
    state.extend((first, last, base_offset, when_ms))
