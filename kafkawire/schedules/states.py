"""The states of schedule partitions in one partition of `__schedule_state`: loading and appending.

A state is appended and applied at once. If a commit fails, all states are loaded again from
committed records, and the deliverers begin again with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkawire.codec.batches import BatchHead
from kafkawire.codec.compile import decode_versioned, encode_versioned
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import Buffer
from kafkawire.coordination import snapshot
from kafkawire.coordination.appender import RecordAppender
from kafkawire.coordination.batches import batches_of
from kafkawire.coordination.coordinator import (
    CoordinatorPhase,
    EncodeSnapshot,
    PartitionCoordinator,
)
from kafkawire.coordination.loader import PartitionLoader
from kafkawire.coordination.snapshot import Contents, PendingPair, SnapshotLocation
from kafkawire.log.io.ports import Env
from kafkawire.messages.stored import (
    ScheduleCorner,
    ScheduleDelivery,
    ScheduleHeld,
    ScheduleStateKey,
    ScheduleStateValue,
)
from kafkawire.schedules.progress import Corner, Due, Progress

if TYPE_CHECKING:
    from kafkawire.log.append.commit_log import CommitLog
    from kafkawire.log.partition.partition import Partition

logger = logging.getLogger(__name__)


# The state of a schedule partition, as the records of `__schedule_state` have it. Pure.
#
# A record has everything: the key names the partition, the newest value of a key counts. Formats:
# `ScheduleStateKey` and `ScheduleStateValue` of kafkawire.messages.stored, with their version
# first.


VERSION = 0

ScheduleKey: TypeAlias = tuple[bytes, int]
"""Topic id and index of a schedule partition."""


class PlannedBatch(NamedTuple):
    """A batch of a step of delivery: records (due time, offset) of the schedule partition, for a
    partition of the target, whose first record has this sequence number."""

    topic_id: bytes
    partition: int
    base_sequence: int
    entries: tuple[Due, ...]


class ScheduleState(NamedTuple):
    """The state after a step that is decided: `batches` are appended after it. `held`: records that
    are covered by `progress`, but wait for their target."""

    producer_id: int
    producer_epoch: int = 0
    progress: Progress = Progress()
    held: tuple[Due, ...] = ()
    batches: tuple[PlannedBatch, ...] = ()


class StateRecord(NamedTuple):
    """A state that is stored under its key; None: the schedule partition is gone."""

    key: ScheduleKey
    state: ScheduleState | None


def encode_record(record: StateRecord) -> tuple[bytes, bytes | None]:
    key = encode_versioned(ScheduleStateKey(*record.key), VERSION)
    state = record.state
    if state is None:
        return key, None
    value = ScheduleStateValue(
        state.producer_id,
        state.producer_epoch,
        [ScheduleCorner(*corner) for corner in state.progress.corners],
        [ScheduleHeld(*due) for due in state.held],
        [
            ScheduleDelivery(
                batch.topic_id,
                batch.partition,
                batch.base_sequence,
                [offset for _, offset in batch.entries],
                [due_ms for due_ms, _ in batch.entries],
            )
            for batch in state.batches
        ],
    )
    return key, encode_versioned(value, VERSION)


def decode_record(key: Buffer | None, value: Buffer | None) -> StateRecord | None:
    """Return the state of a record; None for a record without a key. Raises DecodeError."""
    if key is None:
        return None
    named = decode_versioned(ScheduleStateKey, key)
    where = bytes(named.topic_id), named.partition
    if value is None:
        return StateRecord(where, None)
    stored = decode_versioned(ScheduleStateValue, value)
    corners = tuple(Corner(each.end, each.due_ms, each.offset) for each in stored.corners)
    batches = tuple(
        PlannedBatch(
            bytes(each.topic_id),
            each.partition,
            each.base_sequence,
            tuple(zip(each.due_ms, each.offsets, strict=False)),
        )
        for each in stored.deliveries
    )
    held = tuple((each.due_ms, each.offset) for each in stored.held)
    state = ScheduleState(
        stored.producer_id, stored.producer_epoch, Progress(corners), held, batches
    )
    return StateRecord(where, state)


SNAPSHOT_MAGIC = b"KWSCHEDU"


class StateAppender(RecordAppender[StateRecord]):
    """Appends states to one partition of `__schedule_state`."""

    def encode(self, records: Sequence[StateRecord], now_ms: int) -> list[bytearray]:
        pairs = [encode_record(record) for record in records]
        return batches_of(pairs, self.partition.config.max_message_bytes, now_ms)

    def names_of(self, records: Sequence[StateRecord]) -> str:
        return ", ".join(f"{topic_id.hex()}-{index}" for (topic_id, index), _ in records)

    def error_of(self, code: ErrorCode) -> ErrorCode:
        """Return the error as it is: no client gets it."""
        return code


class StateLoader(PartitionLoader):
    """The states of one partition while they are loaded."""

    contents = "schedules"
    slice_records = 100

    def __init__(
        self, env: Env, partition: Partition, commit_log: CommitLog, place: SnapshotLocation
    ) -> None:
        super().__init__(env, partition, commit_log, place)
        self.states: dict[ScheduleKey, ScheduleState] = {}

    def apply_record(self, key: Buffer | None, value: Buffer | None, producer_id: int) -> None:
        record = decode_record(key, value)
        if record is None:
            return
        if record.state is None:
            self.states.pop(record.key, None)
        else:
            self.states[record.key] = record.state

    def take_pending(self, stored: PendingPair) -> None:
        """Ignore pending offsets: only groups have them."""

    def take_marker(self, buffer: Buffer, position: int, head: BatchHead) -> None:
        """Ignore control batches: only groups have them in their log."""

    async def pass_damage(self, first: int, end: int) -> None:
        """Log that states may be lost: a schedule partition whose newest state was there delivers
        again what was delivered since the state before."""
        logger.critical(
            "%s-%d: offsets %d-%d are damaged: schedules whose newest state was there may deliver "
            "records again; compare the kafkawire-scheduled-from headers in their target topics",
            self.partition.topic, self.partition.index, first, end - 1,
        )  # fmt: skip


class StateCoordinator(PartitionCoordinator[StateLoader]):
    """The states of the schedule partitions of one partition of `__schedule_state`. `loaded` is
    called when they are there, `lost` when they are not usable any more."""

    contents = "schedules"

    def __init__(
        self,
        env: Env,
        partition: Partition,
        commit_log: CommitLog,
        folder: str,
        loaded: Callable[[StateCoordinator], None],
        lost: Callable[[StateCoordinator], None],
    ) -> None:
        self.appender = StateAppender(partition)
        place = SnapshotLocation(
            folder, partition.topic_id, partition.index, SNAPSHOT_MAGIC, "schedules"
        )
        super().__init__(env, partition, commit_log, place, self.appender)
        self._states: dict[ScheduleKey, ScheduleState] = {}
        self._loaded = loaded
        self._lost = lost

    def get(self, key: ScheduleKey) -> ScheduleState | None:
        return self._states.get(key)

    def store(self, key: ScheduleKey, state: ScheduleState | None) -> ErrorCode | None:
        """Append a state and apply it; None: remove it. Return the error if none was appended."""
        # What the caller appends next, after `Partition.begin_frame`, follows it in the log, so
        # that no crash keeps a delivery without its plan.
        if self.phase is not CoordinatorPhase.ACTIVE:
            return ErrorCode(self.phase.value)
        failure = self.appender.append([StateRecord(key, state)], self.env.clock.now_ms())
        if failure is not None:
            return failure
        if state is None:
            self._states.pop(key, None)
        else:
            self._states[key] = state
        self.commits.release([], appended=True)
        return None

    def new_loader(self) -> StateLoader:
        return StateLoader(self.env, self.partition, self.commit_log, self.place)

    def activate(self, loaded: StateLoader) -> None:
        self._states = loaded.states
        self._loaded(self)

    def discard(self) -> None:
        self._states = {}
        self._lost(self)

    def capture(self) -> EncodeSnapshot | None:
        # A copy: there are as many states as schedule partitions, so few.
        return partial(self._encode_states, self.appender.next_offset, dict(self._states))

    async def _encode_states(
        self, next_offset: int, states: dict[ScheduleKey, ScheduleState]
    ) -> Contents:
        pairs: list[snapshot.Pair] = []
        for key, state in states.items():
            name, value = encode_record(StateRecord(key, state))
            assert value is not None, "a state has a value"
            pairs.append((name, value))
            await self.env.slices.give_way()
        return Contents(next_offset, pairs, [])
