"""Searches by key with the key indexes of segments: nothing is missed, little is read.

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
from kafkawire.codec.segment.format import KEYS, read_trailer
from kafkawire.codec.segment.keys import head_length
from kafkawire.reading import TopicReader, open_folder
from kafkawire.reading.files import key_index
from kafkawire.reading.files.open import open_place
from tests.kit.spark.files import START_MS, Files, Share, batches
from tests.kit.spark.key_index import indexed, put
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)


@pytest.fixture
def large(files: Files) -> Files:
    """Topic t: two partitions of 12,000 records in segments of 4000, with keys k0 to k11999; the
    first partition has 20 key blocks in each segment, the second is too small to be worth it."""
    one, two = files.topic("t", 2)
    for base in range(0, 12000, 4000):
        put(
            files,
            base + 1,
            Share(one, batches(base, [20] * 200, size=600)),
            Share(two, batches(base, [20] * 2, size=600)),
        )
    files.publish()
    return files


def read_bytes(reader: TopicReader) -> tuple[int, int]:
    """Requests and bytes so far."""
    costs = reader.traffic()
    return sum(each.requests for each in costs), sum(each.size_bytes for each in costs)


def offsets(reader: TopicReader, *keys: bytes) -> list[int]:
    return [each.offset for each in reader.find("t", list(keys), partitions=[0])]


def test_a_key_is_read_from_its_blocks(large: Files) -> None:
    with open_folder(large.place.url) as reader:
        assert offsets(reader, b"k5") == [5]
        before = read_bytes(reader)
        for n in (0, 3999, 4000, 7777, 11999):
            key_index._open.cache_clear()
            assert offsets(reader, b"k%d" % n) == [n]
        requests, size = (b - a for a, b in zip(before, read_bytes(reader), strict=True))
        assert requests <= 5 * 6
        assert size < 5 * (3 * key_index.END_BYTES + 400_000)
        assert offsets(reader, b"k17", b"k3000", b"k9000", b"no") == [17, 3000, 9000]


def test_a_key_that_is_not_there_reads_no_records(large: Files) -> None:
    key_index._open.cache_clear()
    with open_folder(large.place.url) as reader:
        before = read_bytes(reader)
        assert offsets(reader, b"no-such-key") == []
        requests, size = (b - a for a, b in zip(before, read_bytes(reader), strict=True))
        assert requests == 3
        assert size <= 3 * key_index.END_BYTES


def test_null_keys_are_searched_in_all_blocks(large: Files) -> None:
    with open_folder(large.place.url) as reader:
        found = list(reader.find("t", [None, b"k5"], partitions=[0]))
        assert [each.offset for each in found] == [5]


@pytest.mark.parametrize("end_bytes", [4096, 64 << 10])
def test_every_key_is_found(large: Files, end_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the section is larger than what is read of the end of a file."""
    monkeypatch.setattr(key_index, "END_BYTES", end_bytes)
    monkeypatch.setattr(key_index, "HEAD_GUESS_BYTES", 32)
    key_index._open.cache_clear()
    rng = random.Random(1)
    with open_folder(large.place.url) as reader:
        for n in rng.sample(range(12000), 20):
            assert offsets(reader, b"k%d" % n) == [n]
        many = sorted(rng.sample(range(12000), 200))
        assert offsets(reader, *(b"k%d" % n for n in many)) == many
        found = reader.find("t", b"k4500", partitions=[0], start=4501)
        assert list(found) == []
    key_index._open.cache_clear()


def test_segments_without_index_are_searched(files: Files) -> None:
    one, two = files.topic("t", 2)
    share = Share(one, batches(0, [20] * 200, size=150))
    files.put(1, share)
    again = Share(one, batches(4000, [20] * 200, size=150))
    files.put(2, again, Share(two, batches(0, [1])), keys=indexed(Share(two, batches(0, [1]))))
    files.publish()
    with open_folder(files.place.url) as reader:
        assert offsets(reader, b"k17", b"k4001", b"no") == [17, 4001]


@pytest.mark.parametrize("at_chunk", [False, True])
def test_damaged_index_is_a_warning(
    large: Files, at_chunk: bool, caplog: pytest.LogCaptureFixture
) -> None:
    key_index._open.cache_clear()
    for key in list(large.place.list()):
        if not key.endswith(".segment"):
            continue
        data = bytearray(large.place.get(key))
        section = read_trailer(data, len(data)).section(KEYS)
        body = data[section.body_start : section.stop]
        head = head_length(body[:24], len(body))
        for at in range(head, len(body)) if at_chunk else [30]:
            data[section.body_start + at] ^= 1
        large.place.put(key, bytes(data))
    with caplog.at_level(logging.WARNING), open_folder(large.place.url) as reader:
        assert offsets(reader, b"k17", b"k9000") == [17, 9000]
    assert caplog.text.count("its records are searched for keys") == 3
    assert "key index is damaged" in caplog.text
    key_index._open.cache_clear()


some_keys = st.none() | st.binary(max_size=3)
contents_of_segments = st.lists(
    st.lists(st.lists(some_keys, min_size=1, max_size=4), min_size=1, max_size=6),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@given(contents_of_segments, st.lists(st.binary(max_size=3), max_size=4), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_search_finds_what_a_scan_finds(
    contents: Sequence[Sequence[Sequence[bytes | None]]], wanted: list[bytes], start: int
) -> None:
    """Values of 50 KB, so that a segment has several key blocks."""
    value = random.Random(1).randbytes(50_000)
    everything: list[bytes | None] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(key_index, "MIN_WHOLE_BYTES", 0)
        patch.setattr(key_index, "MIN_PART_BYTES", 0)
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
        wanted = [*wanted, *(key for key in everything[::3] if key is not None)]
        with open_folder(folder) as reader:
            found = [each.offset for each in reader.find("t", wanted, start=start)]
    expected = [at for at, key in enumerate(everything) if key in wanted and at >= start]
    assert found == expected
