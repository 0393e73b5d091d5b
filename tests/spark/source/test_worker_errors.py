"""Errors of `format("kafkawire")` in a program: our sentence without the worker's traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.datasource import KafkawireSource
from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.session import sentence
from kafkawire_spark.source.worker_errors import HIDE, hide_traceback
from tests.kit.spark.pipeline_topics import Tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MISSING = {"subscribe": "nope"}
INVALID = {"subscribe": "orders", "startingOffsets": "x"}
NO_TOPIC = "there is no topic 'nope' in "
NO_END = "a stream has no end: endingOffsets is for spark.read"
NO_OFFSET = "startingOffsets='x' is not earliest, latest, or JSON"
SINK = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "x"}
NOW: Mapping[str, Any] = {"availableNow": True}
MAX_WORDS = 200  # of Spark, around the sentence


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    made = Tier(open_place(str(tmp_path / "tier")))
    made.grow(100)
    return made


def read(spark: SparkSession, source: str, **options: str) -> None:
    spark.read.format("kafkawire").options(source=source, **options).load().count()


def stream(
    spark: SparkSession,
    source: str,
    folder: Path,
    options: Mapping[str, str],
    schema: str | None = None,
    trigger: Mapping[str, Any] = NOW,
) -> None:
    reader = spark.readStream.format("kafkawire").options(source=source, **options)
    frame = (reader.schema(schema) if schema else reader).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    query.trigger(**trigger).start().awaitTermination()


def check(work: Callable[[], object], expected: str, most: int = MAX_WORDS) -> None:
    with pytest.raises(Exception, match=expected[:10]) as caught:
        work()
    said = str(caught.value)
    assert "Traceback" not in said
    assert sentence(caught.value).startswith(expected)
    assert said.index(expected) < most
    assert len(said) < len(sentence(caught.value)) + most


@pytest.mark.real
def test_planning_errors_are_a_sentence(spark: SparkSession, tier: Tier) -> None:
    check(lambda: read(spark, tier.files.place.url, **MISSING), NO_TOPIC)
    check(lambda: read(spark, tier.files.place.url, **INVALID), NO_OFFSET)


@pytest.mark.real
def test_error_in_a_task_is_a_sentence(spark: SparkSession, tier: Tier) -> None:
    key = next(key for key in tier.files.place.list("segments/"))
    path = Path(tier.files.place.tier.folder, key)
    data = bytearray(path.read_bytes())
    data[3000] ^= 0x40
    path.write_bytes(data)
    check(lambda: read(spark, tier.files.place.url, subscribe="orders"), "file:///")


@pytest.mark.real
def test_stream_errors_are_a_sentence(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    """Spark adds the query's ids and plan."""
    url = tier.files.place.url
    check(lambda: stream(spark, url, tmp_path / "a", MISSING), NO_TOPIC, most=1000)
    check(lambda: stream(spark, url, tmp_path / "b", INVALID), NO_OFFSET)


@pytest.mark.real
@pytest.mark.parametrize("trigger", [NOW, {"once": True}, {"processingTime": "0 seconds"}])
@pytest.mark.parametrize(
    ("options", "schema", "expected"),
    [
        ({"subscribe": "orders", "endingOffsets": "latest"}, None, NO_END),
        ({"subscribe": "orders"}, "value INT", "the column value is BINARY, not INT: cast it"),
        (INVALID, "value BINARY", NO_OFFSET),  # Spark does not call schema() if it is given
    ],
)
def test_error_of_creating_a_stream_reader_is_a_sentence(
    spark: SparkSession,
    tier: Tier,
    tmp_path: Path,
    options: Mapping[str, str],
    schema: str | None,
    expected: str,
    trigger: Mapping[str, Any],
) -> None:
    url = tier.files.place.url
    check(lambda: stream(spark, url, tmp_path, options, schema, trigger), expected, 1000)


def test_refused_stream_raises_in_each_call() -> None:
    source = KafkawireSource({"source": "x", "subscribe": "orders", "endingOffsets": "latest"})
    reader: Any = source.streamReader(StructType())
    calls: Any = (
        reader.getDefaultReadLimit,
        reader.initialOffset,
        reader.latestOffset,
        reader.partitions,
        reader.read,
    )
    for call in calls:
        given = [None] * len(signature(call).parameters)
        with pytest.raises(SourceError, match=NO_END):
            call(*given)
    reader.stop()


@pytest.mark.real
def test_errors_of_writing_are_a_sentence(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a",)], "value string")
    writing = rows.write.format("kafkawire").options(**SINK)
    check(writing.mode("append").save, "cannot connect to 127.0.0.1:1: Connection refused")
    check(writing.mode("overwrite").save, "a topic cannot be overwritten")


@pytest.mark.real
def test_error_of_a_job_in_a_task_is_a_sentence(spark: SparkSession) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:  # the other of two partitions is empty
            raise SourceError("offset 1 has no place in the table")
        yield from ()

    check(map_in_arrow(spark.range(1), fail, "id BIGINT").collect, "offset 1 has no place")


@hide_traceback
class Reader:
    def partitions(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    ("module", "error", "hidden"),
    [
        ("pyspark.worker", SourceError("x"), True),
        ("pyspark.worker", ValueError("x"), False),  # a bug keeps its traceback
        ("tests", SourceError("x"), False),  # in the driver
    ],
)
def test_only_our_errors_in_a_worker_hide_the_traceback(
    module: str, error: Exception, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec: Any = type("Spec", (), {"name": "kafkawire_spark.daemon"})
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec)
    monkeypatch.setattr(sys, "argv", ["daemon", module])
    monkeypatch.setenv(HIDE, "")
    with pytest.raises(type(error)):
        Reader().partitions(error)
    assert bool(os.environ[HIDE]) is hidden
