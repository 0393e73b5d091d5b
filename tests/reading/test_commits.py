"""Records of `__consumer_offsets`: commits, groups, tombstones, and what is malformed."""

from __future__ import annotations

import pytest

from kafkawire.codec.compile import encode_versioned
from kafkawire.messages.stored import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kafkawire.reading import commits
from kafkawire.reading.commits import Event, decode_event

KEY = encode_versioned(OffsetCommitKey("kitchen", "orders", 3), 1)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_commit_of_every_version_is_parsed(version: int) -> None:
    value = encode_versioned(OffsetCommitValue(offset=41, commit_timestamp=7), version)
    assert decode_event(KEY, value) == Event(commits.COMMIT, "kitchen", "orders", 3, 41)


def test_old_key_version_is_a_commit() -> None:
    key = encode_versioned(OffsetCommitKey("kitchen", "orders", 3), 0)
    value = encode_versioned(OffsetCommitValue(offset=1), 3)
    assert decode_event(key, value) == Event(commits.COMMIT, "kitchen", "orders", 3, 1)


def test_tombstones_and_groups() -> None:
    assert decode_event(KEY, None) == Event(commits.REMOVED, "kitchen", "orders", 3)
    key = encode_versioned(GroupMetadataKey("kitchen"), 2)
    assert decode_event(key, None) == Event(commits.DELETED, "kitchen")
    value = encode_versioned(GroupMetadataValue(protocol_type="consumer"), 3)
    assert decode_event(key, value) == Event(commits.GROUP, "kitchen")


def test_unknown_records_are_other_and_broken_ones_unreadable() -> None:
    assert decode_event(b"\x00\x05rest", b"x") == Event(commits.OTHER)
    for key, value in [(None, b""), (b"\x00", b""), (KEY[:-1], b""), (KEY, b"\x00\x03\x00")]:
        assert decode_event(key, value) == Event(commits.UNREADABLE)
    assert decode_event(KEY, b"\x00\x63" + bytes(40)) == Event(commits.UNREADABLE)  # version 99


def test_memoryviews_are_parsed_like_bytes() -> None:
    assert decode_event(memoryview(KEY), None).group == "kitchen"
