"""Runs of a pipeline in memory: what they read and write in each run."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.reading.model.source import OffsetGap, PartitionRange, TaskPart
from kafkawire_spark.pipeline import executors
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.executors import OnSpark, result_batch
from kafkawire_spark.pipeline.jobs.layout import file_path
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import Done, FileFacts, Share
from kafkawire_spark.pipeline.planning import tasks_of
from tests.kit.spark.pipelines import (
    Bench,
    grow,
    job,
    new_bench,  # noqa: F401  (a fixture, by name)
    world,
)


def test_each_run_writes_only_new_records(bench: Bench) -> None:
    first = bench.run()
    assert first.record is not None
    assert (first.record.run, first.resumed) == (1, False)
    bench.check()
    assert bench.run().record is None
    grow(bench)
    second = bench.run()
    assert second.record is not None
    assert second.record.run == 2
    assert not any(second.lags.values())
    bench.check()


def test_file_names_have_topic_partition_offsets_and_run(bench: Bench) -> None:
    bench.run()
    part = PartitionRange("b", 0, 5, 12)
    assert file_path(part, (), 1, kind="r", attempt="") in bench.plain_files()
    spans = sorted((f.topic, f.partition, f.base, f.end) for f in bench.engine().table.files())
    assert spans[:3] == [("a", 0, 0, 20), ("a", 0, 20, 40), ("a", 0, 40, 45)] or len(spans) > 3


def test_columns_and_values_match_records(bench: Bench) -> None:
    bench.run()
    path = next(path for path in bench.plain_files() if path.startswith("b-"))
    table = pq.read_table(pa.BufferReader(bench.place.files[path]))
    names = ["_topic", "_partition", "_offset", "_timestamp", "_key", "_value"]
    assert table.schema.names == names
    assert table.schema.field("_timestamp").type == pa.timestamp("us", tz="UTC")
    rows = {row["_offset"]: row for row in table.to_pylist()}
    assert rows[6]["_value"] == b"b/0/6"
    assert rows[11]["_value"] is None
    assert rows[6]["_key"] is None


def test_snapshots_keep_listing_short(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire_spark.pipeline.tables.parquet.SNAPSHOT_EVERY", 4)
    for _ in range(10):
        bench.run()
        grow(bench, by=1)
        if bench.world.topics["b"][0][1] % 3 == 0:
            bench.engine().compact()
    bench.run()
    bench.check()
    gets: list[str] = []
    engine = bench.engine(lambda when, what, key: gets.append(key))
    files = engine.table.files()
    assert sum("/commits/" in key for key in gets) <= 4 + 1
    assert {file.path for file in files} == set(bench.plain_files())


def test_latest_is_resolved_at_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    latest = job(source={"starting_offsets": "latest"})
    bench = Bench(world(), monkeypatch, latest)
    assert bench.run().record is not None
    assert bench.rows() == []
    grow(bench, by=10)
    bench.run()
    assert len(bench.rows()) == 4 * 8


def test_new_partition_is_read_from_its_beginning(bench: Bench) -> None:
    bench.job = replace(bench.job, reading=job(source={"starting_offsets": "latest"}).reading)
    bench.run()
    bench.world.topics["a"].append((0, 5))
    bench.run()
    assert sorted(bench.rows()) == [("a", 3, offset) for offset in range(5)]


def test_history_is_read_in_bounded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = job(run={"max_offsets_per_run": 30})
    bench = Bench(world(), monkeypatch, bounded)
    less = []
    while (outcome := bench.run()).record is not None:
        less.append(outcome.planned_less)
        reported = sum(share.range.end - share.range.base for share in outcome.record.shares)
        assert reported <= 30 + 4
    assert less == [True, True, False]
    bench.check()


def test_rows_are_in_folder_of_their_day(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(world(), monkeypatch, job(table={"partition_by": ["date(timestamp)", "_key"]}))
    with pytest.raises(JobError, match=r"_key.* is a binary"):
        bench.run()
    text = job(table={"partition_by": ["date(timestamp)", "_key"]}, key={"format": "text"})
    bench = Bench(world(), monkeypatch, text)
    bench.run()
    bench.check()
    folders = {path.rpartition("/")[0] for path in bench.plain_files()}
    assert "date=2023-11-14/_key=__HIVE_DEFAULT_PARTITION__" in folders
    assert "date=2023-11-15/_key=2" in folders
    path = next(path for path in bench.plain_files() if "_key=2" in path)
    table = pq.read_table(pa.BufferReader(bench.place.files[path]))
    assert {"date", "_key"}.isdisjoint(table.schema.names)
    days = {f"{time:%Y-%m-%d}" for time in table.column("_timestamp").to_pylist()}
    assert days == {path.partition("date=")[2][:10]}


def test_small_runs_are_not_split_over_many_cores() -> None:
    def tasks(size: int, cores: int) -> int:
        parts = [TaskPart(PartitionRange("t", index, 0, 1000), (), size) for index in range(3)]
        return len(tasks_of(parts, 64 << 20, cores))

    assert tasks(1000, 64) == 1
    assert 2 <= tasks(8 << 20, 2) <= 3
    assert 6 <= tasks(32 << 20, 6) <= 9
    assert tasks(128 << 20, 1) == 6


def test_engine_does_not_import_spark(bench: Bench) -> None:
    assert isinstance(bench.engine(), Engine)


def test_results_of_spark_tasks_reach_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: its rows are those of the batches that tasks return."""
    part = PartitionRange("a", 0, 5, 9)
    share = Share(part, 2, 1, {"lost": 1}, (OffsetGap(6, 7, "lost"),))
    done = Done(3, (FileFacts("ä.parquet", 2, 9, *part, (("d", None),)),), (), (share,), True)
    batches = [result_batch(done), result_batch(None)]  # None: it was not needed any more
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    monkeypatch.setattr(executors, "collect_with_progress", lambda frame, scan: rows)
    spark: Any = SimpleNamespace(sparkContext=None)
    frame: Any = None
    assert OnSpark(spark).collect(frame, 2, print) == [done]
