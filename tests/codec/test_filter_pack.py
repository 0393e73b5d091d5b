"""Filter packs: a pack says of each key what the filter of each object says, and any damage is
noticed.

Covers: kafkawire.codec.segment.filter_pack.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment import filter_pack
from kafkawire.codec.segment.filter_pack import (
    PackedObject,
    PackShape,
    read_stripe,
    shape_of_pack,
    whole_filters,
    write_stripes,
)
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.codec.segment.keys import read_keys, write_keys
from tests.kit.key_filters import build_filters

LARGE = 1 << 40
"""The bytes of batches that set no limit to filters."""
Contents = Sequence[dict[int, Sequence[Sequence[bytes]]]]
"""Of each object: partition -> keys of each key block."""


def uuid(at: int) -> bytes:
    return (at + 1).to_bytes(16, "big")


def section(partitions: dict[int, Sequence[Sequence[bytes]]]) -> bytes:
    """The body of a key index."""
    found = []
    for number, blocks in sorted(partitions.items()):
        hashes = [(100 * at, [key_hash(key) for key in keys]) for at, keys in enumerate(blocks)]
        filters = build_filters(number, hashes, LARGE)
        assert filters is not None
        found.append(filters)
    return write_keys(found)


def packed(sections: Sequence[bytes]) -> tuple[PackShape, list[bytes]]:
    objects = [
        PackedObject(uuid(at), whole_filters(body, read_keys(body, len(body))))
        for at, body in enumerate(sections)
    ]
    shape = shape_of_pack(objects)
    return shape, list(write_stripes(7, objects, shape))


def asked(shape: PackShape, stripes: Sequence[bytes], at: int, number: int, key: bytes) -> object:
    """Return what a pack says of a key, reading one stripe."""
    hashed = key_hash(key)
    place = shape.place(hashed)
    return read_stripe(stripes[place], 7, shape, place).may_have(uuid(at), number, hashed)


def in_filter(body: bytes, number: int, key: bytes) -> bool:
    """Return what the object's own filters say."""
    hashed = key_hash(key)
    keys = read_keys(body, len(body))[number]
    at, length = keys.place(hashed)
    row_has = keys.find(hashed, body[at : at + length])
    return bool(row_has)


keys_of_blocks = st.lists(st.lists(st.binary(max_size=4), max_size=60), min_size=1, max_size=3)
contents = st.lists(
    st.dictionaries(st.integers(1, 5), keys_of_blocks, max_size=3), min_size=1, max_size=4
)


@given(contents, st.lists(st.binary(max_size=4), max_size=20), st.sampled_from([1, 600, 96 << 10]))
@settings(max_examples=150, deadline=None)
def test_pack_has_every_key(objects: Contents, others: list[bytes], most: int) -> None:
    """Never a false negative, whatever the number of stripes; what the filter of a partition with
    one block does not have the pack does not have either."""
    sections = [section(each) for each in objects]
    with patch.object(filter_pack, "STRIPE_BYTES", most):
        shape, stripes = packed(sections)
    assert len(stripes) == shape.stripes
    assert {len(each) for each in stripes} == {shape.stripe_bytes}
    every = {key for each in objects for blocks in each.values() for some in blocks for key in some}
    for at, each in enumerate(objects):
        for number, blocks in each.items():
            for key in every | set(others):
                said = asked(shape, stripes, at, number, key)
                assert said is not None
                if any(key in some for some in blocks):
                    assert said
                if in_filter(sections[at], number, key):
                    assert said
                elif len(blocks) == 1:
                    assert not said
        assert asked(shape, stripes, at, 6, b"a") is None
    assert asked(shape, stripes, len(objects), 1, b"a") is None


def large() -> list[bytes]:
    """Forty objects with 3,000 keys each, and one without keys."""
    found = [
        section({9: [[b"%d-%d" % (at, n) for n in range(1000)] for _ in range(3)]})
        for at in range(40)
    ]
    return [*found, section({9: [[]]})]


