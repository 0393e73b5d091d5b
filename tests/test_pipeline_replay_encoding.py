"""Record batches made of Arrow rows, against the codec that reads them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkawire.codec.batches import Record, pack, read_head, records
from kafkawire.codec.validate import check_batch
from kafkawire.spark.replay import encoding
from kafkawire.spark.replay.encoding import encoder

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SOME_BYTES = st.one_of(st.none(), st.binary(max_size=200))
STAMPS = st.one_of(st.just(-1), st.integers(-1, 4_102_444_800_000))
ROWS = st.lists(
    st.tuples(
        STAMPS,
        SOME_BYTES,
        SOME_BYTES,
        st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=5), SOME_BYTES), max_size=3)),
    ),
    min_size=1,
    max_size=30,
)


def arrow(rows: Any, *, text: bool = False) -> pa.RecordBatch:
    headers = [None if h is None else [{"key": k, "value": v} for k, v in h] for *_, h in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([ms * 1000 for ms, *_ in rows], pa.timestamp("us", tz="UTC")),
            pa.array([key for _, key, *_ in rows], pa.binary()),
            pa.array([row[2] for row in rows], pa.string() if text else pa.binary()),
            pa.array(headers, HEADERS),
        ],
        names=["_timestamp", "_key", "_value", "_headers"],
    )


@given(ROWS, st.data(), st.sampled_from([1, 100, 1 << 20]))
def test_what_is_encoded_is_read_back(rows: Any, data: st.DataObject, limit: int) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))  # Arrow slices are views with an offset
    count = data.draw(st.integers(1, len(rows) - first))
    sliced = arrow(rows).slice(first, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BATCH_BYTES", limit)
        sequence = (1 << 31) - 3
        encoded = list(encoder(7, 1)(sliced, sequence))
    found = []
    for each in encoded:
        head = read_head(each.data)
        assert (head.producer_id, head.producer_epoch, head.base_sequence) == (7, 1, sequence)
        assert head.size_bytes == len(each.data)
        check_batch(memoryview(each.data), 1 << 20)
        sequence = (sequence + each.records) % (1 << 31)
        some = list(records(each.data))
        assert [record.offset for record in some] == list(range(each.records))
        assert head.max_timestamp == max(record.timestamp for record in some)
        found += some
    wanted = [(ms, k, v, list(h or ())) for ms, k, v, h in rows[first : first + count]]
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in found] == wanted
    if limit == 1:
        assert all(each.records == 1 for each in encoded)


@given(ROWS)
def test_it_is_byte_for_byte_what_the_codec_makes(rows: Any) -> None:
    (encoded,) = encoder(7, 1)(arrow(rows), 5)
    items = [Record(at, ms, k, v, h or ()) for at, (ms, k, v, h) in enumerate(rows)]
    assert encoded.data == pack(items, producer_id=7, producer_epoch=1, base_sequence=5)


def test_columns_may_be_text_or_absent() -> None:
    batch = arrow([(5, None, "é", None), (6, None, None, None)], text=True)
    (encoded,) = encoder(1, 0)(batch.select(["_value"]), 0)
    assert [(r.timestamp, r.key, r.value) for r in records(encoded.data)] == [
        (-1, None, "é".encode()),
        (-1, None, None),
    ]
