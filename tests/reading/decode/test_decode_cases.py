"""The decoder, case by case: bounds of Arrow batches, accounts, and continuing after damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import cramjam
import pyarrow as pa
import pytest
from numba import types

from kafkawire.codec import batches, compiled
from kafkawire.codec.batches import (
    CONTROL,
    DELETE_HORIZON,
    HEAD_BYTES,
    TRANSACTIONAL,
    Record,
    build,
    pack,
    resum,
    stamp,
)
from kafkawire.codec.compression import ZSTD
from kafkawire.codec.control import Aborted
from kafkawire.reading.decode import gather, walk
from kafkawire.reading.decode.decoder import Decoder
from kafkawire.reading.decode.listing import GROUP_BYTES, Unpacker
from kafkawire.reading.model.columns import DEFAULT, DEFAULT_HEADERS, NATIVE, Selection
from kafkawire.reading.model.source import (
    ABORTED,
    COMPACTED,
    DAMAGED,
    GAPS_LISTED,
    LOST,
    Account,
    DamagedData,
    OffsetGap,
    PartitionRange,
)
from kafkawire.reading.model.source import CONTROL as CONTROL_GAP
from tests.kit.codec.batch_rows import ROWS, as_records, by_aiokafka, by_kafka_python
from tests.kit.spark.slow_decoder import rows_of

MS = 1_700_000_000_000


def reach(end: int, base: int = 0, topic: str = "t", partition: int = 0) -> Account:
    return Account(PartitionRange(topic, partition, base, end))


def decode(decoder: Decoder, account: Account, *data: bytes | bytearray) -> list[pa.RecordBatch]:
    """All Arrow batches of one range."""
    decoder.start_range(account)
    found = [batch for part in data for batch in decoder.decode_batches(part, check_crc=True)]
    decoder.end_range()
    found += decoder.flush()
    assert account.missing == 0
    return found


def values(batches: Sequence[pa.RecordBatch], name: str = "_value") -> list[object]:
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def numbered(base: int, count: int, size: int = 8, codec: int = 0) -> bytearray:
    pairs = [(None, (base + n).to_bytes(8, "big") * (size // 8)) for n in range(count)]
    return build(pairs, base_offset=base, timestamp_ms=MS, codec=codec)


def test_heads_of_batches_are_read_where_they_are_built() -> None:
    for name in ("HEAD_BYTES", "PREFIX_BYTES", "RECORD_BYTES_MIN", "LENGTH_AT", "MAGIC_AT",
                 "ATTRIBUTES_AT", "LAST_DELTA_AT", "COUNT_AT"):  # fmt: skip
        assert getattr(compiled, name) == getattr(batches, name)


def test_compiled_code_is_cached_with_the_state_of_all_its_sources() -> None:
    for loop, count in ((walk.list_batches, 1), (walk.note, 1), (gather.gather, 2)):
        (_, *others) = loop._cache._cache_file._source_stamp  # type: ignore[attr-defined]
        assert len(others) == count


def test_without_a_folder_to_cache_in_loops_are_compiled_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("numba.core.caching.CacheImpl._locator_classes", [])
    double = compiled.compile_for(types.int64(types.int64))(lambda number: 2 * number)
    assert double(21) == 42


@pytest.mark.parametrize("codec", range(5))
def test_batches_of_other_clients(codec: int) -> None:
    for made in (by_kafka_python(ROWS, codec), by_aiokafka(ROWS, codec, producer_id=5)):
        rows = rows_of(decode(Decoder(NATIVE), reach(len(ROWS)), made))
        wanted = [
            (r.offset, r.timestamp * 1000, 0, r.key, r.value, tuple(r.headers))
            for r in as_records(ROWS)
        ]
        assert rows == wanted


def test_only_requested_columns_are_decoded() -> None:
    data = build([(b"k", b"v"), (None, b"w")], base_offset=3, timestamp_ms=MS)
    for selection in (DEFAULT, DEFAULT_HEADERS, NATIVE, Selection(("_value", "topic"))):
        (batch,) = decode(Decoder(selection), reach(5, 3), data)
        assert batch.schema.equals(selection.arrow_schema())
        batch.validate(full=True)
    assert batch.to_pylist() == [{"_value": b"v", "topic": "t"}, {"_value": b"w", "topic": "t"}]
    (batch,) = decode(Decoder(Selection(())), reach(5, 3), data)
    assert (batch.num_rows, batch.num_columns) == (2, 0)


def test_value_size_is_available_without_value() -> None:
    pairs = [(b"k", b"v" * 300), (None, None), (b"", b""), (b"k", b"x")]
    selection = Selection(("valueSize",))
    (batch,) = decode(Decoder(selection), reach(4), build(pairs, timestamp_ms=MS))
    assert batch.schema.equals(selection.arrow_schema())
    assert batch.column(0).to_pylist() == [300, 0, 0, 1]


def test_arrow_batch_may_contain_many_ranges() -> None:
    decoder = Decoder(DEFAULT)
    for topic, partition, count in [("a", 0, 2), ("a", 7, 1), ("\u00fcber", 0, 3), ("a", 0, 0)]:
        decoder.start_range(reach(count, 0, topic, partition))
        assert not list(decoder.decode_batches(numbered(0, count or 1), check_crc=False))
        decoder.end_range()
    (batch,) = decoder.flush()
    names, numbers = batch.column("topic").to_pylist(), batch.column("partition").to_pylist()
    assert list(zip(names, numbers, strict=True)) == [
        ("a", 0), ("a", 0), ("a", 7), ("\u00fcber", 0), ("\u00fcber", 0), ("\u00fcber", 0),
    ]  # fmt: skip
    assert not list(decoder.flush())


def test_arrow_batches_are_bounded() -> None:
    data = [numbered(base, 100, 80) for base in range(0, 1000, 100)]
    by_rows = decode(Decoder(NATIVE, batch_rows=64), reach(1000), *data)
    assert {batch.num_rows for batch in by_rows} <= {64, 36}
    by_bytes = decode(Decoder(NATIVE, batch_bytes=5000), reach(1000), *data)
    assert all(batch.nbytes < 10_000 for batch in by_bytes)
    assert len(by_bytes) > 10
    assert values(by_rows, "_offset") == values(by_bytes, "_offset") == list(range(1000))


def test_value_larger_than_bound_has_its_own_batch() -> None:
    sizes = [10, 10 << 20, 10, 300, 10]
    data = build([(None, bytes(size)) for size in sizes], timestamp_ms=MS, codec=ZSTD)
    found = decode(Decoder(NATIVE, batch_bytes=200), reach(5), data)
    assert [len(value) for value in values(found)] == sizes  # type: ignore[arg-type]
    assert [batch.num_rows for batch in found] == [1, 1, 1, 1, 1]
    assert values(decode(Decoder(NATIVE), reach(5), data)) == values(found)


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_large_batch_is_decoded_completely_or_not_at_all(codec: int) -> None:
    """More records than are checked in one step."""
    data = numbered(0, 9000, codec=codec)
    assert values(decode(Decoder(NATIVE), reach(9000), data), "_offset") == list(range(9000))
    bad = [Record(n, MS, None, b"x") for n in range(9000)]
    bad[8500].offset = 8000  # its offset does not rise
    account, decoder = reach(10_000), Decoder(NATIVE, batch_rows=1000)
    decoder.start_range(account)
    before = numbered(0, 500)
    for record in bad:
        record.offset += 500
    coming = decoder.decode_batches(before + pack(bad, codec=codec), check_crc=True)
    assert values([next(coming)], "_offset") == list(range(500))
    with pytest.raises(DamagedData, match=r"\[500, 9500\).*record 8500"):
        next(coming)
    assert not list(decoder.flush())
    assert account.rows == 500


def test_timestamps_match_kafka() -> None:
    times = [MS, -1, 0, -(1 << 62), (1 << 62)]
    data = pack([Record(n, time, None, None) for n, time in enumerate(times)])
    (batch,) = decode(Decoder(DEFAULT), reach(5), data)
    micros = batch.column("timestamp").cast("int64").to_pylist()
    assert micros[:3] == [MS * 1000, -1000, 0]
    assert micros[3] == -62_135_596_800_000_000  # the first and the last that Spark knows
    assert micros[4] == 253_402_300_799_999_000
    assert batch.column("timestampType").to_pylist() == [0] * 5
    stamp(data, 77, log_append=True)
    (batch,) = decode(Decoder(DEFAULT), reach(5), data)
    assert batch.column("timestamp").cast("int64").to_pylist() == [77_000] * 5
    assert batch.column("timestampType").to_pylist() == [1] * 5


def test_delete_horizon_is_base_of_timestamps() -> None:
    """DefaultRecordBatch: with bit 6 the base timestamp is when tombstones may go, and the deltas
    count from there."""
    horizon = MS + 86_400_000
    times = [horizon, MS, MS + 5]
    items = [Record(n, time, b"k", None) for n, time in enumerate(times)]
    data = pack(items, attributes=DELETE_HORIZON)
    (batch,) = decode(Decoder(DEFAULT), reach(3), data)
    micros = batch.column("timestamp").cast("int64").to_pylist()
    assert micros == [time * 1000 for time in times]


def transaction(base: int, producer: int, flags: int = 0) -> bytes:
    attributes = TRANSACTIONAL | flags
    items = [(b"k", b"v"), (b"k", b"w")]
    return bytes(
        build(items, base_offset=base, timestamp_ms=MS, producer_id=producer, attributes=attributes)
    )


def test_aborted_transactions_and_markers() -> None:
    data = b"".join(
        [transaction(0, 5), transaction(2, 6), transaction(4, 5, CONTROL), transaction(6, 5)]
    )
    asked = []

    def aborted() -> list[Aborted]:
        asked.append(1)
        return [Aborted(6, 7, 9), Aborted(5, 0, 4)]

    def run(account: Account, decoder: Decoder, *parts: bytes) -> list[object]:
        decoder.start_range(account, aborted)
        found = [batch for part in parts for batch in decoder.decode_batches(part, check_crc=True)]
        decoder.end_range()
        return values([*found, *decoder.flush()], "_offset")

    account = reach(8)
    assert run(account, Decoder(NATIVE), data, b"") == [2, 3, 6, 7]
    assert account.gaps == [OffsetGap(0, 2, ABORTED), OffsetGap(4, 6, CONTROL_GAP)]
    assert len(asked) == 1
    assert run(reach(9), Decoder(NATIVE), bytes(numbered(0, 9))) == list(range(9))
    assert len(asked) == 1  # there was no transaction to look up
    account = reach(8)
    assert run(account, Decoder(NATIVE, read_committed=False), data) == [0, 1, 2, 3, 6, 7]
    assert account.counts == {CONTROL_GAP: 2}
    assert len(asked) == 1


def test_unlisted_gaps_are_counted() -> None:
    items = [Record(2 * n, MS, None, None) for n in range(10_000)]
    parts = [pack(items[:3000]), pack(items[3000:8000]), *(pack([r]) for r in items[8000:])]
    account = reach(20_000)
    assert len(values(decode(Decoder(NATIVE), account, b"".join(parts)), "_offset")) == 10_000
    assert account.counts == {COMPACTED: 10_000}
    assert account.gaps == [OffsetGap(2 * n + 1, 2 * n + 2, COMPACTED) for n in range(GAPS_LISTED)]


def test_empty_batches_and_offsets_in_no_batch() -> None:
    empty = bytearray(numbered(10, 1)[:HEAD_BYTES])
    struct.pack_into(">i", empty, 8, HEAD_BYTES - 12)
    struct.pack_into(">ii", empty, 53, -1, 0)
    struct.pack_into(">i", empty, 23, 9)
    resum(empty, 0, len(empty))
    account = reach(40)
    found = decode(Decoder(NATIVE), account, numbered(0, 5) + empty + numbered(30, 2))
    assert values(found, "_offset") == [0, 1, 2, 3, 4, 30, 31]
    assert account.gaps == [OffsetGap(5, 30, COMPACTED), OffsetGap(32, 40, COMPACTED)]


def test_skipped_offsets_keep_their_reason() -> None:
    account, decoder = reach(40), Decoder(NATIVE)
    decoder.start_range(account)
    decoder.skip(10, LOST)
    found = list(
        decoder.decode_batches(numbered(0, 12), check_crc=False)
    )  # it begins before the range does
    decoder.skip(20, LOST)
    decoder.start_range(account)  # the rest of it, from another file
    found += decoder.decode_batches(numbered(15, 10), check_crc=False)
    decoder.end_range()
    assert values([*found, *decoder.flush()], "_offset") == [10, 11, 20, 21, 22, 23, 24]
    assert account.gaps == [
        OffsetGap(0, 10, LOST),
        OffsetGap(12, 20, LOST),
        OffsetGap(25, 40, COMPACTED),
    ]


def test_decoding_continues_after_damage() -> None:
    data = numbered(0, 10) + numbered(10, 10, codec=ZSTD) + numbered(20, 10)
    at = len(numbered(0, 10))
    data[at + HEAD_BYTES + 9] ^= 0xFF
    account, decoder = reach(30), Decoder(NATIVE)
    decoder.start_range(account)
    with pytest.raises(DamagedData) as caught:
        list(decoder.decode_batches(data, check_crc=True))
    wrong = caught.value
    assert (wrong.topic, wrong.partition, wrong.base, wrong.end) == ("t", 0, 10, 20)
    start, stop = decoder.broken
    assert (start, stop) == (at, at + len(numbered(10, 10, codec=ZSTD)))
    decoder.skip(wrong.end, DAMAGED)
    list(decoder.decode_batches(data[stop:], check_crc=True))
    decoder.end_range()
    offsets = values(list(decoder.flush()), "_offset")
    assert offsets == [*range(10), *range(20, 30)]
    assert account.gaps == [OffsetGap(10, 20, DAMAGED)]


def test_false_last_offset_delta_hides_no_offsets() -> None:
    """A last offset delta that is too small would make the omitted offsets look compacted."""
    data = numbered(0, 10) + numbered(10, 10)
    struct.pack_into(">i", data, 23, 4)
    decoder = Decoder(NATIVE)
    decoder.start_range(reach(20))
    with pytest.raises(DamagedData, match=r"\[0, 10\)"):
        list(decoder.decode_batches(data, check_crc=False))
    decoder.start_range(reach(20))
    with pytest.raises(DamagedData, match=r"\[0, 13\)"):
        list(decoder.decode_batches(data[: len(data) // 2], check_crc=True, upto=13))


def test_end_of_offsets_is_taken_from_header() -> None:
    decoder = Decoder(NATIVE)
    decoder.start_range(reach(100))
    with pytest.raises(DamagedData, match=r"\[5, 8\).*beyond where"):
        list(decoder.decode_batches(numbered(0, 5) + numbered(5, 5), check_crc=True, upto=8))
    assert values(list(decoder.flush()), "_offset") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data[:-1], "cut off"),
        (lambda data: data[:30], "cut off"),
        (lambda data: data[:8] + bytes(4) + data[12:], "a length that no batch can have"),
        (lambda data: data[:16] + b"\1" + data[17:], "format 2"),
        (lambda data: b"\xff" + data[1:], "do not rise"),
        (lambda data: data + data, "do not rise"),
        (lambda data: data[:40] + b"\1" + data[41:], "checksum"),
    ],
)
def test_damage_is_described(change: object, text: str) -> None:
    decoder = Decoder(NATIVE)
    decoder.start_range(reach(50))
    with pytest.raises(DamagedData, match=f"partition 0 of topic 't'.*{text}"):
        list(decoder.decode_batches(change(bytes(numbered(0, 5))), check_crc=True))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("at", "byte", "text"),
    [
        (HEAD_BYTES, 0x01, "record 0 .* does not fit"),  # a negative length
        (HEAD_BYTES, 0x7E, "record 0 .* does not fit"),
        (HEAD_BYTES + 3, 0x02, "record 0 .* does not fit|does not rise"),
        (60, 6, "left after the 6 records"),
        (60, 9, "record 8 .* does not fit"),
        (22, 0x07, "no codec 7"),
        (22, 0x04, "zstd data is damaged"),
    ],
)
def test_damage_of_record_is_described(at: int, byte: int, text: str) -> None:
    data = numbered(0, 8)
    data[at] = byte
    decoder = Decoder(NATIVE)
    decoder.start_range(reach(50))
    with pytest.raises(DamagedData, match=text):
        list(decoder.decode_batches(data, check_crc=False))


def test_decompression_bomb_is_damage_and_buffer_is_released() -> None:
    bomb = bytearray(numbered(0, 5)[:HEAD_BYTES])
    bomb += cramjam.zstd.compress(bytes(65 << 20))
    bomb[22] = ZSTD
    struct.pack_into(">i", bomb, 8, len(bomb) - 12)
    resum(bomb, 0, len(bomb))
    decoder = Decoder(NATIVE)
    decoder.start_range(reach(50))
    with pytest.raises(DamagedData, match="unpacks to more than 67108864 bytes"):
        list(decoder.decode_batches(bomb, check_crc=True))
    unpacker = Unpacker()
    assert unpacker.add(ZSTD, memoryview(bomb)[HEAD_BYTES:], 66 << 20) == (0, 65 << 20)
    unpacker.clear()
    assert len(unpacker.data) == 2 * GROUP_BYTES


def test_header_names_that_are_not_utf8() -> None:
    """Shown like Java does; and two halves of a character do not become one."""
    items = [Record(0, MS, None, None, [("AA", None), ("BB", b"1"), ("\u00fc", b"2"), ("", b"")])]
    data = pack(items)
    data[data.index(b"AA") :][:2] = b""
    for name, other in ((b"AA", b"a\xc3"), (b"BB", b"\xbcb")):
        at = data.index(name)
        data[at : at + 2] = other
    (batch,) = decode_unchecked(data)
    batch.validate(full=True)
    names = [entry["key"] for entry in batch.column("_headers").to_pylist()[0]]
    assert names == ["a\ufffd", "\ufffdb", "\u00fc", ""]


def decode_unchecked(data: bytearray) -> list[pa.RecordBatch]:
    decoder = Decoder(NATIVE)
    decoder.start_range(reach(1))
    return [*decoder.decode_batches(data, check_crc=False), *decoder.flush()]
