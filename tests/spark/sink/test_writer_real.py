"""`df.write.format("kafkawire")` and `writeStream` on a real Spark, read by read_committed
consumers: failed tasks, a killed driver, and micro-batches that Spark repeats.

Covers: kafkawire_spark.sink.writer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kafka.partitioner.default import murmur2

from kafkawire.client.cluster import Cluster
from kafkawire.client.fetching import fetch
from kafkawire.client.offsets import fetch_committed_offsets
from kafkawire.codec.batches import CONTROL
from kafkawire.testing.plugin import Factory
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.session import sentence
from kafkawire_spark.sink.options import PROGRESS_TOPIC
from tests.kit.spark.session import need_java
from tests.kit.spark.sink import read_committed
from tests.kit.spark.topics import QUICK, Topics
from tests.real.members import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def broker(kafkawire_broker_factory: Factory) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory(settings=QUICK)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def topics(broker: BrokerProcess) -> Topics:
    """`source`: 3 partitions with 6000 records."""
    made = Topics(broker)
    made.make("source", 3, retention_ms="-1")
    made.fill("source", 6000)
    return made


def save(frame: DataFrame, broker: BrokerProcess, topic: str, **options: str) -> None:
    writer = frame.write.format("kafkawire").mode("append").option("topic", topic)
    writer.option("kafka.bootstrap.servers", broker.bootstrap).options(**options).save()


def markers(bootstrap: str, topic: str) -> int:
    """The number of control batches of partition 0."""
    with Cluster(bootstrap) as cluster:
        got = fetch(cluster, 1, (topic, 0), 0, max_bytes=64 << 20)
        return sum(bool(head.attributes & CONTROL) for _, head in got.batches())


def test_batch_is_one_transaction(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.make("batch", 3)
    frame = spark.range(0, 20_000, 1, 4).selectExpr(
        "cast(id % 500 AS string) AS key", "cast(id AS string) AS value",
        "array(named_struct('key', 'h', 'value', cast('x' AS binary))) AS headers",
    )  # fmt: skip
    save(frame, broker, "batch")
    found = read_committed(broker.bootstrap, "batch", 20_000)
    assert sorted(int(value) for _, _, value in found) == list(range(20_000))
    for partition, key, value in found:
        assert int(value) % 500 == int(key)
        assert partition == (murmur2(key) & 0x7FFFFFFF) % 3
    assert markers(broker.bootstrap, "batch") == 1
    read = spark.read.format("kafkawire").option("source", broker.bootstrap)
    rows = read.option("subscribe", "batch").option("includeHeaders", "true").load()
    assert rows.where("size(headers) = 1 AND headers[0].key = 'h'").count() == 20_000


def test_batch_with_a_number_is_written_once(
    spark: SparkSession, broker: BrokerProcess, topics: Topics
) -> None:
    topics.make("numbered", 1)
    frame = spark.range(100).selectExpr("cast(id AS string) AS value")
    for number in ("1", "1", "2", "1"):
        save(frame, broker, "numbered", transactionalId="nightly", batchId=number)
    assert len(read_committed(broker.bootstrap, "numbered", 200)) == 200


def test_failed_task_leaves_nothing(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    """Also where other tasks of the batch have succeeded, with files. Tasks that still run when
    the driver deletes the files delete their own."""
    topics.make("failed", 3)
    frame = spark.range(0, 40_000, 1, 4).selectExpr(
        "repeat(cast(id AS string), 20) AS value",
        "if(id = 39999, cast(7 AS int), cast(id % 3 AS int)) AS partition",
    )
    with pytest.raises(Exception, match="kafkawire") as refused:
        save(frame, broker, "failed", stagingLocation=str(tmp_path))
    assert "is for partition 7 of topic 'failed', which has 3" in sentence(refused.value)
    assert read_committed(broker.bootstrap, "failed", 0) == []
    assert markers(broker.bootstrap, "failed") == 0
    wait_for(lambda: not [path for path in tmp_path.rglob("*") if path.is_file()])
    save(frame.where("id < 39999"), broker, "failed", stagingLocation=str(tmp_path))
    assert len(read_committed(broker.bootstrap, "failed", 39_999)) == 39_999
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def stream(
    spark: SparkSession, broker: BrokerProcess, topic: str, checkpoint: Path, rows: int = 1000,
    change: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> StreamingQuery:  # fmt: skip
    """Copy `source` to a topic, in micro-batches of about `rows` records, up to its present end."""
    servers = ("kafka.bootstrap.servers", broker.bootstrap)
    read = spark.readStream.format("kafkawire").option(*servers).option("subscribe", "source")
    read = read.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows)
    frame = change(read.load().select("key", "value"))
    write = frame.writeStream.format("kafkawire").option(*servers)
    write = write.option("topic", topic).option("checkpointLocation", str(checkpoint))
    return write.trigger(availableNow=True).start()


def test_micro_batch_that_spark_repeats_is_not_written_again(
    spark: SparkSession, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    """The driver was killed after the commit, before Spark had noted the end of the micro-batch."""
    topics.make("repeated", 2)
    first = stream(spark, broker, "repeated", tmp_path)
    assert first.awaitTermination(600)
    numbers = sorted(int(path.name) for path in (tmp_path / "commits").glob("[0-9]*"))
    assert len(numbers) >= 6
    group = f"kafkawire-spark-{first.id}"
    with Cluster(broker.bootstrap) as cluster:
        assert fetch_committed_offsets(cluster, group) == {
            (PROGRESS_TOPIC, 0): (len(numbers), first.id)
        }
    assert markers(broker.bootstrap, "repeated") == len(numbers)
    for name in (f"{numbers[-1]}", f".{numbers[-1]}.crc"):
        (tmp_path / "commits" / name).unlink(missing_ok=True)
    again = stream(spark, broker, "repeated", tmp_path)
    assert again.awaitTermination(600)
    assert (tmp_path / "commits" / str(numbers[-1])).exists()
    topics.fill("source", 300)
    assert stream(spark, broker, "repeated", tmp_path).awaitTermination(600)
    found = read_committed(broker.bootstrap, "repeated", len(topics.of("source")))
    wanted = Counter(row.value for row in topics.of("source"))
    assert Counter(value for _, _, value in found) == wanted


SCRIPT = """
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

