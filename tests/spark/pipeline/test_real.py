"""Pipelines on a real Spark: rows, JSON, killed workers, and the command killed at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from kafkawire.objectstore.staging import UNFINISHED
from kafkawire.progress import PHASE
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import SourceError
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.executors import OnSpark
from kafkawire_spark.pipeline.jobs.job import Job, parse
from kafkawire_spark.pipeline.jobs.state import TableState
from kafkawire_spark.pipeline.tables.port import open_table
from tests.kit.json_schema import check_document, check_lines
from tests.kit.spark.pipeline_topics import BAD_EVERY, Tier, job_text
from tests.kit.spark.session import need_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.real

ROOT = Path(__file__).parent.parent.parent.parent
WITHIN_S = 600.0


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(open_place(str(tmp_path / "tier")))


def rows(spark: SparkSession, job: Job) -> Counter[tuple[int, int]]:
    """The rows that a plain reader of the path sees."""
    frame = spark.read.parquet(job.table.path).select("_partition", "_offset")
    return Counter((row[0], row[1]) for row in frame.collect())


def check_accounts(job: Job, tier: Tier) -> None:
    """Each partition is accounted for from its first offset to its last, with nothing missing."""
    ends: dict[int, int] = {}
    for record in TableState(open_place(job.table.path)).read_records():
        for share in record.shares:
            assert share.missing == 0
            assert ends.get(share.range.partition, 0) == share.range.base
            ends[share.range.partition] = share.range.end
    assert ends == {partition: end for partition, end in enumerate(tier.ends) if end}


def leftovers(job: Job) -> set[str]:
    """Files that should not be left for readers of the table. Unfinished ones, of a task that was
    killed while it wrote, are hidden from them, and deleted later."""
    root = Path(job.table.path)
    listed = {file.path for file in open_table(job).files()}
    there = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    extra = {name for name in there - listed if not name.endswith(UNFINISHED)}
    return {name for name in extra if "task-" in name or name.endswith(".parquet")}


def test_runs_partitioned_by_day(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    tier.grow(5000)
    table = {"partition_by": ["date(timestamp)"], "compression": "snappy"}
    job = parse(job_text(tier.files.place.url, tmp_path / "table", table=table))
    calls: list[tuple[int, int]] = []
    phases: list[str] = []

    def progress(what: str, done: int, of: int) -> None:
        if of == PHASE:
            phases.append(f"{what} {done}")
        else:
            calls.append((done, of))

    engine = Engine(job, OnSpark(spark), progress=progress)
    record = engine.run().record
    assert record is not None
    assert record.rows == 7500
    assert phases == ["planning 0", "planning 1", "committing 0", "committing 1"]
    assert calls[0] == (0, calls[-1][1])
    tier.grow(100)
    engine.run()
    assert engine.run().record is None
    assert rows(spark, job) == Counter(tier.offsets())
    check_accounts(job, tier)
    frame = spark.read.parquet(job.table.path)
    assert frame.where("date = '2020-09-13'").count() > 0
    assert engine.compact()[0] > 0
    assert rows(spark, job) == Counter(tier.offsets())
    assert not leftovers(job)


def test_json_is_parsed_by_spark(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    tier.grow(1000, bad=True)
    text = job_text(
        tier.files.place.url,
        tmp_path / "table",
        value={"format": "json", "schema": "id BIGINT, name STRING"},
        table={"partition_by": ["name"]},
        dead_letter={"path": str(tmp_path / "dead")},
    )
    job = parse(text)
    record = Engine(job, OnSpark(spark)).run().record
    assert record is not None
    bad = {(p, n) for p, n in tier.offsets() if n % BAD_EVERY == 7}
    assert sum(share.dead for share in record.shares) == len(bad) == 30
    good = spark.read.parquet(job.table.path).select("_partition", "_offset", "id", "name")
    for row in good.collect():
        assert (row["id"], row["name"]) == (row["_offset"], f"n{row['_offset'] % 10}")
    assert rows(spark, job) == Counter(tier.offsets() - bad)
    dead = spark.read.parquet(job.dead_letters)
    assert {(row["_partition"], row["_offset"]) for row in dead.collect()} == bad
    assert {row["job"] for row in dead.collect()} == {"orders"}
    assert all("value" in row["_reason"] for row in dead.collect())
    check_accounts(job, tier)


class Fragile(OnSpark):
    """Spark whose Python workers are killed at a call of a task, each time a file requests it."""

    def __init__(self, spark: SparkSession, flag: Path, call: str) -> None:
        super().__init__(spark)
        self._flag, self._call = str(flag), call

    def run(self, tasks: Any, indexes: Any, progress: Any) -> Any:
        flag, call = self._flag, self._call

        class Ends:  # not importable by a worker, so it is pickled by value
            def do(self, index: int) -> Any:
                from kafkawire_spark.pipeline.writing import TaskWriter

                method = getattr(TaskWriter, call)

                def ending(writer: Any, *arguments: Any) -> Any:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(flag)
                        os._exit(9)
                    return method(writer, *arguments)

                setattr(TaskWriter, call, ending)
                try:
                    return tasks.do(index)
                finally:
                    setattr(TaskWriter, call, method)

        return super().run(Ends(), indexes, progress)


@pytest.mark.parametrize("call", ["add", "_close", "finish"])
def test_killed_worker_costs_no_row(
    spark: SparkSession, tier: Tier, tmp_path: Path, call: str
) -> None:
    tier.grow(3000)
    job = parse(job_text(tier.files.place.url, tmp_path / "table"))
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(SourceError):
        Engine(job, Fragile(spark, flag, call)).run()
    assert not flag.exists()
    assert Engine(job, OnSpark(spark)).run().resumed
    assert rows(spark, job) == Counter(tier.offsets())
    check_accounts(job, tier)
    assert not leftovers(job)


def test_error_message_of_task_is_reported(spark: SparkSession, tier: Tier, tmp_path: Path) -> None:
    tier.grow(1000)
    key = next(key for key in tier.files.place.list("segments/"))
    path = Path(tier.files.place.tier.folder, key)
    data = bytearray(path.read_bytes())
    data[3000] ^= 0x40
    path.write_bytes(data)
    job = parse(job_text(tier.files.place.url, tmp_path / "table"))
    with pytest.raises(SourceError, match=rf"{key}.* of partition 0 of topic 'orders'") as caught:
        Engine(job, OnSpark(spark)).run()
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def started(*command: str) -> Iterator[psutil.Popen]:
    """Start a child; end it with all its descendants."""
    need_java()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = psutil.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ
    )
    try:
        yield child
    finally:
        kill(child)
        child.communicate(timeout=300)


def kill(*processes: psutil.Process) -> None:
    """Kill processes as a machine failure would, without a clean shutdown."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            kill(*process.children())
            process.kill()


