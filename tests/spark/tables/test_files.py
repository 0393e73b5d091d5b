"""Files of a table: names, folders, statistics, encodings."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.reading.model.source import PartitionRange
from kafkawire_spark.pipeline.compaction import groups
from kafkawire_spark.pipeline.jobs.job import PartitionColumn
from kafkawire_spark.pipeline.jobs.layout import (
    Layout,
    escape,
    file_path,
    folder,
    parse_path,
    repeating,
    written_by,
)
from kafkawire_spark.pipeline.jobs.state import FileFacts
from kafkawire_spark.pipeline.tables.parquet import Encoding, ParquetFile
from tests.kit.spark.pipelines import job

PART = PartitionRange("orders", 3, 1000, 2000)


def test_file_name_describes_content() -> None:
    path = file_path(PART, (("date", "2026-11-21"),), 7, kind="r", attempt="")
    assert path == (
        "date=2026-11-21/orders-p00003-o00000000000000001000-00000000000000002000-r7.parquet"
    )
    assert parse_path(path) == (PART, "r", 7)
    assert written_by(file_path(PART, (), 9, kind="c", attempt="0af3")) == ("c", 9)
    for other in ("part-00000.parquet", "_kafkawire/table.json", path + ".crc", "x/" + path[:-8]):
        assert written_by(other) is None


@pytest.mark.parametrize("topic", ["__consumer_offsets", ".hidden", "a-p00001-o1"])
def test_file_names_are_never_hidden_by_spark(topic: str) -> None:
    part = PART._replace(topic=topic)
    path = file_path(part, (), 1, kind="r", attempt="")
    assert path[0] not in "._"
    assert parse_path(path) == (part, "r", 1)


def test_partition_values_are_escaped_like_spark() -> None:
    assert folder((("c", None), ("d", ""))) == (
        "c=__HIVE_DEFAULT_PARTITION__/d=__HIVE_DEFAULT_PARTITION__/"
    )
    assert escape("a/b=c d:é\n%") == "a%2Fb%3Dc d%3Aé%0A%25"


def file_of(table: pa.Table, encoding: Encoding) -> tuple[bytes, dict[str, object]]:
    file = ParquetFile(table.schema, encoding, {b"k": b"v"})
    for batch in table.to_batches(max_chunksize=3):
        file.add(batch)
    data, stats = file.close()
    return bytes(data), json.loads(stats)


def sample() -> pa.Table:
    time = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    return pa.table(
        {
            "_offset": pa.array(range(10, 20), pa.int64()),
            "_timestamp": pa.array([time] * 10, pa.timestamp("us", tz="UTC")),
            "_value": pa.array([b"x" * 10] * 9 + [None]),
            "name": pa.array(["a", None] * 4 + ["z", "b"]),
            "long": pa.array(["y" * 100] * 10),
            "ratio": pa.array([0.5, float("nan")] * 5),
            "day": pa.array([date(2026, 1, 2)] * 10),
            "on": pa.array([True] * 10),
            "nothing": pa.nulls(10, pa.int32()),
            "pair": pa.array([{"a": 1, "b": [1, 2]}] * 10),
        }
    )


def test_statistics_have_deltas_format() -> None:
    _, stats = file_of(sample(), Encoding())
    assert stats["numRecords"] == 10
    assert stats["minValues"] == {
        "_offset": 10, "_timestamp": "2026-01-02T03:04:05.678Z", "name": "a", "ratio": 0.5,
        "day": "2026-01-02",
    }  # fmt: skip
    assert stats["maxValues"] == {
        "_offset": 19, "_timestamp": "2026-01-02T03:04:05.679Z", "name": "z", "ratio": 0.5,
        "day": "2026-01-02",
    }  # fmt: skip
    nulls = stats["nullCount"]
    assert isinstance(nulls, dict)
    assert (nulls["name"], nulls["nothing"]) == (4, 10)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4"])
def test_file_contains_added_rows(compression: str, plain: bool) -> None:
    table = sample()
    data, _ = file_of(table, Encoding(compression, plain))
    there = pq.read_table(pa.BufferReader(data))
    assert there.drop(["ratio"]).equals(table.drop(["ratio"]))
    footer = pq.read_metadata(pa.BufferReader(data))
    assert footer.metadata[b"k"] == b"v"
    encodings = footer.row_group(0).column(0).encodings
    assert ("DELTA_BINARY_PACKED" in encodings) is not plain


def test_repeated_values_are_dictionary_encoded() -> None:
    schema = pa.schema([("_offset", pa.int64()), ("_value", pa.binary())])
    sizes = {}
    for distinct in (10, 10_000):
        values = [b"%0500d" % (offset % distinct) for offset in range(10_000)]
        file = ParquetFile(schema, Encoding("none"), {})
        columns = [pa.array(range(10_000)), pa.array(values, pa.binary())]
        file.add(pa.RecordBatch.from_arrays(columns, schema=schema))
        data, _ = file.close()
        assert pq.read_table(pa.BufferReader(data))["_value"].to_pylist() == values
        sizes[distinct] = len(data)
    assert 50 * sizes[10] < sizes[10_000]


def test_topics_are_dictionary_encoded_and_read_as_text() -> None:
    schema = repeating(pa.schema([("_topic", pa.string()), ("_offset", pa.int64())]))
    file = ParquetFile(schema, Encoding(), {})
    topics = pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int32()), pa.array(["t"]))
    file.add(pa.RecordBatch.from_arrays([topics, pa.array([1, 2, 3])], schema=schema))
    data, _ = file.close()
    assert pq.read_schema(pa.BufferReader(data)).field("_topic").type == pa.string()


def layout(*columns: PartitionColumn) -> Layout:
    made = Layout.from_job(job(), [pa.field("_key", pa.binary())], [pa.field("name", pa.string())])
    return Layout(made.files, made.table, columns, made.reads)


def test_rows_are_split_by_partition_columns() -> None:
    names, days = PartitionColumn("name", "name"), PartitionColumn("date", "_timestamp", True)
    day = 86_400_000_000
    batch = pa.RecordBatch.from_pydict(
        {
            "_offset": list(range(6)),
            "_timestamp": pa.array([0, day - 1, day, None, 0, -1], pa.timestamp("us", tz="UTC")),
            "name": ["a", "", None, "a", "b/c", "a"],
        }
    )
    found = {
        values: rows.column("_offset").to_pylist()
        for values, rows in layout(days, names).split(batch)
    }
    first = ("date", "1970-01-01")
    assert found == {
        (first, ("name", "a")): [0],
        (first, ("name", None)): [1],
        (("date", "1970-01-02"), ("name", None)): [2],
        (("date", None), ("name", "a")): [3],
        (first, ("name", "b/c")): [4],
        (("date", "1969-12-31"), ("name", "a")): [5],
    }


def facts(base: int, size: int, *, topic: str = "t", value: str = "x") -> FileFacts:
    values = (("v", value),)
    return FileFacts(f"{topic}{value}{base}", 10, size, topic, 0, base, base + 10, values, 1)


def test_only_small_adjacent_files_are_merged() -> None:
    files = [
        facts(0, 10), facts(20, 10), facts(10, 10), facts(30, 90), facts(40, 10), facts(50, 45),
        facts(60, 46), facts(70, 10), facts(0, 10, value="y"), facts(10, 10, topic="u"),
        FileFacts("somebody's", 10, 1, "", -1, 0, 0), FileFacts("else's", 10, 1, "", -1, 0, 0),
    ]  # fmt: skip
    merged = [[file.base for file in group] for group in groups(files, 100)]
    assert merged == [[0, 10, 20], [40, 50], [60, 70]]
