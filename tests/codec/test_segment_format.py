"""The bytes of segments: written, read, skipped, refused; and damage to every bit."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkawire.codec.control import Aborted
from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.codec.segment import directory, layout
from kafkawire.codec.segment.format import (
    DIRECTORY,
    HEADER_BYTES,
    INDEX,
    KEYS,
    LOST,
    ORIGIN,
    STATE,
    STORED,
    TAIL_BYTES,
    TRAILER_BYTES,
    DamagedBatch,
    PartitionState,
    SegmentBuilder,
    SparseIndex,
    read_header,
    read_trailer,
)
from kafkawire.codec.segment.index import BLOCK_BYTES
from kafkawire.metadata.checkpoint import ProducerEntry, pack_epochs, pack_producers
from tests.kit.log.segments import UUID, Part, batch, everything, segment, topic_id

STATE_OF_3 = PartitionState(
    7,
    pack_epochs([(0, 0), (3, 12)]),
    pack_producers([ProducerEntry(9, 1, [(0, 4, 20, 999)])]),
    [Aborted(9, 10, 12), Aborted(11, 8, 14)],
)


def sample() -> bytes:
    """Three partitions: several blocks with a gap, an empty one, one batch that begins early."""
    first = [batch(n * 2 + (n > 30), 2, size=200, stamp=1000 + n % 40) for n in range(60)]
    return segment(
        [
            Part(3, first, base=0, end=130, state=STATE_OF_3),
            Part(5, [], base=40, end=44),
            Part(1 << 40, [batch(9, 4)], base=11),
        ]
    )


SAMPLE = sample()


def test_segment_round_trips() -> None:
    data = sample()
    whole = everything(data)
    assert (whole.header.uuid, whole.header.node_id, whole.header.created_ms) == (UUID, 1, 5)
    assert whole.trailer.uuid == UUID
    assert (whole.trailer.partitions, whole.trailer.batches, whole.trailer.records) == (3, 61, 124)
    one, empty, last = whole.entries
    assert (one.number, one.topic, one.index, one.topic_id) == (3, "t3", 2, topic_id(3))
    assert (one.base_offset, one.end_offset, one.batches, one.records) == (0, 130, 60, 120)
    assert (one.start, one.max_timestamp) == (HEADER_BYTES, 1039)
    assert (empty.base_offset, empty.end_offset, empty.length, empty.index_length) == (40, 44, 0, 0)
    assert (empty.max_timestamp, len(whole.indexes[1])) == (-1, 0)
    assert (last.number, last.base_offset, last.end_offset) == (1 << 40, 11, 13)
    assert whole.batches[0][31] == batch(63, 2, size=200, stamp=1031)
    assert whole.states[3] == STATE_OF_3
    assert whole.states[5] == PartitionState()
    assert set(whole.states) == {3, 5, 1 << 40}


def test_every_byte_belongs_to_a_section() -> None:
    data = sample()
    trailer = read_trailer(data[-TAIL_BYTES:], len(data))
    at = trailer.batches_end
    for section in trailer.sections:
        assert section.start == at
        at = section.stop
    assert at + len(trailer.sections) * layout.SECTION.size + TRAILER_BYTES == len(data)


def test_empty_segment() -> None:
    whole = everything(segment([]))
    assert (whole.entries, whole.trailer.batches, whole.states) == ([], 0, {})


def index_of(data: bytes, at: int = 0) -> SparseIndex:
    return everything(data).indexes[at]


def test_blocks_are_whole_batches_of_at_least_4_kib() -> None:
    data = sample()
    index = index_of(data)
    entry = everything(data).entries[0]
    assert len(index) > 4
    end = entry.start
    for at in range(len(index)):
        start, length, first, newest, checksum = index.block(at)
        assert start == end
        assert length >= BLOCK_BYTES or at == len(index) - 1
        assert struct.unpack_from(">q", data, start)[0] == first
        assert crc32c(data[start : start + length]) == checksum
        assert newest >= 1000
        assert index.find(start) == index.find(start + length - 1) == at
        end = start + length
    assert end == entry.start + entry.length


@given(st.integers(-5, 140), st.integers(0, 40_000))
def test_span_contains_batch_of_offset(offset: int, limit: int) -> None:
    data = SAMPLE
    index, entry = index_of(data), everything(data).entries[0]
    position, length = index.span(offset, limit)
    first = index.find(position)
    assert index.block(first)[0] == position
    assert length <= limit or length == index.block(first)[1]
    assert position + length <= entry.start + entry.length
    whole = [struct.unpack_from(">q", one)[0] for one in everything(data).batches[0]]
    covering = [base for base in whole if base <= offset]
    if covering:
        assert struct.unpack_from(">q", data, position)[0] <= covering[-1]
        assert first + 1 == len(index) or index.block(first + 1)[2] > offset, (
            "the last block that begins at or before it"
        )
    longer = index.span(offset, limit + BLOCK_BYTES * 3)
    assert longer[0] == position
    assert longer[1] >= length


@given(st.integers(995, 1045))
def test_since_is_first_block_that_may_contain_timestamp(stamp: int) -> None:
    data = SAMPLE
    index = index_of(data)
    blocks = [index.block(at) for at in range(len(index))]
    newest = [
        max(struct.unpack_from(">q", one, 35)[0] for one in everything_between(data, a, n))
        for a, n, *_ in blocks
    ]
    found = next((blocks[at][0] for at, top in enumerate(newest) if top >= stamp), None)
    assert index.since(stamp) == found


def everything_between(data: bytes, start: int, length: int) -> list[bytes]:
    out, end = [], start + length
    while start < end:
        size = struct.unpack_from(">i", data, start + 8)[0] + 12
        out.append(data[start : start + size])
        start += size
    return out


@given(st.integers(0, 30_000), st.integers(0, 30_000), st.integers(1, 20_000))
def test_runs_cover_range_exactly_once(one: int, other: int, limit: int) -> None:
    index = index_of(SAMPLE)
    entry = everything(SAMPLE).entries[0]
    start, stop = sorted(entry.start + min(n, entry.length) for n in (one, other))
    runs = list(index.runs(start, stop, limit))
    if start == stop:
        assert runs == []
        return
    assert runs[0][0] <= start < runs[0][0] + runs[0][1]
    assert runs[-1][0] < stop <= runs[-1][0] + runs[-1][1]
    position, length, *_ = index.block(index.find(stop - 1))
    assert runs[-1][0] + runs[-1][1] == position + length  # no block after the last needed one
    for (a, n), (b, _) in pairwise(runs):
        assert a + n == b


def test_blocks_report_damaged_bytes() -> None:
    data = bytearray(SAMPLE)
    index, entry = index_of(SAMPLE), everything(SAMPLE).entries[0]
    second = index.block(1)
    data[second[0] + 14] ^= 1  # a leader epoch: no CRC of a batch covers it
    inside = data[entry.start : entry.start + entry.length]
    assert index.find_damaged_block(entry.start, inside) == second[0]
    assert index.find_damaged_block(entry.start, inside[: second[1]]) is None
    after = index.block(2)[0]
    assert index.find_damaged_block(after, data[after : entry.start + entry.length]) is None


def test_invalid_batches_are_refused_and_rolled_back() -> None:
    builder = SegmentBuilder(UUID, 1, 5)
    good, wrong = batch(5, 2), bytearray(batch(7))
    wrong[-1] ^= 1
    builder.start_partition(3, topic_id(3), "t3", 0, 5, PartitionState())
    builder.add(good)
    for bad in (bytes(wrong), good, good[:-1], good[:30], batch(4), b"\0" * 70):
        with pytest.raises(DamagedBatch) as caught:
            builder.extend([memoryview(bad)])
        assert caught.value.offset == 7
    with pytest.raises(DamagedBatch) as caught:
        builder.extend([memoryview(batch(7)), memoryview(batch(8) + batch(9) + wrong)])
    assert (caught.value.part, caught.value.at) == (1, len(batch(8) + batch(9)))
    builder.abandon()
    assert builder.position == HEADER_BYTES
    builder.start_partition(4, topic_id(4), "t4", 0, 5, PartitionState())
    builder.add(good)
    builder.end_partition(7)
    assert everything(builder.header() + good + builder.finish()).entries[0].number == 4


@st.composite
def parts(draw: st.DrawFn) -> list[Part]:
    made = []
    for number in sorted(draw(st.sets(st.integers(0, 2**63), max_size=4))):
        base = offset = draw(st.integers(0, 2**40))
        batches = []
        for _ in range(draw(st.integers(0, 12))):
            offset += draw(st.integers(0, 2**33) | st.just(0))
            count = draw(st.integers(1, 3))
            size = draw(st.sampled_from([0, 10, 3000, 9000]))
            batches.append(batch(offset, count, size=size, stamp=draw(st.integers(-1, 2**40))))
            offset += count
        aborted = draw(st.lists(st.tuples(*[st.integers(0, 2**60)] * 3), max_size=3))
        state = PartitionState(base, draw(st.binary(max_size=9)), draw(st.binary(max_size=9)))
        state.aborted = [*map(Aborted._make, aborted)]
        made.append(Part(number, batches, base, offset + draw(st.integers(0, 3)), state))
    return made


@given(parts())
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_any_segment_round_trips(given_parts: list[Part]) -> None:
    for part in given_parts:
        part.number %= 1 << 60
    given_parts = sorted({p.number: p for p in given_parts}.values(), key=lambda p: p.number)
    whole = _named(given_parts)
    assert [entry.number for entry in whole.entries] == [part.number for part in given_parts]
    for part, entry, found in zip(given_parts, whole.entries, whole.batches, strict=True):
        assert found == list(part.batches)
        assert (entry.base_offset, entry.end_offset) == (part.base, part.end)
        assert whole.states[part.number] == part.state


def _named(given_parts: list[Part]):  # type: ignore[no-untyped-def]
    builder = SegmentBuilder(UUID, 1, 5)
    data = bytearray(builder.header())
    for part in given_parts:
        assert part.state is not None
        assert part.end is not None
        builder.start_partition(part.number, UUID, "täglich", 0, part.base, part.state)
        views = [memoryview(one) for one in part.batches]
        builder.extend(views)
        data += b"".join(views)
        builder.end_partition(part.end)
    return everything(bytes(data + builder.finish()))


def test_every_flipped_bit_is_detected() -> None:
    """One bit of each byte: some check of the format fails, and only as a FormatError."""
    rng = random.Random(1)
    small = segment([Part(3, [batch(0, 2), batch(2)], state=STATE_OF_3), Part(4, [batch(7)])])
    for at in range(len(small)):
        data = bytearray(small)
        data[at] ^= 1 << rng.randrange(8)
        with pytest.raises(FormatError):
            everything(bytes(data))


def test_every_truncation_is_detected() -> None:
    small = segment([Part(3, [batch(0, 2), batch(2)], state=STATE_OF_3), Part(4, [batch(7)])])
    for size in range(len(small)):
        with pytest.raises(FormatError):
            everything(small[:size])
        with pytest.raises(FormatError):
            everything(small[size:] if size else small[1:])


@given(st.data())
@settings(max_examples=10 * settings().max_examples, deadline=None)
def test_garbage_with_valid_checksums_is_refused_with_message(data: st.DataObject) -> None:
    """Sections of random bytes with valid checksums: lengths in them must not be trusted."""
    trailer = read_trailer(SAMPLE[-TAIL_BYTES:], len(SAMPLE))
    section = trailer.section(data.draw(st.sampled_from([DIRECTORY, STATE])))
    body = bytearray(SAMPLE[section.body_start : section.stop])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)) | st.just(len(body)))
    read = directory.read_directory if section.kind == DIRECTORY else directory.read_state
    with suppress(FormatError):
        read(body[:cut])


@given(st.binary(max_size=300), st.integers(0, 300))
def test_random_bytes_are_refused(noise: bytes, size: int) -> None:
    for read in (directory.read_directory, directory.read_state):
        with suppress(FormatError):
            read(noise)
    with pytest.raises(FormatError):
        read_header(noise)
    with pytest.raises(FormatError):
        read_trailer(noise, size)
    with pytest.raises(FormatError):
        SparseIndex(noise, 64, 100, 0, crc32c(noise) ^ 1)


def with_section(kind: int, version: int, flags: int) -> bytes:
    """A sample with one more section, of a type or version of the future."""
    data = SAMPLE
    trailer = read_trailer(data[-TAIL_BYTES:], len(data))
    body = b"from the future"
    table_at = trailer.sections[-1].stop
    head = layout.SECTION_HEAD.pack(kind, version, flags, len(body))
    section = layout.Section(kind, version, flags, table_at, len(body), crc32c(head + body))
    size = len(data) + len(head) + len(body) + layout.SECTION.size
    more = layout.Trailer(
        trailer.uuid, size, trailer.batches_end, trailer.partitions, trailer.batches,
        trailer.records, [*trailer.sections, section],
    )  # fmt: skip
    return data[:table_at] + head + body + layout.write_trailer(more)


def test_unknown_section_is_skipped_unless_required() -> None:
    plain = everything(SAMPLE)
    for kind, version in (
        (8, 1),
        (9, 7),
        (KEYS, 2),
        (STORED, 2),
        (LOST, 2),
        (STATE, 2),
        (ORIGIN, 2),
    ):
        whole = everything(with_section(kind, version, 0))
        assert whole.entries == plain.entries
        assert whole.states == plain.states
        with pytest.raises(NewerFormatError, match="start the newer version that wrote it"):
            everything(with_section(kind, version, 1))


def test_missing_section_is_reported() -> None:
    trailer = read_trailer(SAMPLE[-TAIL_BYTES:], len(SAMPLE))
    trailer.sections[:] = [s for s in trailer.sections if s.kind != INDEX]
    with pytest.raises(FormatError, match="no index this program can read"):
        trailer.section(INDEX)


def test_newer_format_is_refused_in_one_sentence() -> None:
    header = bytearray(SAMPLE[:HEADER_BYTES])
    struct.pack_into("<I", header, 8, 2)
    struct.pack_into("<I", header, 12, crc32c(header[16:], crc32c(header[:12])))
    with pytest.raises(NewerFormatError, match=r"format version 2, .* reads up to 1: start"):
        read_header(header)
    tail = bytearray(SAMPLE[-TAIL_BYTES:])
    struct.pack_into("<I", tail, len(tail) - 16, 2)
    struct.pack_into("<I", tail, len(tail) - 12, crc32c(tail[-96:-12]))
    with pytest.raises(NewerFormatError, match="format version 2"):
        read_trailer(tail, len(SAMPLE))


def test_trailer_must_fit_its_file() -> None:
    trailer = read_trailer(SAMPLE[-TAIL_BYTES:], len(SAMPLE))
    with pytest.raises(FormatError, match="its trailer says"):
        read_trailer(SAMPLE[-TAIL_BYTES:], len(SAMPLE) + 1)
    with pytest.raises(FormatError, match="do not hold the section table"):
        read_trailer(SAMPLE[-TRAILER_BYTES:], len(SAMPLE))
    shifted = [layout.Section(1, 1, 1, trailer.batches_end + 1, 5, 0)]
    wrong = layout.Trailer(UUID, len(SAMPLE), trailer.batches_end, 0, 0, 0, shifted)
    tail = layout.write_trailer(wrong)
    with pytest.raises(FormatError, match="not where the one before ends"):
        read_trailer(tail, len(SAMPLE))
