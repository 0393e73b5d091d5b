"""Audits and queries on a real Spark: tables of a real broker's topic, and tables with known
faults, for which Spark must find the same as the functions without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkawire.reading.model.source import COMPACTED, Source
from kafkawire.testing.process import BrokerProcess
from kafkawire_spark.audit.job import audit, through_spark
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.executors import OnSpark
from kafkawire_spark.pipeline.jobs.job import from_dict
from kafkawire_spark.query import QueryError, Shell
from tests.kit.spark.inline import in_process
from tests.kit.spark.pipeline_tables import ROW, MadeTable
from tests.kit.spark.topics import START_MS, Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def topics(kafkawire_session_broker: BrokerProcess) -> Topics:
    made = Topics(kafkawire_session_broker)
    made.make("pipeline.audit", 3)
    made.fill("pipeline.audit", 1000)
    return made


def test_audit_with_spark_matches_audit_without(spark: SparkSession, tmp_path: Path) -> None:
    made = MadeTable(tmp_path / "table")
    for _ in range(3):
        made.run({n: ([ROW] * 7 + [COMPACTED]) * 20 for n in range(5)}, files=3)
    report, _ = audit(str(made.folder), through_spark(spark))
    assert report.clean
    assert report.rows == 3 * 5 * 140
    assert report.partitions == audit(str(made.folder), in_process)[0].partitions
    made.change(made.files[4], made.offsets(made.files[4])[1:])
    made.change(made.files[7], [*made.offsets(made.files[7]), 5])
    (made.folder / made.files[20].path).unlink()
    (made.folder / made.files[30].path).write_bytes(b"PAR1")
    report, _ = audit(str(made.folder), through_spark(spark))
    same, _ = audit(str(made.folder), in_process)
    assert sorted(report.sentences()) == sorted(same.sentences())
    kinds = {problem.kind for problem in report.problems}
    assert kinds == {"row count", "missing file", "unreadable file", "misplaced rows"}


def test_table_written_by_run_is_clean(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    read = {"bootstrap": topics.bootstrap, "subscribe": "pipeline.audit"}
    table = {"path": str(tmp_path / "table")}
    job = from_dict({"job": {"name": "audit"}, "source": read, "table": table})
    job = replace(job, running=replace(job.running, task_bytes=10_000))
    Engine(job, OnSpark(spark)).run()
    source = Source(bootstrap=topics.bootstrap)
    report, _ = audit(str(tmp_path / "table"), through_spark(spark), source)
    assert list(report.sentences()) == []
    assert report.clean
    ends = [each.source.end for each in report.partitions if each.source is not None]
    assert ends == [each.last + 1 for each in report.partitions]
    assert sum(ends) == report.rows == 1000


def test_topics_can_be_queried_as_tables(spark: SparkSession, topics: Topics) -> None:
    shell = Shell(spark, Source(bootstrap=topics.bootstrap))
    try:
        result = shell.run(
            "SELECT partition, count(*) AS n, max(offset) FROM `pipeline.audit` "
            "GROUP BY 1 ORDER BY 1",
            10,
        )
        assert result.columns == ["partition", "n", "max(offset)"]
        counts = [len(topics.rows["pipeline.audit", part]) for part in range(3)]
        assert [tuple(row) for row in result.rows] == [
            (part, count, count - 1) for part, count in enumerate(counts)
        ]
        few = shell.run("SELECT * FROM `pipeline.audit` WHERE offset < 2", 5)
        assert (len(few.rows), few.more) == (5, True)
        first = shell.run("SELECT timestamp FROM `pipeline.audit` WHERE offset = 0", 5).rows
        times = sorted(round(row[0].timestamp() * 1000) for row in first)
        assert times == [START_MS, START_MS + 1000, START_MS + 2000]
        texts = shell.run("SELECT value_text FROM `pipeline.audit` WHERE offset = 0", 0)
        assert sorted(row[0] for row in texts.rows) == [f"pipeline.audit:{n}" for n in range(3)]
        assert ["pipeline.audit", 3] in [list(row) for row in shell.run("show topics", 10).rows]
        described = shell.run("DESCRIBE `pipeline.audit`", 0)
        assert [row[0] for row in described.rows][-2:] == ["key_text", "value_text"]
        for statement, words in (
            ("SELECT * FROM pipeline.audit", "backticks: `pipeline.audit`"),
            ("SELECT * FROM `pipeline.audt`", "there is `pipeline.audit`"),
            ("SELECT nothing FROM `pipeline.audit`", "`nothing` cannot be resolved"),
            ("SELEC 1", "Syntax error"),
            ("SELECT 1/0", "Division by zero"),
        ):
            with pytest.raises(QueryError, match=words) as caught:
                shell.run(statement, 10)
            assert "\n" not in str(caught.value)
        topics.make("pipeline-later", 2)
        count = "SELECT count(*) FROM `pipeline-later`"
        assert shell.run(count, 1).rows[0][0] == 0
        topics.fill("pipeline-later", 50)
        assert shell.run(f"{count} WHERE partition = 0", 1).rows[0][0] == 25
        assert shell.run(count, 1).rows[0][0] == 50
        both = f"({count} WHERE partition = 0) UNION ALL ({count} WHERE partition < 9)"
        assert sorted(row[0] for row in shell.run(both, 9).rows) == [25, 50]
        topics.make("Pipeline-later", 1)
        twins = f"({count}) UNION ALL ({count.replace('pipe', 'Pipe')})"
        assert sorted(row[0] for row in shell.run(twins, 9).rows) == [0, 50]
        assert shell.run("SELECT OFFSET FROM `pipeline.audit`", 1).columns == ["OFFSET"]
    finally:
        shell.close()
    assert "pipeline-later" not in {view.name for view in spark.catalog.listTables()}
