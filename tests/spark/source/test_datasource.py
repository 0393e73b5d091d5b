"""`spark.read.format("kafkawire")` on a real Spark: it returns exactly the produced records.

One broker with a folder as its tier fills topics; Spark reads the tier, the broker, a folder of a
broker without a tier, or a bucket.

Covers: kafkawire_spark.datasource, kafkawire_spark.source.base_reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kafkawire.testing.plugin import Factory
from kafkawire_spark.session import sentence
from tests.kit.minio import Minio
from tests.kit.spark.session import environment
from tests.kit.spark.topics import QUICK, START_MS, Row, Topics, odd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.real

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def topics(kafkawire_broker_factory: Factory, tier: Path) -> Iterator[Topics]:
    """`orders`: 3 partitions in several segments, of several codecs, with odd records; `bills`:
    and `tail`: one partition; `orders.empty`: nothing."""
    broker = kafkawire_broker_factory(settings={**QUICK, "tier.url": str(tier)})
    made = Topics(broker)
    made.make("orders", 3)
    made.make("bills", 1)
    made.make("tail", 1)
    made.make("orders.empty", 2)
    made.fill("orders", 3000, "zstd")
    made.until_cut(str(tier))
    made.fill("bills", 500)
    made.fill("tail", 500)
    made.produce("orders", odd(1), "gzip")
    made.until_cut(str(tier))
    made.fill("orders", 600, "lz4")
    made.fill("orders", 10, "snappy")
    made.until_cut(str(tier))
    yield made
    broker.stop()


def read(spark: SparkSession, source: Path | str, **options: str) -> DataFrame:
    """Read `orders` unless other options are given; underscores for dots."""
    reader = spark.read.format("kafkawire").option("source", str(source))
    if not {"subscribe", "subscribePattern", "assign"} & options.keys():
        reader = reader.option("subscribe", "orders")
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), value)
    return reader.load()


def rows_of(frame: DataFrame) -> list[Row]:
    """Rows in order of topic, partition and offset. Missing columns are None."""
    found = []
    for row in frame.collect():
        has = {name.strip("_"): value for name, value in row.asDict().items()}
        headers = has.get("headers")
        found.append(
            Row(
                has["topic"],
                has["partition"],
                has["offset"],
                (has["timestamp"].astimezone(UTC) - EPOCH) // timedelta(milliseconds=1),
                _bytes(has["key"]),
                _bytes(has["value"]),
                None if headers is None else tuple((h["key"], _bytes(h["value"])) for h in headers),
            )
        )
    return sorted(found)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def bare(rows: list[Row]) -> list[Row]:
    return [row._replace(headers=None) for row in rows]


def at(n: int) -> datetime:
    """The timestamp of record n of a topic."""
    return EPOCH + timedelta(milliseconds=START_MS + n * 1000)


def tasks(frame: DataFrame) -> int:
    return frame.rdd.getNumPartitions()


def refusal(frame_of: Any) -> str:
    """Our error message within what Spark raises."""
    with pytest.raises(Exception, match="kafkawire") as refused:
        frame_of()
    return sentence(refused.value)


def test_every_record_is_read_as_produced(spark: SparkSession, topics: Topics, tier: Path) -> None:
    frame = read(spark, tier, includeHeaders="true")
    assert rows_of(frame) == topics.of("orders")
    assert [field.simpleString() for field in frame.schema] == [
        "topic:string", "partition:int", "offset:bigint", "timestamp:timestamp",
        "timestampType:int", "key:binary", "value:binary",
        "headers:array<struct<key:string,value:binary>>",
    ]  # fmt: skip
    assert {row.timestampType for row in frame.select("timestampType").distinct().collect()} == {0}


@pytest.mark.parametrize("where", ["broker", "tier and broker"])
def test_tail_is_read_from_broker(
    where: str, spark: SparkSession, topics: Topics, tier: Path
) -> None:
    topics.fill("tail", 20)  # in no segment yet
    tail = {"subscribe": "tail", "kafka_bootstrap_servers": topics.bootstrap}
    frame = read(spark, topics.bootstrap if where == "broker" else tier, **tail)
    assert rows_of(frame) == topics.of("tail")


def test_data_folder_is_read_without_broker(
    spark: SparkSession, kafkawire_broker_factory: Factory
) -> None:
    broker = kafkawire_broker_factory(settings=QUICK)
    made = Topics(broker)
    made.make("orders", 2)
    made.fill("orders", 300)
    made.until_cut(str(broker.data))
    broker.stop()
    assert rows_of(read(spark, broker.data)) == bare(made.of("orders"))


def test_columns_are_selected_by_option_or_schema(
    spark: SparkSession, topics: Topics, tier: Path
) -> None:
    wanted = [(row.offset, row.value) for row in topics.of("bills")]
    frame = read(spark, tier, subscribe="bills", columns="offset,_value")
    assert frame.columns == ["offset", "_value"]
    assert sorted((row[0], _bytes(row[1])) for row in frame.collect()) == wanted
    reader = spark.read.format("kafkawire").schema("value BINARY, offset BIGINT")
    frame = reader.option("source", str(tier)).option("subscribe", "bills").load()
    assert sorted((row.offset, _bytes(row.value)) for row in frame.collect()) == wanted
    native = read(spark, tier, columns="native", includeHeaders="true")
    assert native.columns[0] == "_topic"
    assert rows_of(native) == topics.of("orders")
    reader = reader.schema("offset STRING")
    frame = reader.option("source", str(tier)).option("subscribe", "bills").load()
    assert (
        refusal(frame.collect) == "the column offset is BIGINT, not STRING: cast it after reading"
    )


@pytest.fixture
def views(spark: SparkSession) -> Iterator[None]:
    """Drop the views of a test: other tests of the session have topics of the same names."""
    yield
    for table in spark.catalog.listTables():
        if table.isTemporary:
            spark.catalog.dropTempView(table.name)


@pytest.mark.usefixtures("views")
def test_topics_can_be_queried_by_sql(spark: SparkSession, topics: Topics, tier: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING kafkawire "
        f"OPTIONS (source '{tier}', subscribe 'orders')"
    )
    found = spark.sql("SELECT partition, count(*), max(offset) FROM orders GROUP BY 1 ORDER BY 1")
    wanted = [topics.rows["orders", partition] for partition in range(3)]
    assert [tuple(row) for row in found.collect()] == [
        (partition, len(rows), rows[-1].offset) for partition, rows in enumerate(wanted)
    ]


FILTERS = [
    "partition = 1 AND offset >= 990 AND offset < 1010",
    "topic = 'bills'",
    "topic LIKE 'ord%' AND partition IN (0, 2) AND offset BETWEEN 5 AND 7",
    "`offset` IN (3, 700)",
    "NOT partition = 0 AND offset = 0",
    "key IS NULL",
    "key = CAST('key-7' AS BINARY)",
    "key IN (X'6B65792D37', X'6B65792D38', X'') AND partition < 2",
    "NOT key = X'6B65792D37'",
    "key = X'6B65792D37' OR offset = 3",
    "offset > 100000",
]


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Enable filter pushdown for a frame, as long as the context lasts."""
    spark.conf.set(PUSHDOWN, "true")
    yield {"filterPushdown": "true"}
    spark.conf.set(PUSHDOWN, "false")


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("condition", FILTERS)
def test_filters_return_matching_rows(
    condition: str, spark: SparkSession, topics: Topics, tier: Path, pushing: dict[str, str]
) -> None:
    produced = [(r.topic, r.partition, r.offset, r.key) for r in topics.of("orders", "bills")]
    columns = "topic string, partition int, offset bigint, key binary"
    spark.createDataFrame(produced, columns).createOrReplaceTempView("produced")
    wanted = spark.sql(f"SELECT topic, partition, offset FROM produced WHERE {condition}")
    both = read(spark, tier, subscribe="orders, bills", **pushing)
    found = both.where(condition).select("topic", "partition", "offset")
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, wanted.collect()))


