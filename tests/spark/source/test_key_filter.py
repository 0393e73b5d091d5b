"""Blocks without a key are not planned; rows with other keys are not passed to Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from kafkawire.reading.files.locations import Place
from kafkawire.reading.key_filter import ranges_with_keys, rows_with_keys
from kafkawire.reading.model.source import PartitionRange, Piece, TaskPart
from kafkawire_spark.datasource import FilteringReader
from kafkawire_spark.source.base_reader import TaskPartition
from kafkawire_spark.source.options import parse_options
from tests.kit.spark.files import Files, Share, batches
from tests.kit.spark.key_index import put
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


def piece(name: str, base: int, end: int) -> Piece:
    return Piece(0, name, 0, 100, 0, 0, 0, base, base, end, end)


class Chosen:
    """A KeyBlocks that keeps these ranges of offsets."""

    def __init__(self, *kept: tuple[int, int]) -> None:
        self._kept = kept

    def narrow(
        self, places: Sequence[Place], pieces: Sequence[Piece], keys: Collection[bytes]
    ) -> Sequence[Piece]:
        return [
            each._replace(base=max(each.base, base), end=min(each.end, end))
            for each in pieces
            for base, end in self._kept
            if max(each.base, base) < min(each.end, end)
        ]


def test_ranges_without_blocks_of_the_keys() -> None:
    whole = PartitionRange("t", 0, 0, 40)
    pieces = (piece("a", 0, 10), piece("b", 10, 20), piece("c", 25, 30))  # [20, 25) is in none
    parts = [
        TaskPart(whole, pieces),
        TaskPart(whole._replace(partition=1), (piece("a", 0, 40),)),
    ]

    def ranges(*kept: tuple[int, int]) -> list[tuple[int, int, int]]:
        return [each[1:] for each in ranges_with_keys((), parts, {b"k"}, Chosen(*kept))]

    assert ranges((0, 40)) == [(0, 0, 40), (1, 0, 40)]
    assert ranges() == [(0, 20, 25), (0, 30, 40)]
    assert ranges((2, 3), (5, 12)) == [
        (0, 2, 3), (0, 5, 12), (0, 20, 25), (0, 30, 40), (1, 2, 3), (1, 5, 12),
    ]  # fmt: skip
    assert ranges((28, 30)) == [(0, 20, 25), (0, 28, 40), (1, 28, 30)]


def test_only_blocks_that_may_have_a_key_are_planned(files: Files) -> None:
    [number] = files.topic("t")
    for base in range(0, 12_000, 4000):
        put(files, base + 1, Share(number, batches(base, [20] * 200, size=600)))
    files.publish()
    schema = StructType([StructField("_key", BinaryType()), StructField("offset", LongType())])
    options = parse_options({"source": files.place.url, "subscribe": "t"}, streaming=False)
    for keys, wanted in (((b"k5",), [5]), ((b"k3999", b"k8000"), [3999, 8000]), ((b"no",), [])):
        reader = FilteringReader(options, schema)
        reader.pushFilters([spark.In(("_key",), keys)])
        tasks = [each for each in reader.partitions() if isinstance(each, TaskPartition)]
        planned = sum(
            part.range.end - part.range.base for each in tasks for part in each.task.parts
        )
        assert planned <= 1000 * len(wanted)
        found = [batch for each in tasks for batch in reader.read(each)]
        assert [n for batch in found for n in batch.column("offset").to_pylist()] == wanted
