"""Runs of a pipeline in memory: what they write, and that no interruption writes anything twice."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafkawire.spark.model import DataLoss, OffsetRange, Part
from kafkawire.spark.pipeline import state as state_module
from kafkawire.spark.pipeline.compaction import remove_unfinished, sweep
from kafkawire.spark.pipeline.engine import Engine
from kafkawire.spark.pipeline.executors import translated
from kafkawire.spark.pipeline.naming import file_path
from kafkawire.spark.pipeline.planning import tasks_of
from kafkawire.spark.pipeline.section import JobError
from kafkawire.spark.pipeline.state import State
from kafkawire.spark.places import open_place
from tests.kit.pipelines import Bench, Counting, Killed, World, job


def world() -> World:
    return World({"a": [(0, 45), (10, 31), (0, 0)], "b": [(5, 12)]})


def grow(bench: Bench, *, by: int = 13) -> None:
    """New records in every partition."""
    for parts in bench.world.topics.values():
        parts[:] = [(start, end + by) for start, end in parts]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(world(), monkeypatch)


def test_a_run_writes_what_is_there_and_the_next_what_is_new(bench: Bench) -> None:
    first = bench.run()
    assert first.record is not None
    assert (first.record.run, first.resumed) == (1, False)
    bench.check()
    assert bench.run().record is None
    grow(bench)
    second = bench.run()
    assert second.record is not None
    assert second.record.run == 2
    assert not any(second.behind.values())
    bench.check()


def test_files_are_named_by_topic_partition_offsets_and_run(bench: Bench) -> None:
    bench.run()
    part = OffsetRange("b", 0, 5, 12)
    assert file_path(part, (), 1, kind="r", attempt="") in bench.plain_files()
    spans = sorted((f.topic, f.partition, f.base, f.end) for f in bench.engine().table.files())
    assert spans[:3] == [("a", 0, 0, 20), ("a", 0, 20, 40), ("a", 0, 40, 45)] or len(spans) > 3


def test_columns_and_values_are_those_of_the_records(bench: Bench) -> None:
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


def crash_everywhere(fresh: Callable[[], Bench], act: Callable[[Bench, Any], object]) -> int:
    """End the process at each of its calls in turn, then do all of it again; how many there are."""
    point = 0
    while True:
        bench, counting = fresh(), Counting(point)
        try:
            act(bench, counting)
        except Killed:
            act(bench, None)
            act(bench, None)
            try:
                bench.check()
            except AssertionError as problem:
                raise AssertionError(f"killed at call {point}, {counting.where}") from problem
            point += 1
            continue
        bench.check()
        return point


@pytest.mark.parametrize("second", [False, True])
def test_a_driver_that_ends_anywhere_writes_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, second: bool
) -> None:
    def fresh() -> Bench:
        bench = Bench(world(), monkeypatch)
        if second:
            bench.run()
            grow(bench)
        return bench

    assert crash_everywhere(fresh, lambda bench, hook: bench.engine(hook).run()) > 25


def test_dead_letters_and_partitions_survive_an_end_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fresh() -> Bench:
        small = World({"a": [(0, 33)], "b": [(0, 9)]}, {("a", 0, 4), ("b", 0, 3)})
        keep = job(
            table={"partition_by": ["date(timestamp)", "_partition"]},
            dead_letter={"path": "/dead"},
            run={"on_damage": "dead_letter"},
        )
        return Bench(small, monkeypatch, keep)

    def act(bench: Bench, hook: Any) -> None:
        bench.engine(hook).run()

    assert crash_everywhere(fresh, act) > 25


def small() -> World:
    return World({"a": [(0, 21)], "b": [(5, 9)]})


@pytest.mark.parametrize("meanwhile", ["same", "more"])
def test_two_drivers_write_a_run_once(monkeypatch: pytest.MonkeyPatch, meanwhile: str) -> None:
    """At each call of one driver in turn, another one does all there is to do."""
    point, acted = 0, True
    while acted:
        bench = Bench(small(), monkeypatch)

        def other(bench: Bench = bench) -> None:
            if meanwhile == "more":
                grow(bench)
            bench.run()

        hook = _Meanwhile(other, point)
        bench.engine(hook).run()
        bench.run()
        bench.run()
        bench.check()
        acted = hook.acted
        point += 1
    assert point > 30


@pytest.mark.parametrize("other", ["run", "compact"])
def test_a_compaction_may_meet_another_driver(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    point, acted = 0, True
    while acted:
        bench = Bench(World({"a": [(0, 6)], "b": [(0, 1)]}), monkeypatch)
        bench.run()
        grow(bench, by=2)
        bench.run()
        grow(bench, by=2)
        hook = _Meanwhile(getattr(bench.engine(), other), point)
        with contextlib.suppress(JobError):  # it says that another one does this
            bench.engine(hook).compact()
        bench.run()
        bench.engine().compact()
        bench.check()
        acted = hook.acted
        point += 1
    assert point > 25


class _Meanwhile:
    """A hook that lets another driver act at one of the calls."""

    def __init__(self, act: Callable[[], object], at: int) -> None:
        self._act, self._at = act, at
        self._calls = 0
        self.acted = False

    def __call__(self, when: str, what: str, key: str) -> None:
        self._calls += 1
        if self._calls == self._at + 1:
            self.acted = True
            self._act()


def test_a_kill_within_a_compaction_leaves_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> Bench:
        bench = Bench(World({"a": [(0, 9)], "b": [(0, 3)]}), monkeypatch)
        bench.run()
        grow(bench, by=2)
        bench.run()
        return bench

    def act(bench: Bench, hook: Any) -> None:
        bench.engine(hook).compact()

    assert crash_everywhere(fresh, act) > 25
    bench = fresh()
    before = len(bench.plain_files())
    bench.engine().compact()
    assert (before, len(bench.plain_files())) == (4, 2)


def test_a_run_finishes_a_compaction_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    point, ended = 0, True
    while ended:
        bench = Bench(World({"a": [(0, 9)], "b": [(0, 5)]}), monkeypatch)
        bench.run()
        grow(bench, by=2)
        bench.run()
        grow(bench, by=2)
        ended = False
        try:
            bench.engine(Counting(point)).compact()
        except Killed:
            ended = True
        bench.run()
        bench.check()
        point += 1


def test_a_file_that_is_put_late_is_swept(bench: Bench) -> None:
    bench.run()
    grow(bench, by=1)
    bench.run()
    late = next(path for path in bench.plain_files() if path.startswith("a-p00000"))
    data = bench.place.files[late]
    bench.engine().compact()
    assert late not in bench.place.files
    bench.place.files[late] = data  # by a task of an executor that everyone took for dead
    assert sweep(bench.engine().table) == [late]
    bench.check()


def test_a_finished_task_is_not_done_again(bench: Bench) -> None:
    keys: list[str] = []

    def hook(when: str, what: str, key: str) -> None:
        if (when, what) == ("after", "put"):
            keys.append(key)
            if "task-000002" in key:
                raise Killed

    with pytest.raises(Killed):
        bench.engine(hook).run()
    first = {key for key in keys if key.endswith(".parquet")}
    keys.clear()
    outcome = bench.engine(hook).run()
    assert outcome.resumed
    assert not first & set(keys)
    bench.check()


def test_snapshots_keep_listing_short(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.spark.pipeline.parquet.SNAPSHOT_EVERY", 4)
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


def test_latest_is_what_was_there_at_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    latest = job(source={"starting_offsets": "latest"})
    bench = Bench(world(), monkeypatch, latest)
    assert bench.run().record is not None
    assert bench.rows() == []
    grow(bench, by=10)
    bench.run()
    assert len(bench.rows()) == 4 * 8


def test_a_new_partition_is_read_from_its_beginning(bench: Bench) -> None:
    bench.job = replace(bench.job, reading=job(source={"starting_offsets": "latest"}).reading)
    bench.run()
    bench.world.topics["a"].append((0, 5))
    bench.run()
    assert sorted(bench.rows()) == [("a", 3, offset) for offset in range(5)]


def test_history_is_read_in_bounded_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = job(run={"max_offsets_per_run": 30})
    bench = Bench(world(), monkeypatch, bounded)
    runs = 0
    while (record := bench.run().record) is not None:
        runs += 1
        told = sum(share.range.end - share.range.base for share in record.shares)
        assert told <= 30 + 4
    assert runs == 3
    bench.check()


def test_offsets_that_were_deleted_stop_it_unless_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(world(), monkeypatch)
    bench.run()
    bench.world.topics["a"][0] = (60, 70)
    with pytest.raises(DataLoss, match=r"offsets \[45, 60\) of a-0 were deleted"):
        bench.run()
    before = len(bench.rows())
    bench.job = replace(bench.job, reading=job(source={"fail_on_data_loss": False}).reading)
    record = bench.run().record
    assert record is not None
    assert sum(share.counts.get("lost", 0) for share in record.shares) == 15
    assert len(bench.rows()) == before + 8


def test_a_topic_made_anew_is_refused(bench: Bench) -> None:
    bench.run()
    bench.world.topics["a"][0] = (0, 3)
    with pytest.raises(DataLoss, match=r"a-0 was read up to offset 45 and ends at 3"):
        bench.run()


def test_a_deleted_topic_stops_it_unless_that_is_allowed(bench: Bench) -> None:
    bench.run()
    del bench.world.topics["b"]
    with pytest.raises(DataLoss, match="the topic b is gone"):
        bench.run()
    bench.job = replace(bench.job, reading=job(source={"fail_on_data_loss": False}).reading)
    grow(bench)
    assert bench.run().record is not None


def test_a_topic_deleted_within_a_run_is_lost_in_the_account(bench: Bench) -> None:
    def hook(when: str, what: str, key: str) -> None:
        if key.startswith("_kafkawire/runs/") and when == "after":
            raise Killed

    with pytest.raises(Killed):
        bench.engine(hook).run()
    del bench.world.topics["b"]
    with pytest.raises(DataLoss, match="b is gone"):
        bench.run()


def test_damage_fails_the_run_and_nothing_is_committed(bench: Bench) -> None:
    bench.world.damaged.add(("a", 0, 4))
    with pytest.raises(Exception, match="offset 4 is damaged"):
        bench.run()
    assert bench.engine().table.committed() == 0
    assert State(bench.place).run(1) is not None
    bench.world.damaged.clear()  # the disk was mended
    assert bench.run().resumed
    bench.check()


def test_damage_becomes_a_dead_letter_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = job(dead_letter={"path": "/dead"}, run={"on_damage": "dead_letter"})
    bench = Bench(world(), monkeypatch, keep)
    bench.world.damaged |= {("a", 0, 4), ("a", 1, 20)}
    bench.run()
    bench.check()
    rows = sorted(
        (r["_partition"], r["_offset"], r["_end"], r["_value"]) for r in bench.dead_rows()
    )
    assert rows == [(0, 4, 5, b"\x00bad"), (1, 20, 21, b"\x00bad")]


def test_bad_values_become_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = job(dead_letter={"path": "/dead"}, value={"format": "avro", "schema": '"string"'})
    bench = Bench(world(), monkeypatch, text)
    record = bench.run().record
    assert record is not None
    dead = bench.dead_rows()
    assert len(dead) == sum(share.dead for share in record.shares) > 0
    assert all(share.missing == 0 for share in record.shares)
    assert all(
        row["_reason"].startswith("value: ") and row["_end"] == row["_offset"] + 1 for row in dead
    )
    there = {(row["_topic"], row["_partition"], row["_offset"]) for row in dead}
    assert there | set(bench.rows()) == bench.world.expected()
    assert len(there) + len(bench.rows()) == len(bench.world.expected())


def test_a_bad_value_without_a_place_for_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = job(value={"format": "avro", "schema": '"string"'})
    bench = Bench(world(), monkeypatch, strict)
    with pytest.raises(JobError, match=r"offset \d+ of a-0 has no place in the table: value"):
        bench.run()


def test_a_table_belongs_to_one_job(bench: Bench) -> None:
    bench.run()
    bench.job = replace(bench.job, name="other")
    with pytest.raises(JobError, match="is the table of the job 'test'"):
        bench.run()


def test_columns_may_come_and_not_go(bench: Bench) -> None:
    bench.run()
    grow(bench)
    more = replace(bench.job.table, timestamp_type_column=True)
    bench.job = replace(bench.job, table=more)
    bench.run()
    bench.check()
    bench.engine().compact()
    bench.check()
    grow(bench)
    bench.job = replace(bench.job, table=replace(more, topic_column=False))
    with pytest.raises(JobError, match=r"the table has a column _topic \(string\)"):
        bench.run()


def test_partition_columns_cannot_change(bench: Bench) -> None:
    bench.run()
    dated = job(table={"partition_by": ["date(timestamp)"]}).table
    bench.job = replace(bench.job, table=dated)
    with pytest.raises(JobError, match="partition_by must stay so"):
        bench.run()


def test_rows_are_in_the_folder_of_their_day(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_newer_state_is_refused(bench: Bench) -> None:
    bench.run()
    key = f"{state_module.FOLDER}/commits/{1:020}.json"
    bench.place.files[key] = bench.place.files[key].replace(b'"version":1', b'"version":2')
    grow(bench)
    with pytest.raises(Exception, match="version 2, this kafkawire reads 1"):
        bench.run()


def test_what_ended_processes_were_writing_is_deleted(tmp_path: Path) -> None:
    old, new = tmp_path / "d" / ".a.unfinished", tmp_path / ".b.unfinished"
    for path in (old, new):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    os.utime(old, (1, 1))
    remove_unfinished(open_place(str(tmp_path)))
    assert (old.exists(), new.exists()) == (False, True)


def test_a_failure_of_spark_is_said_by_its_cause() -> None:
    text = (
        "An error occurred while calling o67.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 ...\n"
        "\tat org.apache.spark.errors.X(X.scala:55)\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n"
    )
    said = "Spark's job failed: Python worker exited unexpectedly (crashed)"
    assert str(translated(RuntimeError(text))) == said
    ours = "Traceback:\n  x\nkafkawire.spark.model.DamagedData: segments/x: damaged\n"
    assert str(translated(RuntimeError(ours))) == "segments/x: damaged"
    assert isinstance(translated(KeyboardInterrupt()), KeyboardInterrupt)


def test_little_is_not_split_over_many_cores() -> None:
    def tasks(size: int, cores: int) -> int:
        parts = [Part(OffsetRange("t", index, 0, 1000), (), size) for index in range(3)]
        return len(tasks_of(parts, 64 << 20, cores))

    assert tasks(1000, 64) == 1
    assert 2 <= tasks(8 << 20, 2) <= 3
    assert 6 <= tasks(32 << 20, 6) <= 9
    assert tasks(128 << 20, 1) == 6


def test_an_engine_needs_no_spark(bench: Bench) -> None:
    assert isinstance(bench.engine(), Engine)
