"""`pipeline audit --source` against a real broker with a real Spark: changes of the topics and of
the table after the run, and the command line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.model.source import COMPACTED, Source
from kafkawire.testing.plugin import Factory
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.audit.counting import FEWER
from kafkawire_spark.audit.job import audit, through_spark
from kafkawire_spark.audit.verdict import PartitionReport
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.executors import OnSpark
from kafkawire_spark.pipeline.jobs.job import from_dict
from tests.kit.json_schema import check_document
from tests.kit.spark.pipeline_tables import ROW, MadeTable, forge
from tests.kit.spark.session import need_java
from tests.kit.spark.topics import HASTY, START_MS, Row, Topics
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

NAMES = ("keyed", "short", "forged")
COUNT = 300


@pytest.fixture(scope="module")
def broker(kafkawire_broker_factory: Factory) -> Iterator[BrokerProcess]:
    made = kafkawire_broker_factory(settings=HASTY)
    yield made
    made.stop()


def record(n: int) -> Row:
    """One of seven keys; every tenth value is not text; the first hundred are old."""
    value = b"\xff" if n % 10 == 3 else b"text"
    stamp = START_MS if n < 100 else int(time.time() * 1000)
    return Row("", 0, -1, stamp, b"k%d" % (n % 7), value, None)


@pytest.fixture(scope="module")
def topics(broker: BrokerProcess) -> Topics:
    """Three topics of a partition each, in several segments."""
    made = Topics(broker)
    for name in NAMES:
        made.make(name, 1, retention_ms="-1")
    for turn in range(3):
        for name in NAMES:
            made.produce(name, map(record, range(turn * COUNT // 3, (turn + 1) * COUNT // 3)))
        made.until_cut(str(broker.data), *NAMES)
    return made


@pytest.fixture(scope="module")
def table(
    topics: Topics, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Path:  # fmt: skip
    """All of it, as written by a run."""
    folder = tmp_path_factory.mktemp("audited")
    job = from_dict(
        {
            "job": {"name": "audited"},
            "source": {"url": str(topics.broker.data), "subscribe": ",".join(NAMES)},
            "value": {"format": "text"},
            "table": {"path": str(folder / "table")},
            "dead_letter": {"path": str(folder / "dead")},
        }
    )
    job = replace(job, running=replace(job.running, task_bytes=2000))
    Engine(job, OnSpark(spark)).run()
    return folder / "table"


def alter(bootstrap: str, topic: str, **settings: str) -> None:
    """Settings by name with underscores for dots."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def partitions(
    spark: SparkSession, table: Path, source: Source
) -> dict[str, PartitionReport]:  # fmt: skip
    """By topic."""
    report, _ = audit(str(table), through_spark(spark), source)
    return {each.topic: each for each in report.partitions}


