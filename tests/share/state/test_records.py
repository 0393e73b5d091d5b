"""Records of `__share_group_state` have Kafka's bytes."""

from __future__ import annotations

import struct

import pytest

from kafkawire.codec.types import DecodeError
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state.records import (
    StateSnapshot,
    StateUpdate,
    StoredShareState,
    decode_record,
    encode_record,
    fits,
)

KEY = SharePartitionKey("group", b"T" * 16, 7)
KEY_BYTES = struct.pack(">h5s16si", 5, b"group", b"T" * 16, 7)
BATCHES = (StateBatch(10, 12, 2, 1), StateBatch(13, 13, 0, 3))
BATCH_BYTES = b"\3" + struct.pack(">qqbhx", 10, 12, 2, 1) + struct.pack(">qqbhx", 13, 13, 0, 3)
COUNT_TAG = b"\1" + b"\0\4" + struct.pack(">i", 3)
NO_TAGS = b"\0"


@pytest.mark.parametrize(("count", "tags"), [(3, COUNT_TAG), (-1, NO_TAGS)])
def test_snapshot(count: int, tags: bytes) -> None:
    state = StoredShareState(4, 10, 2, 6, count, BATCHES, 111, 222)
    record = StateSnapshot(KEY, state)
    key, value = encode_record(record)
    assert key == struct.pack(">h", 0) + KEY_BYTES
    assert value == struct.pack(">hiiiqqq", 0, 2, 4, 6, 10, 111, 222) + BATCH_BYTES + tags
    assert decode_record(key, value) == record


@pytest.mark.parametrize(("count", "tags"), [(3, COUNT_TAG), (-1, NO_TAGS)])
def test_update(count: int, tags: bytes) -> None:
    record = StateUpdate(KEY, 2, 6, 10, count, BATCHES)
    key, value = encode_record(record)
    assert key == struct.pack(">h", 1) + KEY_BYTES
    assert value == struct.pack(">hiiq", 0, 2, 6, 10) + BATCH_BYTES + tags
    assert decode_record(key, value) == record


def test_tombstone_is_a_snapshot_without_value() -> None:
    record = StateSnapshot(KEY, None)
    assert encode_record(record) == (struct.pack(">h", 0) + KEY_BYTES, None)
    assert decode_record(struct.pack(">h", 0) + KEY_BYTES, None) == record
    assert decode_record(struct.pack(">h", 1) + KEY_BYTES, None) is None


def test_other_records() -> None:
    assert decode_record(struct.pack(">h", 2) + KEY_BYTES, b"") is None
    for key, value in ((None, b""), (b"\0\0", None), (struct.pack(">h", 0) + KEY_BYTES, b"\0\0")):
        with pytest.raises(DecodeError):
            decode_record(key, value)


def test_long_group_ids() -> None:
    assert fits("g" * 32_767)
    assert not fits("g" * 32_768)
    assert not fits("\u20ac" * 16_000)