def command(job_file: Path, *options: str) -> list[str]:
    return [sys.executable, "-P", "-m", "kafkawire", "pipeline", "run", str(job_file), *options]


def until(child: psutil.Popen, is_so: Any, what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert child.poll() is None, f"it ended before {what}: {child.communicate()[0]}"
        assert time.monotonic() < end, f"not {what} in time"
        time.sleep(0.01)


def test_command_killed_and_repeated(tier: Tier, tmp_path: Path) -> None:
    tier.grow(20_000)
    table = tmp_path / "table"
    file = tmp_path / "job.toml"
    file.write_text(job_text(tier.files.place.url, table, run={"master": "local[1]"}))
    job = parse(file.read_text())
    runs = table / "_kafkawire" / "runs"
    with started(*command(file)) as child:
        until(child, lambda: len(list(runs.glob("*/task-*"))) >= 2, "two tasks are done")
        orphans = child.children(recursive=True)
        child.kill()  # the driver alone: Spark's Java ends when it sees that, its tasks after it
        child.wait(300)
    again = command(file, "--json")
    done = subprocess.run(again, capture_output=True, text=True, timeout=WITHIN_S)
    kill(*orphans)
    assert done.returncode == 0, done.stderr
    reported = check_lines(done.stdout)[0]
    assert (reported["resumed"], reported["rows"]) == (True, 30_000)
    names = [file.path for file in open_table(job).files()]
    there = {str(path.relative_to(table)) for path in table.rglob("*.parquet")}
    assert sorted(names) == sorted(there)
    # A task of the killed driver may have been killed while it wrote: the next compaction deletes
    # its file.
    assert not leftovers(job)
    check_accounts(job, tier)


def test_continuous_runs_until_signal(tier: Tier, tmp_path: Path) -> None:
    tier.grow(200)
    table = tmp_path / "table"
    file = tmp_path / "job.toml"
    more = {"master": "local[1]", "every": "300 ms"}
    file.write_text(job_text(tier.files.place.url, table, run=more))
    job = parse(file.read_text())
    commits = table / "_kafkawire" / "commits"
    with started(*command(file, "--continuous", "--json")) as child:
        for number in (1, 2):
            wanted = commits / f"{number:020}.json"
            until(child, wanted.exists, f"run {number}")
            tier.grow(50)
        until(child, (commits / f"{3:020}.json").exists, "run 3")
        child.send_signal(signal.SIGTERM)
        output = child.stdout.read()
        child.wait(300)
    assert child.returncode == 0, output
    lines = [check_document(line) for line in output.splitlines() if line.startswith('{"run": ')]
    assert [line["run"] for line in lines if line["run"]][:3] == [1, 2, 3]
    assert not leftovers(job)
    check_accounts(job, tier)


def test_job_through_spark_submit(tier: Tier, tmp_path: Path) -> None:
    import pyspark

    import kafkawire_spark.pipeline

    tier.grow(500)
    file = tmp_path / "job.toml"
    file.write_text(job_text(tier.files.place.url, tmp_path / "table"))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    script = Path(kafkawire_spark.pipeline.__file__).parent / "__main__.py"
    environ = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    need_java()
    done = subprocess.run(
        [str(submit), "--master", "local[1]", str(script), str(file)],
        capture_output=True, text=True, timeout=WITHIN_S, env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "run 1: 750 rows in" in done.stdout
    check_accounts(parse(file.read_text()), tier)
