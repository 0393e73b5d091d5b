"""The share partitions of one partition of `__share_group_state`, and the requests about them.

| request | changes |
|---|---|
| Initialize | a snapshot with the start offset, whatever was stored before |
| Read | an update with the reader's leader epoch, if that is new: it fences earlier leaders |
| Write | an update with the batches that changed; after many updates a snapshot |
| Delete | a tombstone |
| Summary | nothing |

`decide` changes nothing; `apply` is the only mutator, the same for records just appended and for
those that are loaded. Checks and texts are those of Kafka's ShareCoordinatorShard. Pure: no clock
(the caller passes the time), no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.types import ZERO_UUID
from kafkawire.share.persister import UNKNOWN_COUNT, UNSET_OFFSET, SharePartitionKey, StateBatch
from kafkawire.share.state.batches import merge_batches
from kafkawire.share.state.records import (
    ShareStateRecord,
    StateSnapshot,
    StateUpdate,
    StoredShareState,
    fits,
)

NO_OFFSET = -1
"""The offset of a record that was not read from the log."""
MAX_BATCHES = 10_000
"""The most batches of one write: as many offsets of a share partition can be in flight."""


class StateTopics(Protocol):
    """The topics of the cluster."""

    def topic_name(self, topic_id: bytes) -> str | None: ...
    def topic_size(self, name: str) -> int | None: ...


class StateSettings(Protocol):
    """The settings of share coordinators."""

    @property
    def share_coordinator_snapshot_update_records_per_snapshot(self) -> int: ...


class InitializeState(NamedTuple):
    """Begin the state of a share partition."""

    key: SharePartitionKey
    state_epoch: int
    start_offset: int


class ReadState(NamedTuple):
    """Read a state, for a leader of the partition."""

    key: SharePartitionKey
    leader_epoch: int


class WriteState(NamedTuple):
    """Store what changed in a state."""

    key: SharePartitionKey
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class DeleteState(NamedTuple):
    """Delete a state."""

    key: SharePartitionKey


class ReadSummary(NamedTuple):
    """Read a state without its batches."""

    key: SharePartitionKey


StateRequest = InitializeState | ReadState | WriteState | DeleteState | ReadSummary


class StateAnswer(NamedTuple):
    """The result of a request. `state`: of ReadState and ReadSummary."""

    code: ErrorCode
    message: str | None = None
    state: StoredShareState | None = None


class StateDecision(NamedTuple):
    """The answer of a request, and the record to append before it; None: nothing changes."""

    answer: StateAnswer
    record: ShareStateRecord | None = None


@dataclass(slots=True)
class _Stored:
    """A share partition. `leader_epoch` and `state_epoch`: the highest ever seen; `updates`: since
    the last snapshot, whose offset in the log is `offset`."""

    state: StoredShareState
    leader_epoch: int
    state_epoch: int
    updates: int
    offset: int


OK = StateAnswer(ErrorCode.NONE)
UNINITIALIZED = StoredShareState(state_epoch=0)
"""The summary of a share partition without a state."""


class StateShard:
    """The share partitions of one coordinator. `partitions` and `of_topic` are public for reading;
    only `apply` changes them."""

    __slots__ = ("_settings", "_topics", "of_topic", "partitions")

    def __init__(self, settings: StateSettings, topics: StateTopics) -> None:
        self._settings = settings
        self._topics = topics
        self.partitions: dict[SharePartitionKey, _Stored] = {}
        self.of_topic: dict[bytes, set[SharePartitionKey]] = {}

    # -- decisions ------------------------------------------------------------------------

    def decide(self, request: StateRequest, now_ms: int) -> StateDecision:
        """Decide on one request. Changes nothing."""
        try:
            if isinstance(request, WriteState):
                return self._write(request, now_ms)
            if isinstance(request, ReadState):
                return self._read(request, now_ms)
            if isinstance(request, InitializeState):
                return self._initialize(request, now_ms)
            if isinstance(request, DeleteState):
                return self._delete(request)
            return self._summarize(request)
        except KafkaError as error:
            return StateDecision(StateAnswer(error.code, error.message))

    def _initialize(self, request: InitializeState, now_ms: int) -> StateDecision:
        key = request.key
        _check_key(key)
        _check_epoch(request.state_epoch, "state")
        stored = self.partitions.get(key)
        if stored is not None and stored.state_epoch > request.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_topic(key)
        unset = request.start_offset == UNSET_OFFSET
        state = StoredShareState(
            state_epoch=request.state_epoch,
            start_offset=request.start_offset,
            snapshot_epoch=0 if stored is None else stored.state.snapshot_epoch + 1,
            # Kafka writes 0, and forgets the fence once the records before are deleted.
            leader_epoch=0 if stored is None else stored.leader_epoch,
            # Of an unset start offset the lag is not known.
            delivery_complete_count=UNKNOWN_COUNT if unset else 0,
            created_ms=now_ms,
            written_ms=now_ms,
        )
        return StateDecision(OK, StateSnapshot(key, state))

    def _read(self, request: ReadState, now_ms: int) -> StateDecision:
        key = request.key
        _check_key(key)
        _check_epoch(request.leader_epoch, "leader")
        stored = self._find(key, "Read")
        if stored.leader_epoch > request.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        self._check_topic(key)
        state = stored.state
        answer = StateAnswer(ErrorCode.NONE, None, state)
        if stored.leader_epoch == request.leader_epoch:
            return StateDecision(answer)
        record = self._change(
            stored, key, state.start_offset, state.delivery_complete_count, (), now_ms,
            request.leader_epoch,
        )  # fmt: skip
        return StateDecision(answer, record)

    def _write(self, request: WriteState, now_ms: int) -> StateDecision:
        key = request.key
        _check_key(key)
        _check_epoch(request.leader_epoch, "leader")
        _check_epoch(request.state_epoch, "state")
        stored = self._find(key, "Write")
        if stored.leader_epoch > request.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        if stored.state_epoch > request.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        self._check_topic(key)
        _check_batches(request.batches)
        state = stored.state
        count = request.delivery_complete_count
        # Counted from another start offset, a number says nothing about this one.
        if request.start_offset < state.start_offset:
            count = state.delivery_complete_count
        elif request.start_offset == state.start_offset:
            count = max(count, state.delivery_complete_count)
        start_offset = max(request.start_offset, state.start_offset)
        record = self._change(stored, key, start_offset, count, request.batches, now_ms)
        return StateDecision(OK, record)

    def _change(
        self,
        stored: _Stored,
        key: SharePartitionKey,
        start_offset: int,
        count: int,
        batches: tuple[StateBatch, ...],
        now_ms: int,
        leader_epoch: int | None = None,
    ) -> ShareStateRecord:
        """Return the record of a change: a snapshot after many updates, else an update."""
        state = stored.state
        epoch = stored.leader_epoch if leader_epoch is None else leader_epoch
        if stored.updates >= self._settings.share_coordinator_snapshot_update_records_per_snapshot:
            after = StoredShareState(
                state_epoch=state.state_epoch,
                start_offset=start_offset,
                snapshot_epoch=state.snapshot_epoch + 1,
                leader_epoch=epoch,
                delivery_complete_count=count,
                batches=merge_batches(state.batches, batches, start_offset),
                created_ms=now_ms,
                written_ms=now_ms,
            )
            return StateSnapshot(key, after)
        changed = merge_batches((), batches, start_offset)
        return StateUpdate(key, state.snapshot_epoch, epoch, start_offset, count, changed)

    def _delete(self, request: DeleteState) -> StateDecision:
        _check_key(request.key)
        self._check_topic(request.key)
        # Deleting it again is no error: the answer of the first time may have been lost.
        if request.key not in self.partitions:
            return StateDecision(OK)
        return StateDecision(OK, StateSnapshot(request.key, None))

    def _summarize(self, request: ReadSummary) -> StateDecision:
        _check_key(request.key)
        self._check_topic(request.key)
        stored = self.partitions.get(request.key)
        state = UNINITIALIZED if stored is None else stored.state
        return StateDecision(StateAnswer(ErrorCode.NONE, None, state))

    def _find(self, key: SharePartitionKey, what: str) -> _Stored:
        stored = self.partitions.get(key)
        if stored is None:
            text = f"{what} operation on uninitialized share partition not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        return stored

    def _check_topic(self, key: SharePartitionKey) -> None:
        name = self._topics.topic_name(key.topic_id)
        size = None if name is None else self._topics.topic_size(name)
        if size is None or key.partition >= size:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def decide_deletions(self, topic_ids: Iterable[bytes]) -> list[ShareStateRecord]:
        """Return the tombstones of the states of deleted topics."""
        return [
            StateSnapshot(key, None)
            for topic_id in topic_ids
            for key in sorted(self.of_topic.get(topic_id, ()))
        ]

    def list_deleted_topics(self) -> list[bytes]:
        """Return the topics with states that do not exist any more."""
        return [each for each in self.of_topic if self._topics.topic_name(each) is None]

    def decide_cold(self, now_ms: int, interval_ms: int) -> list[ShareStateRecord]:
        """Return snapshots of states that were not written for `interval_ms`, so that the log
        before them is not needed any more. None while no state changes at all: each run would write
        all of them again."""
        if not any(map(_is_warm, self.partitions.values())):
            return []
        return [
            StateSnapshot(key, _rewrite(stored, now_ms))
            for key, stored in self.partitions.items()
            if now_ms - stored.state.written_ms >= interval_ms
        ]

    # -- the only mutator -----------------------------------------------------------------

    def apply(self, record: ShareStateRecord, offset: int = NO_OFFSET) -> None:
        """Apply a record that is at `offset` of the log."""
        key = record.key
        stored = self.partitions.get(key)
        if isinstance(record, StateUpdate):
            # Its snapshot is damaged: what is known of the state is this change.
            if stored is None:
                stored = self._add(key, StoredShareState(state_epoch=0), offset)
            stored.leader_epoch = max(stored.leader_epoch, record.leader_epoch)
            stored.updates += 1
            stored.state = _merge(stored.state, record)
        elif record.state is None:
            if stored is not None:
                del self.partitions[key]
                keys = self.of_topic[key.topic_id]
                keys.discard(key)
                if not keys:
                    del self.of_topic[key.topic_id]
        elif stored is None:
            self._add(key, record.state, offset)
        else:
            stored.leader_epoch = max(stored.leader_epoch, record.state.leader_epoch)
            stored.state_epoch = max(stored.state_epoch, record.state.state_epoch)
            stored.state = record.state
            stored.updates = 0
            stored.offset = offset

    def _add(self, key: SharePartitionKey, state: StoredShareState, offset: int) -> _Stored:
        stored = _Stored(state, state.leader_epoch, state.state_epoch, 0, offset)
        self.partitions[key] = stored
        self.of_topic.setdefault(key.topic_id, set()).add(key)
        return stored

    # -- queries --------------------------------------------------------------------------

    def first_needed(self, end: int) -> int:
        """Return the offset below which no record of the log is needed; `end`: of the log."""
        return min((stored.offset for stored in self.partitions.values()), default=end)

    def records(self) -> Iterator[ShareStateRecord]:
        """Yield the records that would load the current state; it may change between two of
        them."""
        for key, stored in list(self.partitions.items()):
            state = stored.state
            # A fence can be of records that are deleted by then.
            yield StateSnapshot(key, replace(state, leader_epoch=stored.leader_epoch))


def _merge(state: StoredShareState, update: StateUpdate) -> StoredShareState:
    start = state.start_offset if update.start_offset == UNSET_OFFSET else update.start_offset
    return replace(
        state,
        start_offset=start,
        leader_epoch=update.leader_epoch,
        delivery_complete_count=update.delivery_complete_count,
        batches=merge_batches(state.batches, update.batches, start),
    )


def _is_warm(stored: _Stored) -> bool:
    return stored.updates > 0 or stored.state.created_ms == stored.state.written_ms


def _rewrite(stored: _Stored, now_ms: int) -> StoredShareState:
    return replace(
        stored.state,
        snapshot_epoch=stored.state.snapshot_epoch + 1,
        leader_epoch=stored.leader_epoch,
        written_ms=now_ms,
    )


def _check_key(key: SharePartitionKey) -> None:
    if key.topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The topic id cannot be null.")
    if key.partition < 0:
        text = "The partition id cannot be a negative number."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if not fits(key.group_id):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The group id is too long.")


def _check_epoch(epoch: int, whose: str) -> None:
    if epoch < 0:
        text = f"The {whose} epoch cannot be a negative number."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _check_batches(batches: tuple[StateBatch, ...]) -> None:
    if len(batches) > MAX_BATCHES:
        text = f"A write can have at most {MAX_BATCHES} state batches."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    for batch in batches:
        if not 0 <= batch.first <= batch.last:
            text = f"Offsets {batch.first} to {batch.last} are no state batch."
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
