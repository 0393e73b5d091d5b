"""The layout of offsets in an ordered key-value store: keys and values as bytes.

Used by `kv.storage`. Keys sort by their bytes, so the rows of a partition are adjacent and its
mappings in offset order; numbers in keys are big-endian.

    v                              format version
    c                              number of the last transaction (`kv.transaction_count`)
    n                              the next segment id
    l | u32 node                   the log position of a broker's checkpoint
    p | u64 number | 0             checkpoint of a partition
    p | u64 number | 1             its records, bytes and times in segments
    p | u64 number | 2 | u64 base  mapping
    s | u64 id                     segment
    i | u64 segment | u64 number | u64 base    mappings of a segment; no value
    d | u64 due_ms | u64 number | u64 base     mappings with a due time; no value
    o | uuid                       object of the remote tier
    x | u32 node | u8 state | uuid             objects of a broker in a state; no value
    w | u32 node | uuid            finished objects whose segment is not read any more; no value
    r | u64 number                 dispatch and commit offset of a partition
    t | u32 id                     tier

In format 1 segments had no `local`, `object` and `tier`, and there were no objects. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kafkawire.codec.format_errors import FormatError
from kafkawire.metadata.checkpoint import (
    PartitionCheckpoint,
    pack_epochs,
    pack_producers,
    unpack_epochs,
    unpack_producers,
)
from kafkawire.offsets.catalog.port import ObjectRow, SegmentRange, SegmentRow, TierRow

FORMAT = b"\2"
FORMAT_BEFORE = b"\1"
VERSION_KEY = b"v"
NEXT_ID_KEY = b"n"
TRANSACTIONS_KEY = b"c"

_CHECKPOINT = struct.Struct(">qqqI")  # next offset, log start, updated ms, bytes of the epochs
_TOTALS = struct.Struct(">qqqq")
_MAPPING = struct.Struct(">QqQQQQIqQQQ")  # without number and base, which are in the key
_SEGMENT = struct.Struct(">16siqBQQIqqBI16s")  # the retention class follows
_SEGMENT_BEFORE = struct.Struct(">16siqBQQIqq")
_NO_OBJECT = bytes(16)
_OBJECT = struct.Struct(">QIIBQqq")  # the ranges follow
_OFFSETS = struct.Struct(">qqq")  # dispatch, commit, updated ms
_TIER = struct.Struct(">Bq")  # the URL follows
_NUMBER = struct.Struct(">q")
_U64 = struct.Struct(">Q")
_TRIPLE = struct.Struct(">QQQ")
_PARTITION_KEY = struct.Struct(">xQB")
_MAPPING_KEY = struct.Struct(">cQBQ")

CHECKPOINT, TOTALS, MAPPING = 0, 1, 2
"""The kinds of a partition's keys, in sort order."""


@dataclass(slots=True)
class Totals:
    """Bytes and records of a partition in segments."""

    records: int = 0
    size_bytes: int = 0
    created_ms: int = -1
    last_activity_ms: int = -1


def log_position_key(node_id: int) -> bytes:
    return b"l" + node_id.to_bytes(4, "big")


def pack_number(log_position: int) -> bytes:
    """Pack a log position, or the next segment id."""
    return _NUMBER.pack(log_position)


def unpack_number(value: bytes | None) -> int:
    """Unpack a log position; 0 if nothing is stored."""
    return 0 if value is None else int(_unpack(_NUMBER, value)[0])


def partition_key(number: int, kind: int) -> bytes:
    """Return the key of a partition's checkpoint or totals; for MAPPING: the start of its
    mappings."""
    return b"p" + _U64.pack(number) + bytes((kind,))


def partition_end(number: int) -> bytes:
    return b"p" + _U64.pack(number + 1)


def partition_of(key: bytes) -> tuple[int, int]:
    """Return the number and the kind in a partition's key."""
    number, kind = _unpack(_PARTITION_KEY, key)
    return number, kind


def mapping_key(number: int, base_offset: int) -> bytes:
    return _MAPPING_KEY.pack(b"p", number, MAPPING, base_offset)


def segment_key(segment_id: int) -> bytes:
    return b"s" + _U64.pack(segment_id)


def member_key(row: SegmentRange) -> bytes:
    return b"i" + _TRIPLE.pack(row.segment_id, row.number, row.base_offset)


def member_of(segment_id: int) -> bytes:
    return b"i" + _U64.pack(segment_id)


def due_key(row: SegmentRange) -> bytes:
    return b"d" + _TRIPLE.pack(row.due_ms, row.number, row.base_offset)


def due_from(due_ms: int) -> bytes:
    return b"d" + _U64.pack(due_ms)


def index_target(key: bytes) -> bytes:
    """Return the key of the mapping of an index entry."""
    _, number, base_offset = _unpack(_TRIPLE, key[1:])
    return mapping_key(number, base_offset)


def pack_checkpoint(row: PartitionCheckpoint, updated_ms: int) -> bytes:
    epochs = pack_epochs(row.leader_epochs)
    head = _CHECKPOINT.pack(row.next_offset, row.log_start, updated_ms, len(epochs))
    return head + epochs + pack_producers(row.producers)


