"""The JSON of the `pipeline` commands, without Spark: one schema, as of every other command.

`run`, `compact` and `audit` work on a real table in this process; `query`, `replay` and `report`
print what a statement, a replay and an analysis could return. The JSON of `run`, `audit`, `report`
and `replay` is also checked where tests/spark runs them for real.

Covers: kafkawire_spark.cli.run, kafkawire_spark.pipeline.submitted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.reading.files.open import open_place
from kafkawire_spark.audit import job
from kafkawire_spark.cli import query, replay, report
from kafkawire_spark.pipeline import submitted
from kafkawire_spark.pipeline.engine import Engine
from kafkawire_spark.pipeline.jobs.job import Job
from kafkawire_spark.query import Result
from kafkawire_spark.replay.job import LaneReport, Summary
from kafkawire_spark.replay.record import Replay
from kafkawire_spark.reports.report import Report
from tests.kit.json_schema import check_document, check_lines
from tests.kit.spark.inline import Inline, in_process
from tests.kit.spark.pipeline_topics import Tier, job_text

LARGE = (1 << 53) + 1
"""An offset that a float does not hold exactly."""


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose commands execute their tasks in this process."""
    tier = Tier(open_place(str(tmp_path / "tier")))
    tier.grow(20)
    file = tmp_path / "job.toml"
    file.write_text(job_text(tier.files.place.url, tmp_path / "table"))

    @contextmanager
    def engine_of(job: Job, *_: object) -> Iterator[Engine]:
        yield Engine(job, Inline())

    monkeypatch.setattr(submitted, "engine_of", engine_of)
    monkeypatch.setattr(job, "through_new_spark", lambda *_: in_process)
    return file


def output(*words: str) -> str:
    done = CliRunner().invoke(app, ["pipeline", *words, "--json"])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_run_compact_and_audit(job_file: Path) -> None:
    (ran,) = check_lines(output("run", str(job_file)))
    assert (ran["run"], ran["rows"], ran["offsets"]) == (1, 30, 30)
    assert set(ran["partitions"][0]) == {
        "topic", "partition", "from", "to", "rows", "dead_letters", "no_row", "lag",
    }  # fmt: skip
    (again,) = check_lines(output("run", str(job_file)))
    assert again == {"run": None, "lag": 0}
    merged = check_document(output("compact", str(job_file)))
    assert merged["merged"] >= merged["into"] >= 0
    audited = check_document(output("audit", str(job_file.parent / "table")))
    assert (audited["clean"], audited["rows"]) == (True, 30)


def test_query(capsys: pytest.CaptureFixture[str]) -> None:
    values = (LARGE, b"key", float("nan"), float("-inf"), 0.1, None)
    rows = Result(["offset", "key", "mean", "least", "share", "value"], [values])
    query.show(rows, "json", 1)
    (row,) = check_lines(capsys.readouterr().out)
    assert tuple(row.values()) == (LARGE, "key", "NaN", "-Infinity", 0.1, None)


def test_replay(capsys: pytest.CaptureFixture[str]) -> None:
    plan = Replay("again", "orders", "orders-again", "id", "cluster", 1, 0, ())
    replay._show(Summary(plan, [LaneReport(0, 1, 7, 9, LARGE, LARGE + 9)], []), 0.5, True)
    (lane,) = check_document(capsys.readouterr().out)
    assert (lane["from"], lane["to"], lane["written"]) == (LARGE, LARGE + 9, 7)


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    made = Report("lag", ["One group."])
    made.add("lag-partitions", "Lag", pa.table({"committed": [LARGE], "lag": [2]}), "committed")
    report.show(made, ["lag-partitions.csv"], "out", True)
    printed = check_document(capsys.readouterr().out)
    assert printed["tables"] == {"lag-partitions": [{"committed": LARGE}]}