def test_stripe_of_a_large_pack_is_small() -> None:
    sections = large()
    shape, stripes = packed(sections)
    assert shape.stripes > 1
    assert shape.stripe_bytes <= filter_pack.STRIPE_BYTES
    whole = sum(len(each) for each in sections) // 2
    assert sum(map(len, stripes)) < 1.1 * whole, "hardly more than the filters of the partitions"
    for at in range(40):
        for n in range(0, 1000, 100):
            assert asked(shape, stripes, at, 9, b"%d-%d" % (at, n)) is True
    assert asked(shape, stripes, 40, 9, b"0-0") is False, "it has no keys"
    others = [asked(shape, stripes, at, 9, b"other-%d" % n) for at in range(40) for n in range(50)]
    assert others.count(True) < 0.03 * len(others)


def test_many_small_filters_are_not_repeated_in_many_stripes() -> None:
    one = section({number: [[b"%d" % number]] for number in range(500)})
    shape, stripes = packed([one] * 8)
    assert shape.stripes == 1
    assert asked(shape, stripes, 3, 77, b"77") is True


def test_objects_without_filters_are_a_pack() -> None:
    shape, stripes = packed([section({})])
    assert asked(shape, stripes, 0, 1, b"a") is None


def test_stripe_of_another_hash_says_nothing() -> None:
    shape, stripes = packed(large())
    hashed = next(key_hash(b"%d" % n) for n in range(99) if shape.place(key_hash(b"%d" % n)))
    first = read_stripe(stripes[0], 7, shape, 0)
    assert first.may_have(uuid(0), 9, hashed) is None


def test_any_damage_is_noticed() -> None:
    shape, stripes = packed([section({1: [[b"a"]], 2: [[b"b"], [b"c"]]}), section({})])
    [stripe] = stripes
    for bit in range(8 * len(stripe)):
        harmed = bytearray(stripe)
        harmed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            read_stripe(harmed, 7, shape, 0)
    for length in (0, 20, len(stripe) - 1):
        with pytest.raises(FormatError):
            read_stripe(stripe[:length], 7, shape, 0)


def test_stripe_of_another_pack_is_refused() -> None:
    shape, stripes = packed(large())
    for number, stripe in ((8, 0), (7, 1)):
        with pytest.raises(FormatError, match="another pack"):
            read_stripe(stripes[0], number, shape, stripe)
    other = shape._replace(stripes=2 * shape.stripes)
    with pytest.raises(FormatError, match="another pack"):
        read_stripe(stripes[0], 7, other, 0)


def changed(stripe: bytes, **fields: int) -> bytes:
    """A stripe with other fields and the right checksum."""
    at = {"version": 8, "length": 16, "hash": 28, "objects": 32, "entries": 36}
    data = bytearray(stripe)
    for name, number in fields.items():
        data[at[name] : at[name] + 4] = number.to_bytes(4, "little")
    length = int.from_bytes(data[16:20], "little")
    size = filter_pack._HEAD.size
    checksum = filter_pack._checksum(data[:size], data[size:length])
    data[12:16] = checksum.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("fields", [{"objects": 1 << 20}, {"entries": 1}, {"objects": 0}])
def test_counts_that_cannot_be_are_refused(fields: dict[str, int]) -> None:
    shape, stripes = packed([section({1: [[b"a"]], 2: [[b"b"]]})])
    with pytest.raises(FormatError):
        read_stripe(changed(stripes[0], **fields), 7, shape, 0)


@pytest.mark.parametrize("fields", [{"version": 2}, {"hash": 2}])
def test_newer_versions_are_named(fields: dict[str, int]) -> None:
    shape, stripes = packed([section({1: [[b"a"]]})])
    with pytest.raises(NewerFormatError):
        read_stripe(changed(stripes[0], **fields), 7, shape, 0)


def test_damaged_filters_are_not_packed() -> None:
    body = bytearray(section({1: [[b"%d" % n for n in range(500)]] * 3}))
    partitions = read_keys(body, len(body))
    body[random.Random(1).randrange(partitions[1].start, len(body))] ^= 1
    with pytest.raises(FormatError, match="damaged"):
        whole_filters(body, partitions)