def unpack_checkpoint(number: int, value: bytes) -> tuple[PartitionCheckpoint, int]:
    """Unpack a checkpoint and its time. Raises FormatError."""
    next_offset, log_start, updated_ms, length = _unpack(_CHECKPOINT, value)
    split = _CHECKPOINT.size + length
    epochs = unpack_epochs(value[_CHECKPOINT.size : split])
    producers = unpack_producers(value[split:])
    return PartitionCheckpoint(number, next_offset, log_start, epochs, producers), updated_ms


def pack_totals(totals: Totals) -> bytes:
    return _TOTALS.pack(
        totals.records, totals.size_bytes, totals.created_ms, totals.last_activity_ms
    )


def unpack_totals(value: bytes | None) -> Totals:
    """Unpack totals; zeros if nothing is stored."""
    return Totals() if value is None else Totals(*_unpack(_TOTALS, value))


def pack_mapping(row: SegmentRange) -> bytes:
    return _MAPPING.pack(row.segment_id, *row[3:])


def unpack_mapping(key: bytes, value: bytes) -> SegmentRange:
    """Unpack the mapping of a key. Raises FormatError."""
    _, number, _, base_offset = _unpack(_MAPPING_KEY, key)
    segment_id, *others = _unpack(_MAPPING, value)
    return SegmentRange(number, segment_id, base_offset, *others)


def pack_segment(row: SegmentRow) -> bytes:
    return (
        _SEGMENT.pack(
            row.uuid,
            row.node_id,
            row.created_ms,
            row.state,
            row.size_bytes,
            row.live_bytes,
            row.generation,
            row.max_timestamp,
            row.delete_after_ms,
            row.local,
            row.tier,
            row.object or _NO_OBJECT,
        )
        + row.retention_class.encode()
    )


def unpack_segment(key: bytes, value: bytes) -> SegmentRow:
    """Unpack the segment of a key. Raises FormatError."""
    head = _unpack(_SEGMENT, value[: _SEGMENT.size])
    uuid, node_id, created_ms, state, size, live, generation, newest, after = head[:9]
    local, tier, made = head[9:]
    return SegmentRow(
        uuid,
        node_id,
        created_ms,
        _unpack(_U64, key[1:])[0],
        state,
        size,
        live,
        generation,
        _text(value[_SEGMENT.size :]),
        newest,
        after,
        bool(local),
        b"" if made == _NO_OBJECT else made,
        tier,
    )


def upgraded_segment(value: bytes) -> bytes:
    """Convert a segment of FORMAT_BEFORE to the current layout: it has a file and no object."""
    head = _unpack(_SEGMENT_BEFORE, value)
    return _SEGMENT.pack(*head, True, 0, _NO_OBJECT) + value[_SEGMENT_BEFORE.size :]


def object_key(uuid: bytes) -> bytes:
    return b"o" + uuid


def state_key(node_id: int, state: int, uuid: bytes) -> bytes:
    return b"x" + node_id.to_bytes(4, "big") + bytes((state,)) + uuid


def unneeded_key(node_id: int, uuid: bytes) -> bytes:
    """Return the key of the index entry of a finished object whose segment is not live any more."""
    return b"w" + node_id.to_bytes(4, "big") + uuid


def uuid_of(key: bytes) -> bytes:
    """Return the uuid at the end of any of these keys."""
    return key[-16:]


def pack_object(row: ObjectRow) -> bytes:
    return (
        _OBJECT.pack(
            row.segment_id,
            row.node_id,
            row.tier,
            row.state,
            row.size_bytes,
            row.created_ms,
            row.delete_after_ms,
        )
        + row.ranges
    )


def unpack_object(key: bytes, value: bytes) -> ObjectRow:
    """Unpack the object of a key. Raises FormatError."""
    return ObjectRow(*[uuid_of(key), *_unpack(_OBJECT, value), value[_OBJECT.size :]])


def offsets_key(number: int) -> bytes:
    return b"r" + _U64.pack(number)


OFFSETS_END = b"s"
"""The upper bound of the keys of offsets."""


def offsets_number(key: bytes) -> int:
    return int(_unpack(_U64, key[1:])[0])


def pack_offsets(dispatch: int, commit: int, updated_ms: int) -> bytes:
    return _OFFSETS.pack(dispatch, commit, updated_ms)


def unpack_offsets(value: bytes | None) -> tuple[int, int]:
    """Unpack offsets without the time; zeros if nothing is stored."""
    return (0, 0) if value is None else unpack_all_offsets(value)[:2]


def unpack_all_offsets(value: bytes) -> tuple[int, int, int]:
    """Unpack the dispatch offset, the commit offset and their time."""
    dispatch, commit, updated_ms = _unpack(_OFFSETS, value)
    return dispatch, commit, updated_ms


def tier_key(tier: int) -> bytes:
    return b"t" + tier.to_bytes(4, "big")


def pack_tier(row: TierRow) -> bytes:
    return _TIER.pack(row.state, row.created_ms) + row.url.encode()


def unpack_tier(key: bytes, value: bytes) -> TierRow:
    """Unpack the tier of a key. Raises FormatError."""
    state, created_ms = _unpack(_TIER, value)
    url = _text(value[_TIER.size :])
    return TierRow(int.from_bytes(key[1:], "big"), url, state, created_ms)


def _unpack(layout: struct.Struct, value: bytes) -> tuple[Any, ...]:
    try:
        return layout.unpack_from(value)
    except struct.error as error:
        raise FormatError("a stored row of the offset storage is cut off") from error


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise FormatError("a stored row of the offset storage has a text that is none") from None
