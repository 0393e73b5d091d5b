"""Errors that a run of a pipeline refuses: lost offsets, damage, invalid values, another job's
table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kafkawire.manifest.sealed_json import seal
from kafkawire.reading.model.source import DamagedData, DataLoss
from kafkawire_spark.pipeline.executors import translate_error
from kafkawire_spark.pipeline.jobs import state as state_module
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import DamagedState, TableState, UnknownVersion
from tests.kit.spark.pipelines import (
    Bench,
    Killed,
    grow,
    job,
    new_bench,  # noqa: F401  (a fixture, by name)
    world,
)


def test_deleted_offsets_fail_run_unless_allowed(
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


def test_recreated_topic_is_refused(bench: Bench) -> None:
    bench.run()
    bench.world.topics["a"][0] = (0, 3)
    with pytest.raises(DataLoss, match=r"a-0 was read up to offset 45 and ends at 3") as refused:
        bench.run()
    assert "a transaction was open that begins at offset 3" in str(refused.value)


def test_recreated_topic_is_recognised_by_id(bench: Bench) -> None:
    bench.run()
    bench.run()  # of no length: ids are kept from run to run
    bench.world.ids["a"] = b"another".rjust(16)
    grow(bench)
    with pytest.raises(
        DataLoss, match="the topic a was deleted and created again since the last run"
    ):
        bench.run()
    bench.job = replace(bench.job, reading=job(source={"fail_on_data_loss": False}).reading)
    for _ in range(2):
        record = bench.run().record
        assert record is not None
        assert {share.range.topic for share in record.shares} == {"b"}
        grow(bench)


@pytest.mark.parametrize("fails", [True, False])
def test_topic_recreated_during_run_is_not_read(bench: Bench, fails: bool) -> None:
    def hook(when: str, what: str, key: str) -> None:
        if key.startswith("_kafkawire/runs/") and when == "after":
            raise Killed

    with pytest.raises(Killed):
        bench.engine(hook).run()
    bench.world.ids["b"] = b"another".rjust(16)
    bench.job = replace(bench.job, reading=job(source={"fail_on_data_loss": fails}).reading)
    with pytest.raises(DataLoss, match="b was deleted and created again"):
        bench.run()


def test_deleted_topic_fails_run_unless_allowed(bench: Bench) -> None:
    bench.run()
    del bench.world.topics["b"]
    with pytest.raises(DataLoss, match="the topic b is gone"):
        bench.run()
    bench.job = replace(bench.job, reading=job(source={"fail_on_data_loss": False}).reading)
    grow(bench)
    assert bench.run().record is not None


def test_topic_deleted_during_run_is_accounted_as_lost(bench: Bench) -> None:
    def hook(when: str, what: str, key: str) -> None:
        if key.startswith("_kafkawire/runs/") and when == "after":
            raise Killed

    with pytest.raises(Killed):
        bench.engine(hook).run()
    del bench.world.topics["b"]
    with pytest.raises(DataLoss, match="b is gone"):
        bench.run()


def test_damage_fails_run_without_commit(bench: Bench) -> None:
    bench.world.damaged.add(("a", 0, 4))
    with pytest.raises(Exception, match="offset 4 is damaged"):
        bench.run()
    assert bench.engine().table.read_last_run() == 0
    assert TableState(bench.place).run(1) is not None
    bench.world.damaged.clear()  # the disk was repaired
    assert bench.run().resumed
    bench.check()


def test_run_begun_with_other_settings_is_reported(bench: Bench) -> None:
    bench.world.damaged.add(("a", 0, 4))
    with pytest.raises(Exception, match="offset 4 is damaged"):
        bench.run()
    with pytest.raises(DamagedData, match="offset 4 is damaged"):
        bench.run()
    bench.job = replace(bench.job, value=job(value={"format": "text"}).value)
    with pytest.raises(JobError, match=r"damaged.*; run 1 was begun with another \[value\].* yet"):
        bench.run()


def test_damage_becomes_dead_letter_if_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = job(dead_letter={"path": "/dead"}, run={"on_damage": "dead_letter"})
    bench = Bench(world(), monkeypatch, keep)
    bench.world.damaged |= {("a", 0, 4), ("a", 1, 20)}
    bench.run()
    bench.check()
    rows = sorted(
        (r["_partition"], r["_offset"], r["_end"], r["_value"]) for r in bench.dead_rows()
    )
    assert rows == [(0, 4, 5, b"\x00bad"), (1, 20, 21, b"\x00bad")]


def test_invalid_values_become_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_invalid_value_without_dead_letters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = job(value={"format": "avro", "schema": '"string"'})
    bench = Bench(world(), monkeypatch, strict)
    with pytest.raises(JobError, match=r"offset \d+ of a-0 has no place in the table: value"):
        bench.run()


def test_table_belongs_to_one_job(bench: Bench) -> None:
    bench.run()
    bench.job = replace(bench.job, name="other")
    with pytest.raises(JobError, match="is the table of the job 'test'"):
        bench.run()


def test_columns_can_be_added_but_not_removed(bench: Bench) -> None:
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


def test_newer_state_format_is_refused(bench: Bench) -> None:
    bench.run()
    key = f"{state_module.FOLDER}/commits/{1:020}.json"
    sound = bench.place.files[key]
    bench.place.files[key] = seal('{"version": 3, "run": 1}')
    grow(bench)
    with pytest.raises(UnknownVersion, match="version 3, this kafkawire reads 2"):
        bench.run()
    bench.place.files[key] = sound.replace(b'"base":0', b'"base":1', 1)
    with pytest.raises(DamagedState, match=f"{key} is damaged"):
        bench.run()


def test_spark_failure_is_reported_by_its_cause() -> None:
    text = (
        "An error occurred while calling o67.collectToPython.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 ...\n"
        "\tat org.apache.spark.errors.X(X.scala:55)\n"
        "Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n"
    )
    said = "Spark's job failed: Python worker exited unexpectedly (crashed)"
    assert str(translate_error(RuntimeError(text))) == said
    ours = "Traceback:\n  x\nkafkawire.reading.model.source.DamagedData: segments/x: damaged\n"
    assert str(translate_error(RuntimeError(ours))) == "segments/x: damaged"
    assert isinstance(translate_error(KeyboardInterrupt()), KeyboardInterrupt)
