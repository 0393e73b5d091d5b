"""Rows with other keys are left out before Spark gets them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kafkawire.spark.datasource import FilteringReader
from kafkawire.spark.source.key_filter import rows_with_keys
from kafkawire.spark.source.options import parse_options
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.reads import tier_files  # noqa: F401  (a fixture, by name)

KEYS = [b"a", None, b"", b"b", b"a"]


def chunks() -> Iterator[pa.RecordBatch]:
    for at in (0, 5):
        yield pa.record_batch({"n": range(at, at + 5), "_key": pa.array(KEYS, pa.binary())})


@pytest.mark.parametrize(
    ("keys", "rows"),
    [({b"a"}, [0, 4, 5, 9]), ({b"", b"b"}, [2, 3, 7, 8]), ({b"c"}, []), (set(), [])],
)
def test_rows_with_keys(keys: set[bytes], rows: list[int]) -> None:
    found = list(rows_with_keys(chunks(), "_key", keys))
    assert [n for batch in found for n in batch.column("n").to_pylist()] == rows
    assert all(batch.num_rows for batch in found)


def test_tasks_return_only_rows_with_the_keys(files: Files) -> None:
    [number] = files.topic("t")
    files.put(1, Share(number, batches(0, [100] * 3)))
    files.publish()
    schema = StructType([StructField("_key", BinaryType()), StructField("offset", LongType())])
    options = parse_options({"source": files.place.url, "subscribe": "t"}, streaming=False)

    def rows(*filters: spark.Filter) -> list[tuple[bytes, int]]:
        reader = FilteringReader(options, schema)
        reader.pushFilters(list(filters))
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [(row["_key"], row["offset"]) for batch in found for row in batch.to_pylist()]

    every = rows()
    assert len(every) == 300
    key = every[7][0]
    wanted = spark.EqualTo(("_key",), key)
    assert rows(wanted) == [row for row in every if row[0] == key]
    assert rows(wanted, spark.GreaterThan(("offset",), 7)) == [
        row for row in every if row[0] == key and row[1] > 7
    ]
    assert rows(spark.In(("_key",), (b"no such key",))) == []
