"""Spark's side of the sink, without Spark: schemas, and the commit of what tasks return."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from kafkawire.reading.files.open import open_place
from kafkawire_spark.datasource import KafkawireSource
from kafkawire_spark.sink.options import SinkError, parse_options
from kafkawire_spark.sink.staging import StagedBatch, StagedPart, keep_in_open_batch
from kafkawire_spark.sink.writer import BatchWriter, StagedRows, StreamWriter
from tests.kit.spark.sink import FakeCluster
from tests.spark.sink.test_transaction import staged, values, wanted

QUERY = "0b8a"
OPTIONS = {"kafka.bootstrap.servers": "localhost:1", "topic": "out"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster({"out": 3})
    made.patch(monkeypatch)
    return made


def schema(ddl: str) -> StructType:
    """Build a schema without Java, which parses DDL."""
    kinds = {"int": "integer", "bigint": "long"}
    fields = []
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        fields.append(
            {"name": name, "type": kinds.get(kind, kind), "nullable": True, "metadata": {}}
        )
    return StructType.fromJson({"type": "struct", "fields": fields})


VALUE = schema("value binary")


@pytest.mark.parametrize(
    ("ddl", "topic", "sentence"),
    [
        ("key binary", "out", "there is no column value"),
        ("value bigint", "out", "the column value is bigint, not binary or string"),
        ("value binary, partition bigint", "out", "partition is bigint, not int"),
        ("value binary, name string", "out", "records have no column 'name'"),
        ("value binary", "", "give the option topic, or a column topic"),
    ],
)
def test_schema_that_is_not_of_records_is_refused(ddl: str, topic: str, sentence: str) -> None:
    source = KafkawireSource(
        {**OPTIONS, "topic": topic} if topic else {k: OPTIONS[k] for k in list(OPTIONS)[:1]}
    )
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(SinkError, match=sentence):
            writer(schema(ddl), False)


def test_rows_of_the_source_can_be_written() -> None:
    ddl = (
        "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
        "key binary, value binary"
    )
    source = KafkawireSource({**OPTIONS, "topic": ""})
    assert isinstance(source.writer(schema(ddl), False), BatchWriter)


def test_overwriting_is_refused() -> None:
    with pytest.raises(SinkError, match="cannot be overwritten"):
        KafkawireSource(OPTIONS).writer(VALUE, True)


def test_stream_commits_what_tasks_returned_in_their_order(cluster: FakeCluster) -> None:
    writer = StreamWriter(parse_options(OPTIONS, streaming=True), VALUE)
    tasks = [StagedRows(staged(number), QUERY) for number in (0, 1)]
    writer.commit(tasks, 0)
    writer.commit(tasks, 0)  # the driver was killed after the first time
    assert values(cluster) == wanted(0, 1)
    assert list(cluster.offsets) == [f"kafkawire-spark-{QUERY}"]
    mine = [value for place, value in cluster.values if place == ("out", 0)]
    numbers = [tuple(map(int, value.split(b"-"))) for value in mine]
    assert numbers == sorted(numbers)


def test_stream_without_query_is_refused(cluster: FakeCluster) -> None:
    with pytest.raises(SinkError, match="did not pass the id"):
        StreamWriter(parse_options(OPTIONS, streaming=True), VALUE).commit([StagedRows(())], 0)
    assert cluster.steps == []


def test_missing_result_of_a_task_is_refused(cluster: FakeCluster) -> None:
    writer = StreamWriter(parse_options(OPTIONS, streaming=True), VALUE)
    with pytest.raises(SinkError, match="1 tasks returned nothing to commit"):
        writer.commit([StagedRows(staged(0), QUERY), None], 0)
    assert cluster.steps == []


def test_staged_files_are_deleted_after_the_commit(cluster: FakeCluster, tmp_path: Path) -> None:
    """Those of failed attempts too, but not those of other queries."""
    place = open_place(str(tmp_path))
    [part] = staged(0)
    for key in (f"{QUERY}/a", f"{QUERY}/failed", "other/b"):
        place.put(key, part.data)
    options = parse_options({**OPTIONS, "stagingLocation": str(tmp_path)}, streaming=True)
    moved = StagedPart(part.batches, key=f"{QUERY}/a")
    StreamWriter(options, VALUE).commit([StagedRows((moved,), QUERY)], 0)
    assert values(cluster) == wanted(0)
    assert list(place.list()) == ["other/b"]


def test_failed_batch_sends_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    options = parse_options({**OPTIONS, "stagingLocation": str(tmp_path)}, streaming=False)
    writer = BatchWriter(options, VALUE)
    key = f"{writer._prefix}/a"
    place.put(key, b"abc")
    writer.abort([None, StagedRows((StagedPart((StagedBatch("out", 0, 3, 1),), key=key),))])
    assert cluster.steps == []
    assert list(place.list()) == []


def test_batch_with_a_number_is_written_once(cluster: FakeCluster) -> None:
    named = {**OPTIONS, "transactionalId": "load", "batchId": "7"}
    for chosen, more in ((named, [0]), (named, []), (OPTIONS, [1]), (OPTIONS, [1])):
        before = len(cluster.values)
        writer = BatchWriter(parse_options(chosen, streaming=False), VALUE)
        writer.commit([StagedRows(staged(0))])
        assert len(cluster.values) - before == 100 * len(more)


def test_task_of_an_aborted_batch_deletes_its_files(tmp_path: Path, cluster: FakeCluster) -> None:
    place = open_place(str(tmp_path))
    options = {**OPTIONS, "stagingLocation": str(tmp_path)}
    writer = BatchWriter(parse_options(options, streaming=False), VALUE)
    (opened,) = place.list("batch-")
    prefix = opened.partition("/")[0]
    part = StagedPart((StagedBatch("out", 0, 1, 1),), key=f"{prefix}/1")
    place.put(part.key, b"x")
    keep_in_open_batch(place, prefix, [part])
    assert list(place.list("batch-")) == [part.key, opened]
    writer.abort([None])
    assert list(place.list("batch-")) == []
    place.put(part.key, b"x")  # by a task that was still running
    with pytest.raises(SinkError, match="another task of the batch has failed"):
        keep_in_open_batch(place, prefix, [part])
    assert list(place.list("batch-")) == []