def test_partitions_excluded_by_filter_are_not_planned(
    spark: SparkSession, topics: Topics, tier: Path, pushing: dict[str, str]
) -> None:
    def many() -> DataFrame:
        return read(spark, tier, taskBytes="2000", **pushing)

    whole = tasks(many())
    assert whole > 10
    assert tasks(many().where("partition = 2 AND offset < 10")) == 1
    later = many().where("timestamp >= timestamp_millis(1700003550000)")
    assert tasks(later) < whole / 3
    wanted = [row for row in topics.of("orders") if row.timestamp_ms >= 1_700_003_550_000]
    assert rows_of(later) == bare(wanted)


@pytest.mark.usefixtures("views")
@pytest.mark.parametrize("setting", ["true", "false"])
def test_frame_can_be_used_with_and_without_filter(
    setting: str, spark: SparkSession, topics: Topics, tier: Path
) -> None:
    """Spark 4.2 plans the later queries of a frame with the filters of an earlier one."""
    spark.conf.set(PUSHDOWN, setting)
    try:
        frame = read(spark, tier)
        frame.createOrReplaceTempView("filtered")
        sources: list[Callable[[], DataFrame]] = [lambda: frame, lambda: spark.table("filtered")]
        for source in sources:
            assert source().where("partition = 1 AND offset < 7").count() == 7
            assert source().count() == len(topics.of("orders"))
            assert source().where("partition = 2").count() == len(topics.rows["orders", 2])
            some = source().where("partition = 0").union(source().where("partition = 1"))
            assert some.count() == len(topics.rows["orders", 0]) + len(topics.rows["orders", 1])
    finally:
        spark.conf.set(PUSHDOWN, "false")


