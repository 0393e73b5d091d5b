"""The state of a schedule partition, as the records of `__schedule_state` have it. Pure.

A record has everything: the key names the partition, the newest value of a key counts. Formats:
`ScheduleStateKey` and `ScheduleStateValue` of kafkawire.messages.stored, with their version first.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kafkawire.codec.compile import decode_versioned, encode_versioned
from kafkawire.codec.types import Buffer
from kafkawire.messages.stored import (
    ScheduleCorner,
    ScheduleDelivery,
    ScheduleHeld,
    ScheduleStateKey,
    ScheduleStateValue,
)
from kafkawire.schedules.progress import Corner, Due, Progress

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
    """Return the key and value of a record of `__schedule_state`."""
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
