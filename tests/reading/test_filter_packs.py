"""Searches by key with filter packs: nothing is missed, few requests, any damage is a warning.

Covers: kafkawire.reading.files.key_index.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.codec.batches import build
from kafkawire.manifest.keys import PACK_LIST, pack_key
from kafkawire.manifest.packs import read_packs
from kafkawire.reading import TopicReader, open_folder
from kafkawire.reading.files import key_index
from kafkawire.reading.files.open import open_place
from tests.kit.spark.files import START_MS, Files, Share, batches
from tests.kit.spark.key_index import put, put_packs
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)

SEGMENTS, RECORDS = 40, 30


def uuid(name: int) -> bytes:
    return name.to_bytes(16, "big")


@pytest.fixture
def many(files: Files) -> Files:
    """Topic t: two partitions in 40 segments of 30 records each, with keys k0 to k1199; all but the
    last four in packs of twelve."""
    one, two = files.topic("t", 2)
    for name in range(SEGMENTS):
        base = name * RECORDS
        put(
            files,
            name + 1,
            Share(one, batches(base, [10] * 3)),
            Share(two, batches(base, [10] * 3)),
        )
    files.publish()
    put_packs(files.place, *([uuid(1 + 12 * at + n) for n in range(12)] for at in range(3)))
    key_index._open.cache_clear()
    return files


def offsets(reader: TopicReader, *keys: bytes | None, partition: int = 0) -> list[int]:
    return [each.offset for each in reader.find("t", list(keys), partitions=[partition])]


def spent(reader: TopicReader) -> dict[str, int]:
    """Requests so far: those for packs and all others."""
    found = {"packs": 0, "others": 0}
    for each in reader.traffic():
        found["packs" if each.source.endswith("(filter packs)") else "others"] += each.requests
    return found


def test_absent_key_takes_one_request_a_pack(many: Files) -> None:
    with open_folder(many.place.url) as reader:
        reader.partitions("t")
        before = spent(reader)
        assert offsets(reader, b"no-such-key") == []
        after = spent(reader)
    assert after["packs"] - before["packs"] == 4, "the list and three packs"
    assert after["others"] - before["others"] == 4, "segments that are in no pack"


def test_keys_are_found_in_packed_and_other_segments(many: Files) -> None:
    with open_folder(many.place.url) as reader:
        for n in range(0, SEGMENTS * RECORDS, 37):
            assert offsets(reader, b"k%d" % n, partition=n % 2) == [n]
        some = [5, 500, 1150]
        assert offsets(reader, *(b"k%d" % n for n in some), b"no") == some
        before = spent(reader)
        assert offsets(reader, None) == [], "records without a key are in no filter"
        assert spent(reader)["packs"] == before["packs"]


def test_few_segments_are_asked_themselves(many: Files) -> None:
    """A pack is not read for fewer segments than it takes requests."""
    with open_folder(many.place.url) as reader:
        reader.partitions("t")
        last = reader.read("t", partitions=[0], start=0, end=1)
        assert len(list(last)) == 1
        assert [each.offset for each in reader.find("t", b"k3", partitions=[0], end=60)] == [3]
        assert spent(reader)["packs"] == 0


def test_segment_that_replaced_packed_ones_is_searched(many: Files) -> None:
    """Objects that are not in the pack are searched, and those of a pack that are gone not."""
    one, two = 1, 2
    put(
        many,
        100,
        Share(one, batches(0, [10] * 6)),
        Share(two, batches(0, [10] * 6)),
    )
    many.publish(gone=[1, 2])
    with open_folder(many.place.url) as reader:
        assert offsets(reader, b"k0", b"k45", b"k1000") == [0, 45, 1000]


def harm(files: Files, key: str, kind: str) -> None:
    data = bytearray(files.place.get(key))
    if kind == "gone":
        files.place.delete([key])
        return
    if kind == "cut short":
        del data[len(data) // 2 :]
    elif kind == "newer":
        data = bytearray(data.replace(b'"format":1', b'"format":2'))
        data[8] = 2 if not data.startswith(b"{") else data[8]
    else:
        for at in range(len(data)):
            data[at] ^= 0x11
    files.place.put(key, bytes(data))


@pytest.mark.parametrize("kind", ["gone", "cut short", "newer", "damaged"])
@pytest.mark.parametrize("key", [PACK_LIST, pack_key(2)])
def test_packs_that_cannot_be_read_are_a_warning(
    many: Files, key: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    harm(many, key, kind)
    with caplog.at_level(logging.WARNING), open_folder(many.place.url) as reader:
        assert offsets(reader, b"k17", b"k500", b"k1190", b"no") == [17, 500, 1190]
        assert offsets(reader, b"no") == []
    absent_list = key == PACK_LIST and kind == "gone"  # a tier without packs
    assert ("the filters of" in caplog.text) is not absent_list


def test_pack_of_other_objects_excludes_nothing(many: Files) -> None:
    """The list says that a pack covers objects which it does not have."""
    first, second = many.place.get(pack_key(1)), many.place.get(pack_key(2))
    packs = read_packs(many.place.get(PACK_LIST)).packs
    assert packs[0].shape == packs[1].shape
    assert first != second
    put_packs(many.place, [uuid(at) for at in range(1, 13)])
    stolen = many.place.get(PACK_LIST).replace(uuid(1).hex().encode(), uuid(30).hex().encode())
    many.place.put(PACK_LIST, stolen)
    with open_folder(many.place.url) as reader:
        assert offsets(reader, b"k%d" % (29 * RECORDS)) == [29 * RECORDS]


some_keys = st.none() | st.binary(max_size=2)
contents_of_segments = st.lists(
    st.lists(st.lists(some_keys, min_size=1, max_size=4), min_size=1, max_size=3),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@given(
    contents_of_segments,
    st.lists(st.binary(max_size=2), max_size=4),
    st.lists(st.integers(0, 7), max_size=8),
    st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_search_finds_what_a_scan_finds(
    contents: Sequence[Sequence[Sequence[bytes | None]]],
    wanted: list[bytes],
    packed: list[int],
    in_pack: int,
) -> None:
    value = random.Random(1).randbytes(2000)
    everything: list[bytes | None] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "MIN_WHOLE_BYTES", 0)
        patch.setattr(key_index, "MIN_OBJECTS", 1)
        files = Files(open_place(folder))
        [number] = files.topic("t")
        for name, segment in enumerate(contents, 1):
            parts = []
            for some in segment:
                pairs = [(key, value) for key in some]
                stamp = START_MS + len(everything)
                parts.append(bytes(build(pairs, base_offset=len(everything), timestamp_ms=stamp)))
                everything += some
            put(files, name, Share(number, parts))
        files.publish()
        names = [uuid(at + 1) for at in dict.fromkeys(packed) if at < len(contents)]
        put_packs(files.place, *(names[at : at + in_pack] for at in range(0, len(names), in_pack)))
        wanted = [*wanted, *(key for key in everything[::3] if key is not None)]
        with open_folder(folder) as reader:
            found = [each.offset for each in reader.find("t", wanted)]
    expected = [at for at, key in enumerate(everything) if key in wanted]
    assert found == expected
