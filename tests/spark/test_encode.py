"""The encoder compared with the codec's reader and our decoder: the same rows, in bounded batches.

Covers: kafkawire_spark.encode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import HEAD_BYTES, Record, read_head, records
from kafkawire.codec.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.codec.validate import LongBatch, check_batch, unpack_long, walk, walk_long
from kafkawire.reading.decode.decoder import Decoder
from kafkawire.reading.model.columns import NATIVE, Selection
from kafkawire.reading.model.source import Account, PartitionRange, SourceError
from kafkawire_spark.encode import encode_batches

MS = 1_700_000_000_000
COLUMNS = Selection(("_timestamp", "_key", "_value", "_headers"))


def optional(dice: Random) -> bytes | None:
    size = dice.choice([None, 0, 1, 3, 63, 64, 130, 9000])
    return None if size is None else dice.randbytes(size)


def made_up(dice: Random, count: int) -> list[Record]:
    """Records at offsets from 0 on."""
    made = []
    for offset in range(count):
        names = [dice.choice(["", "h", "\u00fc" * 40]) for _ in range(dice.choice([0, 0, 1, 70]))]
        headers = [(name, optional(dice)) for name in names]
        time = dice.choice([MS, MS + dice.randint(-(10**6), 10**6), -1, 0, -5000])
        made.append(Record(offset, time, optional(dice), optional(dice), headers))
    return made


def as_batch(rows: Sequence[Record], selection: Selection = COLUMNS) -> pa.RecordBatch:
    columns = {
        "timestamp": [row.timestamp * 1000 for row in rows],
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "headers": [
            [{"key": name, "value": value} for name, value in row.headers] or None for row in rows
        ],
    }
    schema = selection.arrow_schema()
    arrays = [
        pa.array(columns[column.kind], field.type)
        for column, field in zip(selection.fields(), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _walk(data: memoryview, head: tuple[int, ...]) -> None:
    """Check the records like the broker, however many there are."""
    try:
        walk(data, head, TopicConfig(), MS)
    except LongBatch:
        deque(walk_long(bytes(unpack_long(data, head)), head, TopicConfig(), MS), maxlen=0)


def read_back(batches: Sequence[tuple[bytearray, int]]) -> list[Record]:
    """Decode by the codec's reader; each batch must be one that the broker accepts."""
    found: list[Record] = []
    for data, rows in batches:
        head = check_batch(memoryview(data), len(data))
        _walk(memoryview(data), head)
        items = list(records(data))
        assert len(items) == rows == head[12]
        assert read_head(data).max_timestamp == max(item.timestamp for item in items)
        found += items
    for offset, record in enumerate(found):
        record.offset = offset
    return found


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
@given(st.integers(0, 1 << 32))
def test_encoded_rows_round_trip(codec: int, seed: int) -> None:
    dice = Random(seed)
    rows = made_up(dice, dice.choice([1, 5, 25]))
    batch_bytes = dice.choice([1, 5000, 1 << 20])
    made = list(encode_batches(as_batch(rows), codec=codec, batch_bytes=batch_bytes))
    assert read_back(made) == rows
    assert all(len(data) <= batch_bytes or count == 1 for data, count in made)


def test_decode_encode_decode_is_stable() -> None:
    rows = made_up(Random(5), 200)
    first = b"".join(bytes(data) for data, _ in encode_batches(as_batch(rows), batch_bytes=1 << 30))
    decoded = decode(first)
    again = b"".join(bytes(data) for data, _ in encode_batches(decoded, batch_bytes=1 << 30))
    assert again == first


def decode(data: bytes) -> pa.RecordBatch:
    decoder = Decoder(NATIVE, batch_bytes=64 << 20)
    account = Account(PartitionRange("t", 0, 0, 200))
    decoder.start_range(account)
    found = [*decoder.decode_batches(data, check_crc=True)]
    decoder.end_range()
    found += decoder.flush()
    assert account.rows == 200
    (batch,) = found
    return batch


def test_slices_encode_only_their_rows() -> None:
    rows = made_up(Random(7), 30)
    for offset, record in enumerate(rows[11:24]):
        record.offset = offset
    sliced = as_batch(rows).slice(11, 13)
    assert read_back(list(encode_batches(sliced))) == rows[11:24]


def test_absent_columns_are_null_and_others_ignored() -> None:
    batch = pa.RecordBatch.from_pydict({"value": ["text", None], "more": [1, 2]})
    found = read_back(list(encode_batches(batch)))
    assert found == [Record(0, -1, None, b"text"), Record(1, -1, None, None)]
    assert not list(encode_batches(batch.slice(0, 0)))
    batch = pa.RecordBatch.from_pydict({"_value": [b"native"], "value": [b"the table's own"]})
    assert read_back(list(encode_batches(batch))) == [Record(0, -1, None, b"native")]


def test_sequences_increase_and_wrap_around() -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b"x" * 100] * 30})
    start = (1 << 31) - 7
    made = list(encode_batches(batch, batch_bytes=HEAD_BYTES + 700, producer=(9, 4, start)))
    heads = [read_head(data) for data, _ in made]
    assert {(head.producer_id, head.producer_epoch) for head in heads} == {(9, 4)}
    wanted, sequence = [], start
    for _, rows in made:
        wanted.append(sequence)
        sequence = (sequence + rows) % (1 << 31)
    assert [head.base_sequence for head in heads] == wanted
    assert wanted[0] == start
    assert 0 <= wanted[-1] < 30
    assert len(made) > 3


def test_large_record_has_its_own_batch() -> None:
    sizes = [10, 3 << 20, 10]
    batch = pa.RecordBatch.from_pydict({"value": [bytes(size) for size in sizes]})
    made = list(encode_batches(batch, batch_bytes=1000))
    assert [rows for _, rows in made] == [1, 1, 1]
    assert [len(record.value or b"") for record in read_back(made)] == sizes


def test_header_without_name_is_refused() -> None:
    batch = as_batch([Record(0, MS, None, None), Record(1, MS, None, None)])
    headers = pa.array([None, [{"key": None, "value": b"x"}]], batch.schema.field("_headers").type)
    batch = batch.set_column(3, "_headers", headers)
    with pytest.raises(SourceError, match="row 1 has a header without a name"):
        list(encode_batches(batch))
