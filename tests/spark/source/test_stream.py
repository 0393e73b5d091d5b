"""`spark.readStream.format("kafkawire")` on a real Spark: each offset in exactly one micro-batch.

A broker with a folder as its tier; segments are read from the folder, newer records from the
broker.

Covers: kafkawire_spark.source.stream.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafkawire.testing.plugin import Factory
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.session import sentence
from tests.kit.spark.topics import QUICK, Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.real

WITHIN_S = 60
Offset = tuple[str, int, int]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def broker(kafkawire_broker_factory: Factory, tier: Path) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory(settings={**QUICK, "tier.url": str(tier)})
    yield made
    made.stop()


@pytest.fixture
def topics(broker: BrokerProcess) -> Topics:
    return Topics(broker)


class Sink:
    """Keeps the offsets of each micro-batch by its number, like an idempotent table."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.batches: dict[int, list[Offset]] = {}
        self.broken = -1  # the batch that fails after it was read
        self.seen: dict[int, list[list[Offset]]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        found = frame.select("topic", "partition", "offset").collect()
        rows = sorted((row[0], row[1], row[2]) for row in found)
        self.seen.setdefault(number, []).append(rows)
        if number == self.broken:
            raise RuntimeError("the sink is broken")
        self.batches[number] = rows

    @property
    def offsets(self) -> list[Offset]:
        """Offsets of all micro-batches; repeated ones are there twice."""
        return sorted(row for rows in self.batches.values() for row in rows)

    def start(
        self, spark: SparkSession, source: str | Path, *, now: bool = True, **options: str
    ) -> StreamingQuery:
        reader = spark.readStream.format("kafkawire").option("source", str(source))
        for name, value in options.items():
            reader = reader.option(name.replace("_", "."), value)
        writer = reader.load().writeStream.option("checkpointLocation", str(self.checkpoint))
        writer = writer.foreachBatch(self)
        return (writer.trigger(availableNow=True) if now else writer).start()

    def run(self, spark: SparkSession, source: str | Path, **options: str) -> StreamingQuery:
        """Process all available data, then stop."""
        query = self.start(spark, source, now=True, **options)
        assert query.awaitTermination(WITHIN_S), "it does not end"
        return query


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def offsets_of(topics: Topics, *names: str) -> list[Offset]:
    return [(row.topic, row.partition, row.offset) for row in topics.of(*names)]


def until(true: Callable[[], bool], what: str, query: StreamingQuery) -> None:
    end = time.monotonic() + WITHIN_S
    while not true():
        assert query.isActive, f"the query ended: {query.exception()}"
        assert time.monotonic() < end, f"not in {WITHIN_S} s: {what}"
        time.sleep(0.1)


def refusal(run: Callable[[], Any]) -> str:
    with pytest.raises(Exception, match="kafkawire") as refused:
        run()
    return sentence(refused.value)


def test_each_offset_is_in_one_micro_batch(
    spark: SparkSession, topics: Topics, tier: Path, sink: Sink
) -> None:
    topics.make("paced", 3)
    topics.fill("paced", 3000, "zstd")
    topics.until_cut(str(tier), "paced")
    paced = {"subscribe": "paced", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "1000"}
    query = sink.run(spark, tier, **paced)
    assert sink.offsets == offsets_of(topics, "paced")
    assert [len(rows) for _, rows in sorted(sink.batches.items())] == [999, 999, 999, 3]
    last = query.lastProgress
    assert last is not None
    progress = json.loads(last.json)["sources"][0]
    assert progress["latestOffset"] == {"paced": {"0": 1000, "1": 1000, "2": 1000}}
    # The query continues at the checkpoint; new partitions are read from their beginning.
    topics.add_partitions("paced", 5)
    topics.fill("paced", 500)
    topics.until_cut(str(tier), "paced")
    sink.run(spark, tier, **paced)
    assert sink.offsets == offsets_of(topics, "paced")
    assert sum(map(len, sink.batches.values())) == 3500
    sink.run(spark, tier, **paced)  # nothing new
    assert sum(map(len, sink.batches.values())) == 3500


def test_failed_micro_batch_is_repeated_unchanged(
    spark: SparkSession, topics: Topics, tier: Path, sink: Sink
) -> None:
    topics.make("broken", 2)
    topics.fill("broken", 1000)
    topics.until_cut(str(tier), "broken")
    options = {"subscribe": "broken", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "400"}
    sink.broken = 1
    with pytest.raises(Exception, match="the sink is broken"):
        sink.run(spark, tier, **options)
    topics.fill("broken", 300)  # more than there was when the batch was planned
    topics.until_cut(str(tier), "broken")
    sink.broken = -1
    sink.run(spark, tier, **options)
    first, again = sink.seen[1]
    assert first == again
    assert len(first) == 400
    assert sink.offsets == offsets_of(topics, "broken")


def test_stream_reads_new_records_and_new_topics_of_pattern(
    spark: SparkSession, topics: Topics, tier: Path, sink: Sink
) -> None:
    topics.make("live.a", 1)
    topics.fill("live.a", 100)
    topics.until_cut(str(tier), "live.a")
    topics.fill("live.a", 10)  # the newest are asked of the broker
    query = sink.start(
        spark, tier, now=False, subscribePattern=r"live\..*", startingOffsets="earliest",
        kafka_bootstrap_servers=topics.bootstrap,
    )  # fmt: skip
    try:
        until(lambda: sink.offsets == offsets_of(topics), "the first 110", query)
        topics.fill("live.a", 5)
        topics.make("live.b", 2)
        topics.fill("live.b", 20)
        until(lambda: sink.offsets == offsets_of(topics), "a new topic", query)
        topics.add_partitions("live.a", 3)
        topics.fill("live.a", 30)
        until(lambda: sink.offsets == offsets_of(topics), "new partitions", query)
    finally:
        query.stop()
    topics.fill("live.b", 7)
    sink.run(spark, topics.bootstrap, subscribePattern=r"live\..*")
    assert sink.offsets == offsets_of(topics)


def test_new_stream_begins_at_latest(spark: SparkSession, topics: Topics, sink: Sink) -> None:
    topics.make("newest", 2)
    topics.fill("newest", 50)
    query = sink.start(spark, topics.bootstrap, now=False, subscribe="newest")
    try:
        until(lambda: query.lastProgress is not None, "its first look", query)
        topics.fill("newest", 6)
        until(lambda: len(sink.offsets) == 6, "what is new", query)
    finally:
        query.stop()
    assert sink.offsets == [row for row in offsets_of(topics, "newest") if row[2] >= 25]


def test_retention_beyond_checkpoint_fails_or_is_skipped(
    spark: SparkSession, topics: Topics, sink: Sink
) -> None:
    topics.make("trimmed", 1)
    topics.fill("trimmed", 100)
    options = {"subscribe": "trimmed", "startingOffsets": "earliest"}
    sink.run(spark, topics.bootstrap, **options)
    topics.fill("trimmed", 100)
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    trim = [TopicPartition("trimmed", 0, 150)]
    next(iter(admin.delete_records(trim).values())).result(60)
    reported = refusal(lambda: sink.run(spark, topics.bootstrap, **options))
    assert reported.startswith("offsets [100, 150) of trimmed-0 are not there any more")
    sink.run(spark, topics.bootstrap, **options, failOnDataLoss="false")
    wanted = [row for row in offsets_of(topics, "trimmed") if not 100 <= row[2] < 150]
    assert sink.offsets == wanted


def test_deleted_topic_fails_or_is_skipped(spark: SparkSession, topics: Topics, sink: Sink) -> None:
    for name in ("stays", "goes"):
        topics.make(name, 1)
        topics.fill(name, 10)
    options = {"subscribe": "stays,goes", "startingOffsets": "earliest"}
    sink.run(spark, topics.bootstrap, **options)
    gone = offsets_of(topics, "goes")
    topics.delete("goes")
    topics.fill("stays", 10)
    assert "goes-0 gone" in refusal(lambda: sink.run(spark, topics.bootstrap, **options))
    sink.run(spark, topics.bootstrap, **options, failOnDataLoss="false")
    assert sink.offsets == sorted(gone + offsets_of(topics, "stays"))


def test_min_offsets_delays_small_micro_batch(
    spark: SparkSession, topics: Topics, sink: Sink
) -> None:
    topics.make("few", 1)
    topics.fill("few", 10)
    query = sink.start(
        spark, topics.bootstrap, now=False, subscribe="few", startingOffsets="earliest",
        minOffsetsPerTrigger="8", maxTriggerDelay="1h",
    )  # fmt: skip
    try:
        until(lambda: len(sink.offsets) == 10, "the first", query)
        topics.fill("few", 3)
        time.sleep(3)
        assert len(sink.offsets) == 10
        topics.fill("few", 5)  # in one batch of the client or more: only all of them are enough
        until(lambda: len(sink.offsets) == 18, "enough", query)
    finally:
        query.stop()
    assert [len(rows) for rows in sink.batches.values()] == [10, 8]


def test_ending_offsets_are_refused(spark: SparkSession, topics: Topics, sink: Sink) -> None:
    topics.make("endless", 1)
    options = {"subscribe": "endless", "endingOffsets": "latest"}
    reported = refusal(lambda: sink.run(spark, topics.bootstrap, **options))
    assert reported == "a stream has no end: endingOffsets is for spark.read"
