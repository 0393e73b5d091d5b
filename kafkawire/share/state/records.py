"""The records of `__share_group_state`: what they mean here, and their bytes as Kafka has them.

A key begins with its type, 0 for a snapshot (the whole state of a share partition) and 1 for an
update (what changed since), and a value with its version, int16 each. A snapshot without a value is
a tombstone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafkawire.codec.compile import decode_versioned, encode_versioned, version_of
from kafkawire.codec.types import Buffer, DecodeError
from kafkawire.messages.stored import (
    ShareSnapshotValue,
    ShareStateBatch,
    ShareStateKey,
    ShareUpdateValue,
)
from kafkawire.share.persister import UNKNOWN_COUNT, UNSET_OFFSET, SharePartitionKey, StateBatch

SNAPSHOT, UPDATE = 0, 1
VERSION = 0

STRING_BYTES = 32_767
"""Maximum length of a group id in a record: its length is an int16, and flexible requests can have
longer ones."""


@dataclass(frozen=True, slots=True)
class StoredShareState:
    """The state of a share partition. `snapshot_epoch` counts its snapshots; `created_ms` and
    `written_ms` are those of the last one, and differ if it only repeats the one before."""

    state_epoch: int
    start_offset: int = UNSET_OFFSET
    snapshot_epoch: int = 0
    leader_epoch: int = 0
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = 0
    written_ms: int = 0


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state of a share partition; None: it has none any more."""

    key: SharePartitionKey
    state: StoredShareState | None


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """A change of the state of a share partition: `batches` to merge, new values of others."""

    key: SharePartitionKey
    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


ShareStateRecord = StateSnapshot | StateUpdate


def fits(group_id: str) -> bool:
    """Return whether a record can have this group id."""
    return len(group_id) * 4 <= STRING_BYTES or len(group_id.encode()) <= STRING_BYTES


def encode_record(record: ShareStateRecord) -> tuple[bytes, bytes | None]:
    key = ShareStateKey(*record.key)
    if isinstance(record, StateUpdate):
        value = ShareUpdateValue(
            snapshot_epoch=record.snapshot_epoch,
            leader_epoch=record.leader_epoch,
            start_offset=record.start_offset,
            delivery_complete_count=record.delivery_complete_count,
            state_batches=_store(record.batches),
        )
        return encode_versioned(key, UPDATE), encode_versioned(value, VERSION)
    state = record.state
    if state is None:
        return encode_versioned(key, SNAPSHOT), None
    snapshot = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=_store(state.batches),
    )
    return encode_versioned(key, SNAPSHOT), encode_versioned(snapshot, VERSION)


def decode_record(key: Buffer | None, value: Buffer | None) -> ShareStateRecord | None:
    """Return the record; None for one of an unknown type, or an update without a value. Raises
    DecodeError."""
    if key is None:
        raise DecodeError("a record of __share_group_state has no key")
    kind = version_of(key)
    if kind not in (SNAPSHOT, UPDATE):
        return None
    named = decode_versioned(ShareStateKey, key)
    where = SharePartitionKey(named.group, bytes(named.topic_id), named.partition)
    if kind == UPDATE:
        return None if value is None else _decode_update(where, value)
    if value is None:
        return StateSnapshot(where, None)
    stored = decode_versioned(ShareSnapshotValue, value)
    state = StoredShareState(
        state_epoch=stored.state_epoch,
        start_offset=stored.start_offset,
        snapshot_epoch=stored.snapshot_epoch,
        leader_epoch=stored.leader_epoch,
        delivery_complete_count=stored.delivery_complete_count,
        batches=_restore(stored.state_batches),
        created_ms=stored.create_timestamp,
        written_ms=stored.write_timestamp,
    )
    return StateSnapshot(where, state)


def compile_records() -> None:
    """Compile the codecs of all records; in any thread."""
    key = SharePartitionKey("", bytes(16), 0)
    for record in (StateSnapshot(key, StoredShareState(0)), StateUpdate(key, 0, 0, 0, 0, ())):
        decode_record(*encode_record(record))


def _decode_update(key: SharePartitionKey, value: Buffer) -> StateUpdate:
    stored = decode_versioned(ShareUpdateValue, value)
    return StateUpdate(
        key,
        stored.snapshot_epoch,
        stored.leader_epoch,
        stored.start_offset,
        stored.delivery_complete_count,
        _restore(stored.state_batches),
    )


def _store(batches: Iterable[StateBatch]) -> list[ShareStateBatch]:
    return [ShareStateBatch(*batch) for batch in batches]


def _restore(stored: Iterable[ShareStateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in stored
    )
