"""Record batches: compared with kafka-python's and aiokafka's own code, round trips, damage."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from kafkawire.codec import batches
from kafkawire.codec.batches import (
    HEAD_BYTES,
    Record,
    build,
    build_one,
    dump_record,
    iter_batches,
    load_record,
    pack,
    read_head,
)
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.varint import (
    put_uvarint,
    put_varint,
    read_uvarint,
    read_uvarlong,
    read_varint,
    read_varlong,
)
from tests.kit.codec import batch_rows
from tests.kit.codec.batch_rows import ROWS, Row, as_records, by_aiokafka, by_kafka_python

CODECS = range(5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("builder", [by_kafka_python, by_aiokafka])
def test_batches_of_other_clients_are_decoded(builder: object, codec: int) -> None:
    assert callable(builder)
    batch = builder(ROWS, codec)
    assert list(batches.records(batch)) == as_records(ROWS)
    head = read_head(batch)
    assert (head.size_bytes, head.codec, head.count) == (len(batch), codec, len(ROWS))
    assert head.max_timestamp == max(row[0] for row in ROWS)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", [KafkaPythonBatch, AiokafkaBatch])
def test_our_batches_are_decoded_by_other_clients(reader: type, codec: int) -> None:
    batch = reader(bytes(pack(as_records(ROWS, 40), codec=codec)))
    assert batch.validate_crc()
    assert [
        (r.offset, r.timestamp, r.key, r.value, [(n, v) for n, v in r.headers]) for r in batch
    ] == [(40 + i, *row) for i, row in enumerate(ROWS)]


def test_uncompressed_batch_equals_bytes_of_other_clients() -> None:
    """Only the leader epoch differs (kafka-python 0, aiokafka -1), outside the checksum."""
    ours = bytes(pack(as_records(ROWS), producer_id=7, producer_epoch=0, base_sequence=0))
    for theirs in (by_kafka_python(ROWS, 0, 7), by_aiokafka(ROWS, 0, 7)):
        assert ours[:12] + ours[16:] == theirs[:12] + theirs[16:]


@given(batch_rows.rows, st.integers(0, 4), st.integers(0, 1 << 40))
def test_compressed_batch_round_trips(rows: list[Row], codec: int, base: int) -> None:
    items = as_records(rows, base)
    batch = pack(items, codec=codec, leader_epoch=3, attributes=batches.TRANSACTIONAL)
    assert list(batches.records(batch)) == items
    head = read_head(batch)
    assert (head.base_offset, head.last_offset) == (base, base + len(rows) - 1)
    assert (head.leader_epoch, head.attributes) == (3, batches.TRANSACTIONAL | codec)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 2_000_000])
@pytest.mark.parametrize("with_value", [True, False])
def test_a_batch_of_one_record_has_the_bytes_of_any_batch(size: int, with_value: bool) -> None:
    producer = {"producer_id": 7, "producer_epoch": 3, "attributes": batches.TRANSACTIONAL}
    for key in (None, b"k" * size):
        value = b"v" * size if with_value else None
        expected = build([(key, value)], timestamp_ms=1_700_000_000_000, **producer)
        assert build_one(key, value, 1_700_000_000_000, **producer) == expected
        assert build_one(key, value, 5) == build([(key, value)], timestamp_ms=5)


def test_offset_gaps_of_compaction_are_allowed() -> None:
    items = [Record(10, 5, b"a", None), Record(14, 4, b"b", b"1"), Record(90, 9, b"c", b"2")]
    batch = pack(items)
    assert list(batches.records(batch)) == items
    assert (read_head(batch).last_delta, read_head(batch).max_timestamp) == (80, 9)


def test_log_append_time_applies_to_every_record() -> None:
    batch = build([(b"k", b"v")] * 3, timestamp_ms=5)
    batches.stamp(batch, 77, log_append=True)
    assert [r.timestamp for r in batches.records(batch)] == [77, 77, 77]
    assert KafkaPythonBatch(bytes(batch)).validate_crc()
    assert [r.timestamp for r in KafkaPythonBatch(bytes(batch))] == [77, 77, 77]


def test_consecutive_batches_are_read_without_truncated_last() -> None:
    first, second = build([(b"a", b"1")], timestamp_ms=1), build([(b"b", b"2")] * 5, timestamp_ms=2)
    both = bytes(first + second)
    heads = list(iter_batches(both))
    assert [(pos, head.count) for pos, head in heads] == [(0, 1), (len(first), 5)]
    for cut in range(len(second)):
        assert len(list(iter_batches(both[: len(first) + cut]))) == 1


def test_batch_at_any_position_of_buffer() -> None:
    batch = build([(b"a", b"1")] * 4, base_offset=9, timestamp_ms=1, codec=2)
    buf = bytearray(b"x" * 100 + bytes(batch) + b"y" * 100)
    assert [r.offset for r in batches.records(memoryview(buf), 100)] == [9, 10, 11, 12]
    buf[117:121] = b"\0\0\0\0"
    batches.resum(buf, 100, len(batch))
    assert buf[100 : 100 + len(batch)] == batch


def test_impossible_batch_length_is_an_error() -> None:
    broken = bytearray(build([(b"a", b"1")], timestamp_ms=1))
    broken[8:12] = (HEAD_BYTES - 13).to_bytes(4, "big")
    with pytest.raises(KafkaError) as caught:
        list(iter_batches(broken))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", CODECS)
def test_any_damage_raises_the_same_error_type(codec: int) -> None:
    """Without the CRC between damage and reader: every field may have any value."""
    rng = random.Random(codec)
    sound = bytes(pack(as_records(ROWS[:12]), codec=codec))
    outcomes = set()
    for _ in range(1500):
        broken = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        if rng.random() < 0.3:
            del broken[rng.randrange(len(broken)) :]
        try:
            list(batches.records(bytes(broken)))
            outcomes.add("read")
        except KafkaError as error:
            outcomes.add(error.code.name)
    assert outcomes <= {
        "read",
        "CORRUPT_MESSAGE",
        "MESSAGE_TOO_LARGE",
        "UNSUPPORTED_COMPRESSION_TYPE",
    }
    assert {"read", "CORRUPT_MESSAGE"} <= outcomes


@given(st.integers(0, (1 << 32) - 1))
def test_unsigned_varints(value: int) -> None:
    out = bytearray(b"ab")
    put_uvarint(out, value)
    assert read_uvarint(out, 2) == (value, len(out))
    assert read_uvarlong(bytes(out), 2) == (value, len(out))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_varints(value: int) -> None:
    out = bytearray()
    put_varint(out, value)
    assert read_varlong(out, 0) == (value, len(out))
    if -(1 << 31) <= value < 1 << 31:
        assert read_varint(memoryview(out), 0) == (value, len(out))
    else:
        with pytest.raises(IndexError):
            read_varint(out, 0)


@pytest.mark.parametrize("raw", ["", "80", "ffffffff", "ffffffff10", "808080808001", "8080808080"])
def test_truncated_and_overlong_varints_are_refused(raw: str) -> None:
    with pytest.raises(IndexError):
        read_uvarint(bytes.fromhex(raw), 0)


def test_record_by_itself() -> None:
    record = Record(7, 1_795_000_000_123, b"k", None, [("h", b"1"), ("h", None), ("ä", b"")])
    data = dump_record(record)
    assert load_record(data, 7) == record
    for cut in range(len(data)):
        with pytest.raises(KafkaError):
            load_record(data[:cut], 7)
    with pytest.raises(KafkaError):
        load_record(data + b"\0", 7)