def test_counts_allow_changes_of_topics_and_find_changes_of_table(
    topics: Topics, table: Path, spark: SparkSession
) -> None:
    bootstrap, source = topics.bootstrap, Source(str(topics.broker.data), topics.bootstrap)
    for each in partitions(spark, table, source).values():
        assert each.clean
        assert (each.rows, each.dead) == (COUNT - 30, 30)
        assert each.counts is not None
        assert (each.counts.verdict, each.counts.records, each.counts.read) == ("equal", COUNT, 0)
    by_broker = partitions(
        spark, table, Source("", bootstrap)
    )  # which contains the location of its files
    assert [each.counts.read for each in by_broker.values() if each.counts] == [0, 0, 0]

    alter(bootstrap, "keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    alter(bootstrap, "short", retention_ms=str(86_400_000))
    catalog = open_catalog(Source(str(topics.broker.data)))
    wait_until(lambda: catalog.refresh_catalog().bounds("short", 0).start == 100, "deleted")
    wait_until(
        lambda: catalog.refresh_catalog().count_segments("keyed", 0).records.sum() < 200, "cleaned"
    )
    forge(table, "forged", 123, COMPACTED)

    found = partitions(spark, table, source)
    keyed, short, forged = (found[name] for name in NAMES)
    assert keyed.clean
    assert keyed.counts is not None
    assert keyed.counts.cleaned == COUNT - keyed.counts.records > 100
    assert keyed.counts.offsets == COUNT
    assert any("compacted after the run" in note for note in keyed.all_notes())
    assert short.clean
    assert short.counts is not None
    assert (short.counts.records, short.counts.offsets) == (200, 200)
    assert short.counts.uncompared == [(0, 100, "the source has deleted what is below 100")]
    (problem,) = forged.all_problems()
    assert (problem.kind, problem.offsets, problem.ranges) == (FEWER, 1, ((123, 124),))
    assert problem.text.endswith("there is one at offset 123 where its run saw none")

    command = [
        sys.executable, "-P", "-m", "kafkawire", "pipeline", "audit", str(table),
        "--source", str(topics.broker.data), "--bootstrap", bootstrap, "--json",
        "--master", "local[2]",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1, done.stderr
    plain = check_document(done.stdout)
    verdicts = {each["topic"]: each["counts"]["verdict"] for each in plain["partitions"]}
    assert verdicts["forged"] == "differ"
    assert verdicts["short"] == "equal, 100 offsets not compared"
    assert "partitions compared with the source: 3 of 3" in done.stderr
    assert "read: " in done.stderr


def test_uncut_records_are_counted_by_broker(
    kafkawire_session_broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    topics = Topics(kafkawire_session_broker)
    topics.make("audit-tail", 2)
    topics.fill("audit-tail", 500, "zstd")
    source = {"bootstrap": topics.bootstrap, "subscribe": "audit-tail"}
    table = {"path": str(tmp_path / "table")}
    Engine(from_dict({"job": {"name": "tail"}, "source": source, "table": table}),
           OnSpark(spark)).run()  # fmt: skip
    report, _ = audit(str(tmp_path / "table"), through_spark(spark), Source("", topics.bootstrap))
    assert list(report.sentences()) == []
    assert [each.counts.records for each in report.partitions if each.counts] == [250, 250]
    assert [each.counts.read for each in report.partitions if each.counts] == [250, 250]
    forge(tmp_path / "table", "audit-tail", 249, COMPACTED)
    report, _ = audit(str(tmp_path / "table"), through_spark(spark), Source("", topics.bootstrap))
    (sentence,) = report.sentences()
    assert "has 250 records in offsets [0, 250), the table 249 rows" in sentence


def test_progress_of_read_files_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeTable(tmp_path / "table")
    made.run({n: [ROW] * 40 for n in range(4)}, files=10)
    heard: list[tuple[str, int, int]] = []
    report, _ = audit(
        str(made.folder), through_spark(spark, lambda *call: heard.append(call)),
    )  # fmt: skip
    assert report.clean
    what = f"files of {report.table} read"
    assert {call[0] for call in heard} == {what}
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    assert (heard[0], heard[-1]) == ((what, 0, 40), (what, 40, 40))


def java_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The Java processes started by a process."""
    return [
        child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "java" in child.name()
    ]


@pytest.mark.parametrize("moment", ["start", "files of"])
def test_ctrl_c_ends_audit_with_130(moment: str, tmp_path: Path) -> None:
    """While Spark starts, and while it reads files."""
    need_java()
    made = MadeTable(tmp_path / "table")
    made.run({n: [ROW] * 1000 for n in range(4)}, files=250)
    command = [
        sys.executable, "-P", "-m", "kafkawire", "pipeline", "audit", str(made.folder),
        "--master", "local[2]",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            if moment == "start":
                wait_until(lambda: java_of(process), "Java is started")
            else:
                assert any(moment in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            printed, said = process.communicate(timeout=600)  # Java, too, has ended
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert said.endswith("kafkawire: interrupted; nothing was changed\n")
    assert "Traceback" not in said  # nor of Spark's workers
    assert not printed
