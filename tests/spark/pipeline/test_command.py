"""Repeated runs of a pipeline, the reports of runs, and the exit codes of the command."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkawire.reading.model.source import DataLoss, OffsetGap, PartitionRange, SourceError
from kafkawire_spark.cli import run as pipeline_run
from kafkawire_spark.pipeline import __main__ as main_module
from kafkawire_spark.pipeline import submitted
from kafkawire_spark.pipeline.engine import RunOutcome
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import (
    DamagedState,
    FileFacts,
    Run,
    RunRecord,
    Share,
    UnknownVersion,
    dump,
    load_json,
    load_record,
    load_run,
)
from kafkawire_spark.pipeline.submitted import TRIES, run_on, until_signalled


def outcome(run: int = 3) -> RunOutcome:
    shares = (
        Share(PartitionRange("b", 0, 5, 9), 2, 1, {"lost": 1}, (OffsetGap(6, 7, "lost"),)),
        Share(PartitionRange("a", 10, 0, 5), 5),
        Share(PartitionRange("a", 10, 5, 8), 3),
    )
    files = (FileFacts("x.parquet", 8, 3 << 20, "a", 10, 0, 8, (("d", None),), run, "{}"),)
    ends = {"a": {10: 8}, "b": {0: 9}}
    record = RunRecord("j", run, files, (), shares, ends, 1, 2.0, "file:///dead")
    return RunOutcome(record, lags={("a", 10): 4, ("b", 0): 0})


def test_records_and_intents_round_trip() -> None:
    record = outcome().record
    assert record is not None
    assert load_record(load_json(dump(record), "record")) == record
    run = Run("j", 1, ((PartitionRange("a", 0, 0, 5),), ()), {"a": {0: 5}})
    assert load_run(load_json(dump(run), "run")) == run
    with pytest.raises(
        UnknownVersion, match=r"runs/1\.json has the version 9, this kafkawire reads"
    ):
        load_json(b'{"version": 9, "number": 1}', "runs/1.json")
    assert load_json(b'{"version": 1, "number": 1}', "1.json") == load_json(b'{"number": 1}', "2")
    with pytest.raises(DamagedState, match=r"runs/1\.json is damaged"):
        load_json(dump(run).replace(b'"a"', b'"c"'), "runs/1.json")


def test_run_report_as_rows_and_as_line() -> None:
    record = outcome().record
    assert record is not None
    rows = submitted.partitions(record, outcome().lags)
    assert rows[0] == {
        "topic": "a", "partition": 10, "from": 0, "to": 8, "rows": 8, "dead_letters": 0,
        "no_row": {}, "lag": 4,
    }  # fmt: skip
    assert submitted.format_partition_row(rows[1])["no row"] == "1 lost"
    line = submitted.sentence(outcome())
    assert line == "run 3: 10 rows in 1 file, 3.0 MiB, 1 dead letter, 2.0 s (5 rows/s), lag 4"
    assert submitted.sentence(RunOutcome(lags={("a", 0): 2})) == "nothing new, lag 2"
    totals = submitted.totals(outcome())
    assert (totals["rows"], totals["offsets"], totals["bytes"], totals["lag"]) == (
        10,
        12,
        3 << 20,
        4,
    )
    json.dumps(totals)


def on(*runs: RunOutcome | SourceError) -> tuple[list[RunOutcome], list[SourceError]]:
    """The reports of runs with these outcomes, with a stop after the last one."""
    stopped, reported, failed = threading.Event(), list[RunOutcome](), list[SourceError]()
    left = list(runs)

    def run() -> RunOutcome:
        if len(left) == 1:
            stopped.set()
        one = left.pop(0)
        if isinstance(one, SourceError):
            raise one
        return one

    run_on(run, 0.001, stopped, reported.append, lambda problem, wait_s: failed.append(problem))
    return reported, failed


def test_runs_repeat_until_stopped() -> None:
    reported, failed = on(outcome(1), RunOutcome(), outcome(2))
    assert (len(reported), failed) == (3, [])


def test_bounded_run_is_followed_at_once() -> None:
    stopped, runs = threading.Event(), list[RunOutcome]()
    more = outcome()
    more.planned_less = True

    def run() -> RunOutcome:
        if len(runs) == 3:
            stopped.set()
        return more

    run_on(run, 3600.0, stopped, runs.append, lambda problem, wait_s: None)
    assert len(runs) == 4


def test_only_transient_errors_are_retried() -> None:
    away = SourceError("the bucket is away")
    reported, failed = on(away, away, outcome(), away, outcome())
    assert (len(reported), failed) == (2, [away] * 3)
    with pytest.raises(SourceError, match="away"):
        on(*[away] * TRIES, outcome())
    for final in (JobError("the job is another's"), DataLoss("offsets are gone")):
        with pytest.raises(type(final)):
            on(final, outcome())


def test_first_signal_requests_stop_and_second_interrupts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with until_signalled() as stopped:
        signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(10)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    assert "stopping after this run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "job.toml: No such file or directory"),
        (b"[job]\nnam = 'x'", "has a key 'nam' that is not known; did you mean name?"),
        (b"\xff", "job.toml is not UTF-8"),
    ],
)
def test_unreadable_job_exits_with_2(
    text: bytes | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    if text is not None:
        path.write_bytes(text)
    calls: list[Callable[[], object]] = [
        lambda: pipeline_run.run(str(path), "", False, False),
        lambda: pipeline_run.compact(str(path), "", False),
    ]
    for call in calls:
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code == 2
        assert sentence in capsys.readouterr().err
    assert main_module.main([str(path)]) == 2
    assert sentence in capsys.readouterr().err


def test_spark_submit_file_explains_its_usage() -> None:
    assert main_module.main([]) == 2
