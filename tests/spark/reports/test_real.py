"""Each report once through the data source, over the tier of a real broker: figures compared with
the produced records, and plots that are not empty."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import Source, SourceError
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.cli.report import show
from kafkawire_spark.reports import jobs
from kafkawire_spark.reports.report import Report, rows_of
from kafkawire_spark.reports.scope import Request
from tests.kit.json_schema import check_document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real
T0 = 1_690_000_000_000
COUNT = 3000
LATE_MS = 30_000
"""Every tenth record is this much older than its offset suggests."""


class World(NamedTuple):
    """A broker with a tier, and the records written to it."""

    broker: BrokerProcess
    tier: Path

    @property
    def source(self) -> Source:
        return Source(str(self.tier), self.broker.bootstrap)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("reports")
    settings = {"tiering.max.lag.ms": "5000", "cut.interval.ms": "100", "num.partitions": "3",
                "journal.roll.ms": "500", "log.retention.ms": "-1"}  # fmt: skip
    arguments = ["--tier", str(folder / "tier")]
    broker = BrokerProcess(folder / "data", settings=settings, arguments=arguments)
    with broker:
        fill(broker)
        wait_for_tier(broker)
        more(broker)  # stays in the journals
        yield World(broker, folder / "tier")


def fill(broker: BrokerProcess) -> None:
    runner = CliRunner()
    for name, partitions in (("orders", 3), ("compacted", 1), ("empty", 2)):
        words = ["topics", "create", name, "--partitions", str(partitions)]
        words += ["--server", broker.bootstrap, "--config", "retention.ms=-1"]  # records are old
        assert runner.invoke(app, words).exit_code == 0
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", linger_ms=5)
    for i in range(COUNT):
        at = T0 + 100 * i - (LATE_MS if i % 10 == 9 else 0)
        key = b"hot" if i % 2 else b"k%d" % (i % 30)
        producer.send(
            "orders", partition=0 if i % 3 else 1, key=key, value=b"v" * 50, timestamp_ms=at
        )
    producer.flush()
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="kitchen",
                             enable_auto_commit=False)  # fmt: skip
    for committed in (100, 1500):
        place = TopicPartition("orders", 0)
        consumer.commit({place: OffsetAndMetadata(committed, "", -1)})
    consumer.close()


def more(broker: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    for i in range(COUNT, COUNT + 30):
        producer.send("orders", partition=1, key=b"new", value=b"w", timestamp_ms=T0 + 100 * i)
    producer.flush()
    producer.close()


def wait_for_tier(broker: BrokerProcess) -> None:
    end = time.monotonic() + 60
    words = ["tier", "status", "--json", "--server", broker.bootstrap]
    while True:
        rows = json.loads(CliRunner().invoke(app, words).stdout)["partitions"]
        if sum(row["commit"] for row in rows if row["topic"] == "orders") == COUNT:
            return
        assert time.monotonic() < end, rows
        time.sleep(0.2)


def report(spark: SparkSession, name: str, request: Request) -> Report:
    """A report, whose JSON is of the schema."""
    made = jobs.report(spark, name, request)
    with redirect_stdout(io.StringIO()) as printed:
        show(made, [], "out", as_json=True)
    assert check_document(printed.getvalue())["report"] == name
    return made


def table(made: Report, name: str) -> list[dict[str, Any]]:
    (found,) = [each for each in made.tables if each.name == name]
    return rows_of(found.data)


def colours(png: bytes) -> int:
    """The number of pixels that are not white."""
    from matplotlib.image import imread

    return int((imread(io.BytesIO(png), format="png")[:, :, :3].min(axis=2) < 0.9).sum())


def test_continuity_report(spark: SparkSession, world: World, tmp_path: Path) -> None:
    made = report(spark, "continuity", Request(world.source))
    rows = {(row["topic"], row["partition"]): row for row in table(made, "continuity")}
    assert rows["orders", 0]["records"] == rows["orders", 0]["end"] == 2000
    assert rows["orders", 1]["records"] == rows["orders", 1]["end"] == 1030
    assert (rows["orders", 2]["records"], rows["orders", 2]["first"]) == (0, None)
    assert ("empty", 1) in rows
    assert len([topic for topic, _ in rows if topic == "__consumer_offsets"]) >= 1
    assert made.problems == 0
    assert "Every offset is there once" in made.sentences[-1]
    assert colours(made.plot) > 20_000
    files = made.write(open_place(str(tmp_path / "out")))
    assert sorted(files) == sorted(path.name for path in (tmp_path / "out").iterdir())
    saved = pyarrow.parquet.read_table(tmp_path / "out" / "continuity.parquet")
    assert saved.num_rows == len(rows)
    lines = (tmp_path / "out" / "continuity.csv").read_text().splitlines()
    assert len(lines) == len(rows) + 1


def test_continuity_report_finds_loss_and_damage(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    """Without a broker, and with damaged objects in a copy of the tier."""
    import shutil

    copy = tmp_path / "tier"
    shutil.copytree(world.tier, copy)
    clean = report(spark, "continuity", Request(Source(str(copy)), ("orders",)))
    count = sum(row["records"] for row in table(clean, "continuity"))
    assert clean.problems == 0
    assert COUNT <= count <= COUNT + 30  # the last records may be there, or in the journals only
    for path in (copy / "segments").iterdir():
        data = bytearray(path.read_bytes())
        at = data.find(b"v" * 50)
        if at > 0:
            data[at + 3] ^= 1
            path.write_bytes(data)
    made = report(spark, "continuity", Request(Source(str(copy)), ("orders",)))
    rows = table(made, "continuity")
    assert made.problems == sum(row["damaged"] for row in rows) > 0
    assert sum(row["records"] + row["damaged"] for row in rows) == count
    assert table(made, "continuity-gaps")[0]["reason"] == "damaged"
    for path in (copy / "segments").iterdir():
        path.unlink()
    made = report(spark, "continuity", Request(Source(str(copy)), ("orders",)))
    assert made.problems == sum(row["lost"] for row in table(made, "continuity")) == count


def test_sizes_report(spark: SparkSession, world: World) -> None:
    made = report(spark, "sizes", Request(world.source))
    (orders,) = [row for row in table(made, "sizes") if row["topic"] == "orders"]
    assert orders["records"] == COUNT + 30
    assert (orders["largest_partition"], orders["largest_share"]) == (0, round(2000 / 3030, 4))
    assert orders["keys"] == 1 + 15 + 1
    keys = {row["key"]: row for row in table(made, "sizes-keys")}
    assert keys["hot"]["records"] == COUNT // 2
    assert keys["hot"]["bytes"] == COUNT // 2 * 53
    assert sum(row["records"] for row in table(made, "sizes-rates")) == COUNT + 30
    assert {row["topic"] for row in table(made, "sizes")} == {"orders", "compacted", "empty"}
    assert colours(made.plot) > 20_000
    some = Request(world.source, ("orders",), since=T0 + 200_000, until=T0 + 250_000)
    (row,) = table(report(spark, "sizes", some), "sizes")
    assert 400 < row["records"] < 900  # some late ones are among them


def test_late_report(spark: SparkSession, world: World) -> None:
    made = report(spark, "late", Request(world.source, ("orders",)))
    rows = {row["partition"]: row for row in table(made, "late")}
    late = [i for i in range(400, COUNT) if i % 10 == 9]
    assert sum(row["late"] for row in rows.values()) >= len(late)
    assert sum(row["records"] for row in rows.values()) == COUNT + 30
    assert all(LATE_MS - 400 <= row["max_late_ms"] < LATE_MS for row in rows.values())
    assert all(row["p99_late"] == "to 1 min" for row in rows.values())
    histogram = table(made, "late-histogram")
    assert sum(row["records"] for row in histogram) == COUNT + 30
    assert sum(row["arrived"] for row in histogram) >= COUNT  # those in the tier
    assert colours(made.plot) > 20_000


def test_lag_report(spark: SparkSession, world: World) -> None:
    made = report(spark, "lag", Request(world.source))
    (row,) = table(made, "lag")
    assert (row["group_id"], row["lag"]) == ("kitchen", 500)
    assert row["commits"] in (1, 2)  # the cleaner may have run
    assert table(made, "lag-partitions") == [
        {"group_id": "kitchen", "topic": "orders", "partition": 0, "committed": 1500,
         "log_end": 2000, "lag": 500}
    ]  # fmt: skip
    assert colours(made.plot) > 5_000


def test_empty_report_is_one_sentence(spark: SparkSession, world: World) -> None:
    made = report(spark, "sizes", Request(world.source, ("empty",)))
    assert made.sentences[0].startswith("There is nothing to report:")
    assert not made.tables
    with pytest.raises(SourceError, match="there is no topic 'ordres'"):
        report(spark, "late", Request(world.source, ("ordres",)))
