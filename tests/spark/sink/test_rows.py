"""The work of a task: rows to batches by topic and partition, in order, staged for the driver.

Covers: kafkawire_spark.sink.rows.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2

from kafkawire.codec.batches import Record, iter_batches, records
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.open import open_place
from kafkawire_spark.sink import staging
from kafkawire_spark.sink.options import SinkError, SinkOptions
from kafkawire_spark.sink.rows import Partitioner, RowEncoder
from kafkawire_spark.sink.staging import StagedPart, StagingWriter, discard, load

COUNTS = {"a": 3, "b": 7}


def encoded(
    *batches: pa.RecordBatch,
    topic: str = "a",
    batch_bytes: int = 2000,
    place: Place | None = None,
) -> tuple[StagedPart, ...]:
    options = SinkOptions("localhost:1", topic, batch_bytes=batch_bytes)
    partitioner = Partitioner(COUNTS.__getitem__, 5)
    return RowEncoder(options, partitioner, StagingWriter(place, "q")).encode(batches)


def by_partition(
    parts: tuple[StagedPart, ...], place: Place | None = None
) -> dict[tuple[str, int], list[Record]]:
    found: dict[tuple[str, int], list[Record]] = {}
    for part in parts:
        data, at = load(place, part), 0
        for batch in part.batches:
            own = data[at : at + batch.size_bytes]
            assert len(list(iter_batches(own))) == 1
            rows = list(records(own))
            assert len(rows) == batch.records
            found.setdefault((batch.topic, batch.partition), []).extend(rows)
            at += batch.size_bytes
    return found


def test_keys_have_the_partition_of_kafkas_java_client() -> None:
    dice = Random(7)
    keys = [None if n % 9 == 0 else dice.randbytes(n % 23) for n in range(2000)]
    batch = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": keys})
    for rows in (batch, batch.slice(17, 500)):
        found = Partitioner({"t": 12}.__getitem__, 5).partition_rows("t", rows)
        for key, partition in zip(rows.column("key").to_pylist(), found.tolist(), strict=True):
            expected = 5 if key is None else (murmur2(key) & 0x7FFFFFFF) % 12
            assert partition == expected


def test_rows_of_a_partition_keep_their_order_over_batches() -> None:
    batches = []
    for first in range(0, 5000, 700):
        numbers = range(first, min(first + 700, 5000))
        batches.append(
            pa.record_batch(
                {
                    "key": [f"k{n % 50}" for n in numbers],
                    "value": [b"%d" % n for n in numbers],
                    "topic": ["ab"[n % 2] for n in numbers],
                    "offset": list(numbers),
                }
            )
        )
    found = by_partition(encoded(*batches, topic=""))
    assert {topic for topic, _ in found} == {"a", "b"}
    everything = []
    for (topic, partition), rows in found.items():
        numbers_there = [int(row.value or b"-1") for row in rows]
        assert numbers_there == sorted(numbers_there)
        for row, n in zip(rows, numbers_there, strict=True):
            assert row.key == b"k%d" % (n % 50)
            assert topic == "ab"[n % 2]
            assert partition == (murmur2(row.key) & 0x7FFFFFFF) % COUNTS[topic]
        everything += numbers_there
    assert sorted(everything) == list(range(5000))


def test_rows_have_partition_time_and_headers_of_their_columns() -> None:
    headers = [[{"key": "h", "value": b"1"}], None, []]
    schema = pa.schema(
        [
            ("value", pa.string()), ("partition", pa.int32()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ]
    )  # fmt: skip
    columns = [["x", None, "z"], [2, 0, None], [1_000_000, 2_000_000, 3_000_000], headers]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    found = by_partition(encoded(pa.record_batch(arrays, schema=schema)))
    assert [
        (at[1], row.value, row.timestamp, list(row.headers))
        for at, rows in sorted(found.items())
        for row in rows
    ] == [(0, None, 2000, []), (2, b"x", 1000, [("h", b"1")]), (2, b"z", 3000, [])]


@pytest.mark.parametrize("partition", [-1, 3])
def test_partition_that_does_not_exist_is_refused(partition: int) -> None:
    rows = pa.record_batch({"value": ["x"], "partition": pa.array([partition], pa.int32())})
    with pytest.raises(SinkError, match=f"for partition {partition} of topic 'a', which has 3"):
        encoded(rows)


def test_row_without_topic_is_refused() -> None:
    rows = pa.record_batch({"value": ["x", "y"], "topic": ["a", None]})
    with pytest.raises(SinkError, match="no topic"):
        encoded(rows, topic="")


def test_small_result_is_inline_and_large_one_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "INLINE_BYTES", 3000)
    monkeypatch.setattr(staging, "PART_BYTES", 8000)
    place = open_place(str(tmp_path))
    small = encoded(pa.record_batch({"value": [b"x" * 100] * 20}), place=place)
    assert [part.key for part in small] == [""]
    rows = pa.record_batch({"key": [f"{n}" for n in range(300)], "value": [b"x" * 100] * 300})
    large = encoded(rows, place=place)
    assert len(large) > 3
    assert all(part.key.startswith("q/") and not part.data for part in large)
    assert all(part.size_bytes <= 8000 for part in large)
    found = by_partition(large, place)
    assert sum(map(len, found.values())) == 300
    discard(place, ["q"])
    with pytest.raises(SinkError, match="is missing"):
        load(place, large[0])


def test_large_result_without_staging_location_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "PART_BYTES", 8000)
    monkeypatch.setattr(staging, "MAX_INLINE_BYTES", 20_000)
    rows = pa.record_batch({"value": [b"x" * 100] * 100})
    assert len(encoded(rows)) > 1
    with pytest.raises(SinkError, match="need the option stagingLocation"):
        encoded(rows, rows, rows)


def test_staged_file_of_another_size_is_refused(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    place.put("q/1", b"abc")
    part = StagedPart((staging.StagedBatch("a", 0, 4, 1),), key="q/1")
    with pytest.raises(SinkError, match="has 3 bytes, not 4"):
        load(place, part)
