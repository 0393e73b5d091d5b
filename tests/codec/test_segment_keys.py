"""The key index: no key is missed, few others are found, and damage to any bit is noticed.

Covers: kafkawire.codec.segment.keys, kafkawire.codec.segment.key_hash.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.codec.segment.keys import (
    FilterShape,
    KeyFilters,
    PartitionKeys,
    check_keys,
    head_length,
    read_keys,
    shape_of,
    write_keys,
)
from tests.kit.key_filters import build_filters

Blocks = list[tuple[int, list[int]]]

LARGE = 1 << 40
"""The bytes of batches that set no limit to filters."""

keys_of_blocks = st.lists(st.lists(st.binary(max_size=70), max_size=40), min_size=1, max_size=6)


def hashed(blocks: list[list[bytes]]) -> Blocks:
    return [(100 * at, [key_hash(key) for key in keys]) for at, keys in enumerate(blocks)]


def filters_of(number: int, blocks: Blocks) -> KeyFilters:
    filters = build_filters(number, blocks, LARGE)
    assert filters is not None
    return filters


def found(keys: PartitionKeys, body: bytes, key: bytes) -> list[int]:
    """Return the blocks for a key, reading the bytes of one chunk."""
    number = key_hash(key)
    at, length = keys.place(number)
    return keys.find(number, body[at : at + length])


def test_hash_is_xxh64() -> None:
    # The vectors of xxHash's own specification and test suite, seed 0.
    assert key_hash(b"") == 0xEF46DB3751D8E999
    assert key_hash(b"a") == 0xD24EC4F1A98C6E5B
    assert key_hash(b"abc") == 0x44BC2CF5AD770999
    assert key_hash(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


@given(st.dictionaries(st.integers(0, 2**64 - 1), keys_of_blocks, max_size=4))
def test_no_key_is_missed(partitions: dict[int, list[list[bytes]]]) -> None:
    filters = [filters_of(n, hashed(partitions[n])) for n in sorted(partitions)]
    body = write_keys(filters)
    read = check_keys(body)
    assert sorted(partitions) == list(read)
    assert read_keys(body[: head_length(body[:24], len(body))], len(body)) == read
    for number, blocks in partitions.items():
        entry = read[number]
        assert entry.keys == sum(map(len, blocks))
        for at, keys in enumerate(blocks):
            for key in keys:
                assert at in found(entry, body, key)


@pytest.mark.parametrize(("blocks", "keys"), [(1, 5000), (8, 1000), (100, 60)])
def test_other_keys_are_found_rarely(blocks: int, keys: int) -> None:
    mine = [[f"order-{at}-{n}".encode() for n in range(keys)] for at in range(blocks)]
    body = write_keys([filters_of(1, hashed(mine))])
    entry = check_keys(body)[1]
    assert len(body) <= 2.5 * keys * blocks + 40 * blocks + 1500
    others = 5000
    hits = sum(bool(found(entry, body, f"other-{n}".encode())) for n in range(others))
    assert hits <= 0.02 * others  # 1.2 % in the mean; three deviations more
    rng = random.Random(1)
    wrong = sum(
        len(found(entry, body, rng.choice(mine[rng.randrange(blocks)]))) - 1 for _ in range(2000)
    )
    assert wrong <= 0.025 * 2000 * blocks


def sample() -> bytes:
    """Three partitions: one block, none, several chunks of rows."""
    rng = random.Random(3)
    many = [(7 * at, [rng.getrandbits(64) for _ in range(700)]) for at in range(3)]
    return write_keys(
        [
            filters_of(2, [(0, [1, 2, 3])]),
            filters_of(5, []),
            filters_of(2**63, many),
        ]
    )


def test_every_flipped_bit_is_detected() -> None:
    body = sample()
    assert check_keys(body)[2**63].shape.rows > check_keys(body)[2**63].shape.chunk_rows
    rng = random.Random(4)
    head = head_length(body[:24], len(body))
    for at in [*range(head), *(rng.randrange(head, len(body)) for _ in range(300))]:
        wrong = bytearray(body)
        wrong[at] ^= 1 << rng.randrange(8)
        with pytest.raises(FormatError):
            check_keys(wrong)


def test_every_truncation_is_detected() -> None:
    body = sample()
    for cut in range(len(body)):
        with pytest.raises(FormatError):
            check_keys(body[:cut])
    with pytest.raises(FormatError):
        check_keys(body + b"\0")
    head = head_length(body[:24], len(body))
    with pytest.raises(FormatError, match="cut short"):
        read_keys(body[: head - 1], len(body))


def test_damaged_chunk_is_refused_by_look_up() -> None:
    body = sample()
    entry = check_keys(body)[2**63]
    number = 1 << 62
    at, length = entry.place(number)
    chunk = bytearray(body[at : at + length])
    assert 0 < length < entry.shape.stored_bytes
    with pytest.raises(FormatError, match="cut short"):
        entry.find(number, chunk[:-1])
    chunk[length // 2] ^= 4
    with pytest.raises(FormatError, match="damaged"):
        entry.find(number, chunk)


def test_other_hash_is_refused() -> None:
    body = bytearray(sample())
    body[4] = 2
    with pytest.raises(NewerFormatError, match="has the hash 2, which is not known here"):
        head_length(body, len(body))


def test_shapes() -> None:
    assert shape_of(0, 3, 0) == FilterShape(0, 0)
    assert shape_of(1, 3, LARGE) == FilterShape(3, 1)
    assert shape_of(2560, 1, LARGE) == FilterShape(1, 100)
    assert (FilterShape(1, 100).row_bytes, FilterShape(2, 100).row_bytes) == (32, 128)
    assert FilterShape(1, 129).stored_bytes == 129 * 32 + 2 * 4
    assert FilterShape(512, 3).stored_bytes == 3 * (512 * 64 + 4)


def test_spans_of_blocks() -> None:
    body = sample()
    entry = check_keys(body)[2**63]
    assert [entry.span(n, 99) for n in range(3)] == [(0, 7), (7, 14), (14, 99)]
    empty = check_keys(body)[5]
    assert empty.place(1)[1] == 0
    assert empty.find(1, b"") == []


def test_filters_are_within_their_share_of_the_bytes() -> None:
    keys = 25600
    assert shape_of(keys, 10, 83 * keys) == FilterShape(10, 100)
    assert shape_of(keys, 10, 82 * keys) == FilterShape(1, 1000)
    assert shape_of(keys, 10, 33 * keys) == FilterShape(1, 800)
    assert shape_of(keys, 10, 25 * keys) == FilterShape(1, 600)
    assert shape_of(keys, 10, 24 * keys) == FilterShape(1, 0)
    assert build_filters(1, [(0, [1, 2])], 20) is None
    blocks = [(10 * n, [key_hash(b"%d-%d" % (n, at)) for at in range(500)]) for n in range(4)]
    filters = build_filters(1, blocks, 30 * 2000)
    assert filters is not None
    assert (filters.shape.blocks, list(filters.positions)) == (1, [0])
    body = write_keys([filters])
    entry = check_keys(body)[1]
    assert len(body) <= 30 * 2000 / 33 + 150
    for n in range(4):
        for at in range(500):
            assert found(entry, body, b"%d-%d" % (n, at)) == [0]


def test_stored_bytes_stay_the_same() -> None:
    body = write_keys([filters_of(3, [(0, [key_hash(b"a")]), (140000, [key_hash(b"b")])])])
    assert body.hex() == (
        "010000000100000048000000000000009b5f9c600000000003000000000000000200000000000000"
        "480000000000000002000000010000000000000000000000e0220200000000000080000000000008"
        "01000000000000010000002040000000000080000020000000000400000002000200000000100000"
        "00000200000000010000000800000080000100000000008000000100002000000000200000040000"
        "00000020040000000000100000040000080000000000100000020000000400000004000000010000"
        "5cb315b4"
    )
