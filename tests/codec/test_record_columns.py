"""Records in columns, and decoded, compared with a reader that takes one field after another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import BatchHead, Record, put_record, records_in
from kafkawire.codec.errors import KafkaError
from kafkawire.codec.record_columns import RecordColumns, read_time_delta
from kafkawire.codec.varint import put_varint, read_varint, read_varlong

BASE_OFFSET, BASE_TIME = 1000, 5000

fields = st.none() | st.binary(max_size=5) | st.binary(min_size=60, max_size=70)
records = st.builds(
    Record,
    st.integers(0, 1 << 31),
    st.integers(-(1 << 62), 1 << 62) | st.integers(0, 20_000),
    fields,
    fields,
    st.lists(st.tuples(st.text(max_size=3), fields), max_size=2),
)


def head_of(count: int, attributes: int = 0) -> BatchHead:
    fields = [0] * 13
    fields[0], fields[5], fields[7], fields[8], fields[12] = (
        BASE_OFFSET, attributes, BASE_TIME, 77, count,
    )  # fmt: skip
    return BatchHead(tuple(fields))


def written(items: list[Record]) -> bytes:
    out = bytearray()
    for item in items:
        put_record(out, item, item.offset - BASE_OFFSET, item.timestamp - BASE_TIME)
    return bytes(out)


def model(data: bytes, count: int) -> tuple[list[Record], bool]:
    """The records before the first that is damaged, and whether all of the data was read."""
    found: list[Record] = []
    pos = 0
    try:
        for _ in range(count):
            record, pos = read_one(data, pos)
            found.append(record)
    except IndexError:
        return found, False
    return found, pos == len(data)


def read_one(data: bytes, pos: int) -> tuple[Record, int]:
    length, pos = read_varint(data, pos)
    stop = pos + length
    if length < 0 or stop > len(data):
        raise IndexError
    time, pos = read_varlong(data, pos + 1)
    delta, pos = read_varint(data, pos)
    key, pos = read_bytes(data, pos, stop)
    value, pos = read_bytes(data, pos, stop)
    count, pos = read_varint(data, pos)
    if not 0 <= count <= stop - pos:
        raise IndexError
    headers = []
    for _ in range(count):
        name, pos = read_bytes(data, pos, stop)
        if name is None:
            raise IndexError
        value_, pos = read_bytes(data, pos, stop)
        headers.append((name.decode("utf-8", "surrogateescape"), value_))
    if pos != stop:
        raise IndexError
    return Record(BASE_OFFSET + delta, BASE_TIME + time, key, value, headers), pos


def read_bytes(data: bytes, pos: int, stop: int) -> tuple[bytes | None, int]:
    length, pos = read_varint(data, pos)
    if length < 0:
        return None, pos
    if length > stop - pos:
        raise IndexError
    return data[pos : pos + length], pos + length


def decoded(data: bytes, count: int) -> tuple[list[Record], bool]:
    found: list[Record] = []
    try:
        for record in records_in(data, head_of(count)):
            found.append(record)
    except KafkaError:
        return found, False
    return found, True


@given(st.lists(records, max_size=140), st.integers(-1, 1))
def test_sound_records_and_wrong_counts(items: list[Record], more: int) -> None:
    data = written(items)
    assert model(data, len(items)) == (items, True)
    assert decoded(data, len(items) + more) == model(data, len(items) + more)


@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_damaged_records(items: list[Record], data: st.DataObject) -> None:
    broken = bytearray(written(items))
    for at in data.draw(st.lists(st.integers(0, len(broken) - 1), max_size=3)):
        broken[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]))
    kept = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    assert decoded(kept, len(items)) == model(kept, len(items))


@given(st.lists(records, max_size=9), st.integers(0, 9), st.integers(0, 3))
def test_columns_name_positions(items: list[Record], split: int, before: int) -> None:
    data = bytes(before) + written(items)
    columns = RecordColumns(data, before)
    split = min(split, len(items))
    columns.read(len(data), split)
    columns.read(len(data), len(items) - split)
    assert columns.stop == len(data)
    assert columns.keys == [item.key for item in items]
    assert columns.nulls == [n for n, item in enumerate(items) if item.value is None]
    assert columns.deltas == [item.offset - BASE_OFFSET for item in items]
    for number, item in enumerate(items):
        begin = columns.record_start(number)
        assert data[begin : columns.stops[number]] == written([item])
        assert read_time_delta(data, begin) == item.timestamp - BASE_TIME
        assert read_bytes(data, columns.values[number], len(data))[0] == item.value


def test_records_before_a_damaged_one_stay() -> None:
    items = [Record(BASE_OFFSET + n, BASE_TIME, b"k", b"v") for n in range(3)]
    out = bytearray(written(items))
    put_varint(out, 1 << 20)  # a length of more than there is
    columns = RecordColumns(bytes(out), 0)
    with pytest.raises(IndexError):
        columns.read(len(out), 4)
    assert columns.keys == [b"k"] * 3