from pyspark import TaskContext

import kafkawire_spark
from kafkawire_spark.mapping import map_in_arrow
from kafkawire_spark.session import open_session
from tests.spark.sink.test_writer_real import stream


def killed_once(batches):
    context = TaskContext.get()
    first = context.attemptNumber() == 0 and context.partitionId() == 0
    number = int(context.getLocalProperty("streaming.sql.batchId"))
    for batch in batches:
        yield batch
        if first and number % 5 == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def flaky(frame):
    return map_in_arrow(frame, killed_once, "key BINARY, value BINARY")


spark = open_session("local[2,4]", conf={}, app_name="killed")
kafkawire_spark.register(spark)
broker = SimpleNamespace(bootstrap=sys.argv[1])
query = stream(spark, broker, "killed", Path(sys.argv[2]), rows=int(sys.argv[3]), change=flaky)
query.awaitTermination()
"""
"""A driver; the first attempt of a task of every fifth micro-batch is killed in its middle."""


def commits(checkpoint: Path) -> int:
    """The number of micro-batches whose end Spark has noted."""
    return len(list(checkpoint.glob("commits/[0-9]*")))


def test_driver_is_killed_again_and_again(
    broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    """kill -9 of Python and Java, at some moment of some micro-batch; a Python worker of theirs may
    even commit after that. The next driver continues from the checkpoint. Tasks are killed, too."""
    need_java()
    topics.make("killed", 3)
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    command = [sys.executable, "-c", SCRIPT, broker.bootstrap, str(checkpoint), "400"]

    def start() -> subprocess.Popen[bytes]:
        with output.open("w") as opened:
            return subprocess.Popen(
                command, cwd=ROOT, stdout=opened, stderr=opened, start_new_session=True
            )

    for kill in range(2):
        driver, before = start(), commits(checkpoint)
        until = time.monotonic() + 600
        while commits(checkpoint) < before + 2 and driver.poll() is None:
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.02)
        time.sleep(0.15 * kill)  # another moment each time
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver.wait(300) == -signal.SIGKILL, output.read_text()
    assert start().wait(600) == 0, output.read_text()
    rows = topics.of("source")
    found = read_committed(broker.bootstrap, "killed", len(rows))
    assert Counter(value for _, _, value in found) == Counter(row.value for row in rows)
