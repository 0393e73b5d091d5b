"""The page of tables of pipelines, from the state that the jobs write.

Covers: kafkawire.console.pages.cluster, kafkawire.console.views.pipeline.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from kafkawire.console.app import application
from kafkawire.console.views import pipeline
from kafkawire.console.views.pipeline import MAX_RUNS, describe_tables
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import PartitionRange
from kafkawire.testing import InProcessBroker
from kafkawire_spark.pipeline.jobs.state import Hint, Run, RunRecord, Share, TableState, dump
from tests.console.conftest import ORDERS, RECORDS
from tests.console.test_pages import check_page

JOB = "<b>job</b>"


def put(table: Path, kind: str, number: int, data: bytes) -> None:
    file = table / "_kafkawire" / kind / f"{number:020}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def run_of(number: int) -> Run:
    part = PartitionRange(ORDERS, 0, number - 1, number)
    return Run(JOB, number, ((part,),), {ORDERS: {0: number}})


def commit(table: Path, number: int, rows: int = 1) -> None:
    """Store the intent and the record of a run of one offset."""
    run = run_of(number)
    put(table, "runs", number, dump(run))
    share = Share(run.tasks[0][0], rows, 0, {"aborted": 0})
    put(table, "commits", number, dump(RunRecord(JOB, number, (), (), (share,), run.ends, 7, 1.5)))


def test_runs_account_for_offsets(tmp_path: Path) -> None:
    for number in range(1, MAX_RUNS + 3):
        commit(tmp_path, number, rows=0 if number == MAX_RUNS + 2 else 1)
    (found,) = describe_tables([str(tmp_path)], None)
    assert (found.job, found.begun, found.error) == (JOB, None, "")
    assert [row.number for row in found.runs] == list(range(MAX_RUNS + 2, 2, -1))
    assert found.runs[0][3:] == (1, 0, 0, {"aborted": 0}, 1)
    assert found.runs[1].unexplained == 0
    assert found.lag == {ORDERS: None}


def test_runs_after_the_hint_and_one_that_has_begun_are_found(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        commit(tmp_path, number)
    TableState(open_place(str(tmp_path))).put_hint(Hint(2))
    put(tmp_path, "runs", 4, dump(run_of(4)))
    results = tmp_path / "_kafkawire" / "runs" / f"{3:020}"
    results.mkdir()
    (results / "task-0.json").write_bytes(b"{}")
    (found,) = describe_tables([str(tmp_path)], None)
    assert (found.runs[0].number, found.begun) == (3, 4)


def test_what_is_no_table_has_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(tmp_path / "damaged", 1)
    file = next((tmp_path / "damaged" / "_kafkawire" / "commits").iterdir())
    file.write_bytes(file.read_bytes().replace(b'"at_ms":7', b'"at_ms":8'))
    commit(tmp_path / "large", 1)
    urls = [str(tmp_path / name) for name in ("absent", "damaged", "large")]
    monkeypatch.setattr(pipeline, "MAX_RECORD_BYTES", len(file.read_bytes()) + 1)
    put(tmp_path / "large", "commits", 1, bytes(1000))
    absent, damaged, large = (each.error for each in describe_tables(urls, None))
    assert "is no table of a pipeline" in absent
    assert "checksum is wrong" in damaged
    assert "has more than" in large


def test_page_has_the_lag_of_each_topic(running: InProcessBroker, tmp_path: Path) -> None:
    commit(tmp_path, 1)
    options = ConsoleOptions(running.bootstrap, ("127.0.0.1",), pipelines=(str(tmp_path),))
    with TestClient(application(options), base_url="http://127.0.0.1") as pages:
        text = pages.get("/pipeline").text
    check_page(text)
    assert "&lt;b&gt;job&lt;/b&gt;" in text
    assert f"{RECORDS - 1} offsets are not read yet." in text


def test_page_without_tables_says_how_to_give_them(pages: TestClient) -> None:
    assert "start the console with --pipeline" in pages.get("/pipeline").text