def test_starting_and_ending_offsets(spark: SparkSession, topics: Topics, tier: Path) -> None:
    def spans(**options: str) -> dict[int, tuple[int, int]]:
        frame = read(spark, tier, **options).groupBy("partition")
        found = frame.agg({"offset": "min", "value": "count", "*": "count"}).collect()
        return {row["partition"]: (row["min(offset)"], row["count(1)"]) for row in found}

    ends = [len(topics.rows["orders", partition]) for partition in range(3)]
    assert spans() == {p: (0, end) for p, end in enumerate(ends)}
    some = '{"orders": {"0": 10, "1": -2, "2": 7}}'
    until = '{"orders": {"0": 11, "1": -1, "2": 7}}'
    assert spans(startingOffsets=some, endingOffsets=until) == {0: (10, 1), 1: (0, ends[1])}
    assert spans(assign='{"orders": [2]}', startingTimestamp=str(START_MS + 300_000)) == {
        2: (100, ends[2] - 100)
    }
    by_time = json.dumps({"orders": dict.fromkeys("012", START_MS + 3_000)})
    assert spans(endingOffsetsByTimestamp=by_time) == {0: (0, 1), 1: (0, 1), 2: (0, 1)}
    assert read(spark, tier, subscribe="orders.empty").count() == 0
    assert read(spark, tier, subscribePattern="orders.*").count() == sum(ends)


def test_number_of_tasks_matches_option(spark: SparkSession, topics: Topics, tier: Path) -> None:
    assert tasks(read(spark, tier)) == 1  # it is small
    several = read(spark, tier, minPartitions="5")
    assert tasks(several) >= 5
    assert rows_of(several) == bare(topics.of("orders"))
    small = read(spark, tier, maxRecordsPerPartition="500")
    assert rows_of(small) == bare(topics.of("orders"))
    assert tasks(small) == sum(-(-len(topics.rows["orders", p]) // 500) for p in range(3))


def test_unreadable_source_is_one_sentence(
    spark: SparkSession, topics: Topics, tier: Path, tmp_path: Path
) -> None:
    assert refusal(lambda: read(spark, tier, startingOfsets="1")).startswith("there is no option")
    assert "did you mean 'orders'" in refusal(read(spark, tier, subscribe="order").count)
    assert "has no manifest" in refusal(read(spark, tmp_path).count)
    beyond = read(spark, tier, subscribe="bills", endingOffsets='{"bills": {"0": 100000}}')
    assert "offsets up to 100000 of bills-0 are asked for" in refusal(beyond.count)
    beyond = read(
        spark, tier, subscribe="bills", endingOffsets='{"bills": {"0": 100000}}',
        failOnDataLoss="false",
    )  # fmt: skip
    assert beyond.count() >= 500
    writer = beyond.write.format("kafkawire").mode("append")
    assert "give the option kafka.bootstrap.servers" in refusal(writer.save)


def test_bucket_is_read_like_folder(
    spark: SparkSession,
    minio: Minio,
    tier_url: str,
    kafkawire_broker_factory: Factory,
) -> None:
    minio.client().create_bucket(Bucket=tier_url.split("/")[2])
    broker = kafkawire_broker_factory(
        settings={**QUICK, "tier.url": tier_url}, environ=minio.environ
    )
    made = Topics(broker)
    made.make("orders", 2)
    made.fill("orders", 2000, "zstd")
    made.produce("orders", odd(0))
    made.until_cut(tier_url)
    broker.stop()  # nothing of it is needed
    assert os.environ["AWS_ENDPOINT_URL"] == minio.endpoint
    with environment(spark, minio.environ):
        frame = read(spark, tier_url, includeHeaders="true", taskBytes="10000")
        assert rows_of(frame) == made.of("orders")
        assert tasks(frame) > 2
