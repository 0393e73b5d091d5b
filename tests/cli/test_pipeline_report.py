"""`kafkawire pipeline report`: its arguments and its output; without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from kafkawire.cli.app import app
from kafkawire.client.notation import OptionError
from kafkawire.progress import Progress
from kafkawire.reading.model.source import Source, TaskFailed
from kafkawire_spark.cli.report import ROWS_PRINTED, show, time_ms, where, whole_path
from kafkawire_spark.reports.jobs import REPORTS
from kafkawire_spark.reports.report import Report


def test_report_sources_are_those_of_data_source() -> None:
    assert where("s3://b/p", "") == Source("s3://b/p")
    assert where("localhost:9092", "") == Source(bootstrap="localhost:9092")
    assert where("/data", "h:1,h:2") == Source("/data", "h:1,h:2")
    assert where("/data", "", "read_uncommitted") == Source("/data", isolation="read_uncommitted")
    assert where("tier", "") == Source(os.path.abspath("tier"))
    assert whole_path("./x") == os.path.abspath("x")
    assert whole_path("file:///x") == "file:///x"


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert time_ms("--from", "") is None
    assert time_ms("--from", "1970-01-02") == 86_400_000
    assert time_ms("--from", "1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(OptionError, match="--until=noon: it must be a time: ISO 8601"):
        time_ms("--until", "noon")


def test_help_names_every_report() -> None:
    shown = CliRunner().invoke(app, ["pipeline", "report", "--help"]).stdout
    assert all(f"{name}:" in shown for name in REPORTS)


WORDS = ["pipeline", "report", "sizes", "--source", "/d"]


def test_progress_is_printed_as_lines_without_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_report(name: str, request: object, master: str, progress: Progress) -> Report:
        for count in range(41):
            progress("ranges read", count, 40)
        return Report(name, ["Done."])

    monkeypatch.setattr("kafkawire_spark.cli.report._make_report", make_report)
    done = CliRunner().invoke(app, [*WORDS, "--output", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (0, "Done.\n")
    lines = done.stderr.splitlines()
    assert (len(lines), lines[-1]) == (10, "ranges read: 40 of 40")


def test_interruption_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_report(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kafkawire_spark.cli.report._make_report", make_report)
    done = CliRunner().invoke(app, [*WORDS, "--output", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (130, "kafkawire: interrupted; no report was written\n")
    assert not list(tmp_path.iterdir())


def test_failed_job_is_no_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_report(*_: object) -> None:
        raise TaskFailed("segments/1.segment: damaged")

    monkeypatch.setattr("kafkawire_spark.cli.report._make_report", make_report)
    done = CliRunner().invoke(app, [*WORDS, "--output", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (1, "kafkawire: segments/1.segment: damaged\n")


def test_long_tables_are_truncated_and_times_formatted(capsys: pytest.CaptureFixture[str]) -> None:
    made = Report("lag", ["A sentence."])
    rows = ROWS_PRINTED + 5
    data = pa.table({"group_id": [f"g{i}" for i in range(rows)], "deleted_ms": [0] * rows})
    made.add("lag", "Groups", data, "group_id", "deleted_ms")
    made.add("lag-history", "History", data)
    show(made, ["lag.csv"], "out", as_json=False)
    shown = capsys.readouterr().out
    assert "1970-01-01T00:00:00.000Z" in shown
    assert "... and 5 more rows in lag.csv" in shown
    assert "History" not in shown
    assert shown.endswith("A sentence.\nWritten to out: lag.csv\n")
    show(made, ["lag.csv"], "out", as_json=True)
    reported = json.loads(capsys.readouterr().out)
    assert (reported["report"], reported["problems"], len(reported["tables"]["lag"])) == (
        "lag",
        0,
        ROWS_PRINTED,
    )
    assert reported["tables"]["lag"][0] == {"group_id": "g0", "deleted_ms": 0}


def test_lines_for_each_partition_are_shown_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = Report("sizes", ["A sentence."])
    made.add("sizes", "Topics", pa.table({"topic": ["t"]}), "topic")
    rows = pa.table({"topic": ["t"] * 3, "partition": [0, 1, 2]})
    made.add("sizes-partitions", "Partitions", rows, "topic", "partition")
    show(made, [], "out", as_json=False)
    assert "Partitions" not in capsys.readouterr().out
    show(made, [], "out", as_json=False, verbose=True)
    assert "Partitions" in capsys.readouterr().out


def test_empty_internal_partitions_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    made = Report("continuity", ["A sentence."])
    topics = ["__consumer_offsets"] * 30 + ["orders", "__consumer_offsets"]
    rows = {"topic": topics, "partition": [*range(30), 0, 30], "records": [0] * 31 + [5]}
    made.add("continuity", "Partitions", pa.table(rows), "topic", "partition", "records")
    show(made, [], "out", as_json=False, verbose=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["orders", "0", "0"] in lines
    assert [line for line in lines if line[:1] == ["__consumer_offsets"]] == [
        ["__consumer_offsets", "30", "5"]
    ]


def test_omitted_columns_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire_spark.reports.report.ROWS_MAX", 3)
    made = Report("lag")
    assert made.add("lag", "Groups", pa.table({"x": [1, 2, 3, 4]})).num_rows == 3
    assert "only the first 3 rows are kept" in made.sentences[0]
