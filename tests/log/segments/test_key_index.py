"""The key index as jobs write it: each key is found where it is, in segments that were cut, merged
and compacted; the compiled loops agree with the codec.

Covers: kafkawire.log.segments.file.key_kernels, kafkawire.log.segments.file.key_collector,
kafkawire.log.segments.file.key_port.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.codec.batches import CONTROL, build, iter_batches, records
from kafkawire.codec.segment import layout
from kafkawire.codec.segment.format import KEYS, PartitionEntry, TopicOrigin, section_body
from kafkawire.codec.segment.index import SparseIndex
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.codec.segment.keys import (
    KEY_BLOCK_BYTES,
    PartitionKeys,
    check_keys,
    read_keys,
    write_keys,
)
from kafkawire.log.io.worker_jobs import Input, JobOrigin, Keep, RewriteArguments, find_job, pack
from kafkawire.log.io.worker_jobs import no_pace as none
from kafkawire.log.segments.file import key_kernels as kernels
from kafkawire.log.segments.file.key_collector import HashCollector
from kafkawire.log.segments.file.writer import (
    INDEX_KEYS,
    JobOrigins,
    SegmentWriter,
    key_collector,
    report_absence,
)
from kafkawire.log.segments.store.segment_store import Segment
from tests.kit.key_filters import build_filters
from tests.kit.log.compacted import clean, cut_all, fill, started
from tests.kit.log.segment_jobs import files_in_memory, scrub  # noqa: F401  (a fixture, by name)
from tests.kit.log.segments import cutting, everything, journal, output, read, topic_id, wanted
from tests.kit.memfs import MemFileSystem

TOPICS = [
    TopicOrigin(topic_id(3), 1, 0, False, {INDEX_KEYS: "true"}),
    TopicOrigin(topic_id(4), 1, 0, False, {}),
    TopicOrigin(topic_id(5), 1, 0, False, {INDEX_KEYS: "false"}),
    TopicOrigin(topic_id(7), 1, 0, False, {INDEX_KEYS: "true"}),
]
ORDER = JobOrigin("the-cluster", pack(TOPICS))

Pairs = Sequence[tuple[bytes | None, bytes | None]]

some_keys = st.none() | st.binary(max_size=80)
some_pairs = st.lists(st.tuples(some_keys, st.none() | st.binary(max_size=40)), min_size=1)


def made(base: int, pairs: Pairs, codec: int = 0, attributes: int = 0) -> bytes:
    return bytes(
        build(pairs, base_offset=base, timestamp_ms=1000, codec=codec, attributes=attributes)
    )


def collected(parts: Iterable[bytes]) -> bytes | None:
    collector = key_collector(decompress=True)
    assert isinstance(collector, HashCollector)
    collector.start_partition(3)
    collector.add(list(parts))
    collector.end_partition()
    section = collector.section()
    collector.close()
    return section


def keys_of(data: bytes) -> dict[int, PartitionKeys] | None:
    """Return the key index of a segment, checked."""
    trailer = everything(data).trailer
    section = trailer.optional(KEYS)
    if section is None:
        return None
    return check_keys(section_body(section, data[section.start : section.stop]))


def check_complete(data: bytes, entry: PartitionEntry, keys: PartitionKeys) -> int:
    """Check that each key of a partition of a segment is found in its block; return their
    number."""
    section = everything(data).trailer.section(KEYS)
    body = data[section.body_start : section.stop]
    batches = data[entry.start : entry.start + entry.length]
    count = 0
    for position, head in iter_batches(batches):
        for record in records(batches, position):
            if record.key is None or head.attributes & CONTROL:
                continue
            number = key_hash(record.key)
            at, length = keys.place(number)
            spans = [
                keys.span(each, entry.length) for each in keys.find(number, body[at : at + length])
            ]
            assert any(start <= position < end for start, end in spans), record.key
            count += 1
    return count


@pytest.mark.slow
@given(st.lists(st.tuples(some_pairs, st.integers(0, 4)), min_size=1, max_size=5), st.booleans())
def test_compiled_loops_agree_with_codec(batches: list[tuple[Pairs, int]], joined: bool) -> None:
    parts = [made(1000 * n, pairs, codec) for n, (pairs, codec) in enumerate(batches)]
    keys = [key for pairs, _ in batches for key, _ in pairs if key is not None]
    block = (0, [key_hash(key) for key in keys])
    filters = build_filters(3, [block], sum(map(len, parts)))
    expected = None if filters is None else write_keys([filters])
    assert collected([b"".join(parts)] if joined else parts) == expected


@pytest.mark.slow
@pytest.mark.parametrize("size", [300, 1000, 5000, 64 << 10, KEY_BLOCK_BYTES + 1])
def test_key_blocks_are_runs_of_index_blocks(size: int) -> None:
    rng = random.Random(size)
    count = max(4, 3 * KEY_BLOCK_BYTES // (20 * (size + 20)))
    parts = [
        made(100 * n, [(rng.randbytes(8), bytes(rng.randrange(size))) for _ in range(20)])
        for n in range(count)
    ]
    fs = MemFileSystem()
    fs.makedirs("/data")
    writer = SegmentWriter(fs, output(1), 1, 0, JobOrigins(ORDER))
    writer.start_partition(3, (topic_id(3), "t3", 2), 0, wanted(3, 0, 0).state)
    some = count // 2
    writer.write([memoryview(part) for part in parts[:some]])
    writer.write([memoryview(b"".join(parts[some:]))])
    writer.end_partition(100 * count)
    data = read(fs, writer.finish().path)
    entry = everything(data).entries[0]
    indexed = keys_of(data)
    assert indexed is not None
    keys = indexed[3]
    assert keys.keys == check_complete(data, entry, keys) == 20 * count
    index: SparseIndex = everything(data).indexes[0]
    starts = [index.block(at)[0] - entry.start for at in range(len(index))]
    expected = [0]
    for start in starts:
        if start >= expected[-1] + KEY_BLOCK_BYTES:
            expected.append(start)
    assert list(keys.positions) == expected
    assert scrub(fs, output(1).path) == []


def test_cut_indexes_topics_that_want_it(fs: MemFileSystem) -> None:
    frames = [
        (number, [made(2 * at, [(b"%d-%d" % (number, at), b"v"), (None, b"v")])])
        for at in range(3)
        for number in (3, 4, 5, 7)
    ]
    file = journal(fs, 1, frames)
    job = cutting([file], [wanted(n, 0, 6) for n in (3, 4, 5, 7)], [output(1, 3, 4, 5, 7)])
    job.origin = ORDER
    assert find_job("cut")(fs, job, none).damaged == []
    data = read(fs, output(1).path)
    indexed = keys_of(data)
    assert indexed is not None
    assert list(indexed) == [3, 7]
    for entry in everything(data).entries:
        if entry.number in indexed:
            assert check_complete(data, entry, indexed[entry.number]) == 3
    assert scrub(fs, output(1).path) == []


def test_rewrite_indexes_old_segments(fs: MemFileSystem) -> None:
    file = journal(fs, 1, [(3, [made(0, [(b"one", b"v")])]), (3, [made(1, [(b"two", b"v")])])])
    job = cutting([file], [wanted(3, 0, 2)], [output(1, 3)])
    find_job("cut")(fs, job, none)
    assert keys_of(read(fs, output(1).path)) is None
    old = Input(output(1).path, b"", pack([Keep(3, 0, 2, 0)]))
    find_job("rewrite")(fs, RewriteArguments(1, 6, [old], output(9), ORDER), none)
    data = read(fs, output(9).path)
    indexed = keys_of(data)
    assert indexed is not None
    assert check_complete(data, everything(data).entries[0], indexed[3]) == 2


@pytest.mark.slow
async def test_broker_indexes_keys_when_cutting_and_cleaning() -> None:
    world = await started()
    (partition,) = await world.topic("t", cleanup_policy="compact", index_keys_enable="true")
    await world.topic("other", 3)
    await fill(partition, 20)
    await cut_all(world)
    await clean(world)
    store = world.log.segments.store
    generations = set()
    for each in store.by_id.values():
        data = read(world.fs, Segment(each.row, store.folder).path)
        indexed = keys_of(data)
        assert indexed is not None
        for entry in everything(data).entries:
            assert check_complete(data, entry, indexed[entry.number]) > 0
        generations.add(each.row.generation)
    assert generations >= {1}
    await world.log.close()


def test_null_keys_and_control_records_are_left_out() -> None:
    body = collected([made(0, [(None, b"v")]), made(1, [(b"\0\0\0\1", b"v")], 0, CONTROL)])
    assert body is not None
    keys = read_keys(body, len(body))[3]
    assert (keys.keys, keys.shape.blocks) == (0, 0)


@pytest.mark.parametrize("codec", [0, 4])
def test_unreadable_records_are_scanned(codec: int, caplog: pytest.LogCaptureFixture) -> None:
    bad = bytearray(made(1, [(b"key", b"v")], codec))
    bad[61:] = b"\xff" * (len(bad) - 61)
    collector = key_collector(decompress=True)
    assert collector is not None
    with caplog.at_level(logging.WARNING):
        for number in (3, 4):
            collector.start_partition(number)
            collector.add([made(0, [(b"a", b"v")])])
            if number == 3:
                collector.add([bytes(bad)])
            collector.add([made(2, [(b"b", b"v")])])
            collector.end_partition()
    body = collector.section()
    assert body is not None
    assert list(check_keys(body)) == [4]
    assert "partition 3: the records of the batch at" in caplog.text
    assert "a search for a key will scan this partition" in caplog.text


@given(st.binary(max_size=200), st.integers(0, 2**31 - 1))
def test_garbage_is_not_read_beyond_its_end(garbage: bytes, count: int) -> None:
    whole = bytearray(made(0, [(b"key", b"v")]))
    whole[61:] = garbage
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[57:61] = count.to_bytes(4, "big")
    collected([bytes(whole)])
    collected([bytes(whole[: 30 + len(garbage) % 40])])


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_cut_leaves_compressed_batches_unindexed(codec: int) -> None:
    collector = key_collector(decompress=False)
    assert collector is not None
    for number in (3, 4):
        collector.start_partition(number)
        collector.add([made(0, [(b"a", b"v")]), made(1, [(b"b", b"v")], codec * (number == 3))])
        collector.add([made(2, [(b"c", b"v")])])
        collector.end_partition()
    body = collector.section()
    collector.close()
    assert body is not None
    assert list(check_keys(body)) == [4]


def test_rewrite_indexes_compressed_batches(fs: MemFileSystem) -> None:
    pairs = [(b"key-%d" % n, random.Random(n).randbytes(100)) for n in range(20)]
    file = journal(fs, 1, [(3, [made(0, pairs, 4)])])
    job = cutting([file], [wanted(3, 0, 20)], [output(1, 3)])
    job.origin = ORDER
    find_job("cut")(fs, job, none)
    assert keys_of(read(fs, output(1).path)) is None
    old = Input(output(1).path, b"", pack([Keep(3, 0, 20, 0)]))
    target = replace(output(9), generation=1)
    find_job("rewrite")(fs, RewriteArguments(1, 6, [old], target, ORDER), none)
    data = read(fs, output(9).path)
    indexed = keys_of(data)
    assert indexed is not None
    assert check_complete(data, everything(data).entries[0], indexed[3]) == 20


def test_keys_of_all_sizes(fs: MemFileSystem) -> None:
    sizes = [None, 0, 1, 31, 32, 33, 100, 1 << 20]
    pairs = [(None if n is None else bytes([n & 255]) * n, b"v" * 90) for n in sizes]
    file = journal(fs, 1, [(3, [made(0, pairs)])])
    job = cutting([file], [wanted(3, 0, len(pairs))], [output(1, 3)])
    job.origin = ORDER
    find_job("cut")(fs, job, none)
    data = read(fs, output(1).path)
    indexed = keys_of(data)
    assert indexed is not None
    assert check_complete(data, everything(data).entries[0], indexed[3]) == len(pairs) - 1


def test_abandoned_partition_is_left_out() -> None:
    collector = key_collector(decompress=True)
    assert collector is not None
    collector.start_partition(3)
    collector.add([made(0, [(b"a", b"v")])])
    collector.abandon()
    collector.add([made(0, [(b"a", b"v")])])
    collector.end_partition()
    assert collector.section() is None


def test_without_numba_no_index(fs: MemFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    name = kernels.__name__
    file = journal(fs, 1, [(3, [made(0, [(b"one", b"v")])])])
    job = cutting([file], [wanted(3, 0, 1)], [output(1, 3)])
    job.origin = ORDER
    report_absence.cache_clear()
    with patch.dict(sys.modules, {name: None}), caplog.at_level(logging.INFO):
        assert key_collector(decompress=True) is None
        find_job("cut")(fs, job, none)
    assert caplog.text.count("numba is not installed") == 1
    assert keys_of(read(fs, output(1).path)) is None
    assert scrub(fs, output(1).path) == []


def indexed_segment(fs: MemFileSystem) -> bytearray:
    """A segment with a key index."""
    file = journal(fs, 1, [(3, [made(0, [(b"one", b"v")])])])
    job = cutting([file], [wanted(3, 0, 1)], [output(1, 3)])
    job.origin = ORDER
    find_job("cut")(fs, job, none)
    return bytearray(read(fs, output(1).path))


def test_scrub_reports_damaged_key_index(fs: MemFileSystem) -> None:
    data = indexed_segment(fs)
    section = everything(bytes(data)).trailer.section(KEYS)
    data[section.stop - 10] ^= 1
    fs.open(output(1).path).pwritev([bytes(data)], 0)
    (problem,) = scrub(fs, output(1).path)
    assert "its key index is damaged" in problem


def test_program_that_does_not_know_the_index_reads_the_segment(fs: MemFileSystem) -> None:
    data = bytes(indexed_segment(fs))
    with patch.dict(layout.SECTION_VERSIONS, {KEYS: 0}):
        assert everything(data).batches == [[made(0, [(b"one", b"v")])]]
        assert everything(data).trailer.optional(KEYS) is None
        assert scrub(fs, output(1).path) == []


@pytest.mark.slow
def test_dump_shows_key_index(fs: MemFileSystem, tmp_path: Path) -> None:
    path = tmp_path / "a.segment"
    path.write_bytes(indexed_segment(fs))
    text = CliRunner().invoke(app, ["dump", str(path)]).output
    assert "key index" in text
    lines = CliRunner().invoke(app, ["dump", str(path), "--json"]).output
    assert '"keys": 1, "key_blocks": 1, "filter_bytes": 36' in lines
