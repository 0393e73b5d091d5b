"""Rows of the bench beyond `make bench`: fetches by age of data, latencies after bulk, peers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cells, client, comparison, growth, long_cells, peer_recipes, report, server
from bench.__main__ import main
from bench.cell import ALL_ROWS, MATRIX, Cell, Metric, scaled
from bench.client import JobResult
from bench.comparison import Comparison, loss_rows, losses_of
from bench.fleet import recipes
from bench.loads import MB, bulk, paced, produce, tail
from bench.peer_recipes import NotInstalled
from bench.peers import takes_part
from bench.runner import CellResult, Place, run_cell
from bench.server import Recipe, Server, kafkawire
from kafkawire.client.cluster import Cluster
from kafkawire.codec.configs.table import BROKER_CONFIGS
from kafkawire.testing import broker
from tests.bench.test_load_client import PRODUCE, needs_cc, running

LONG = cells.chosen("", False, ALL_ROWS)[len(cells.chosen("", False)) :]


def job(
    requests: int = 1000, records: int = 1000, size: int = 1_000_000, cpu_s: float = 1.0
) -> JobResult:
    times = {"count": 9.0, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 2.0, "p999": 3.0, "max": 4.0}
    return JobResult(
        "produce", requests, records, size, 1.0, float(requests), float(records), size / 1e6,
        times, 0, cpu_s, 0.1, 0, None,
    )  # fmt: skip


def run(cell: Cell, value: float, cpu_s: float = 1.0) -> CellResult:
    measured = job(cpu_s=cpu_s)
    return CellResult(
        cell.name, cell.metric.value, value, None, None, measured,
        cost_us=cell.cost_us(measured), cost_unit=cell.cost_unit,
    )  # fmt: skip


def test_make_bench_runs_no_long_row() -> None:
    usual = cells.chosen("", False)
    assert {cell.group for cell in usual} == {MATRIX}
    assert {cell.group for cell in LONG} == set(long_cells.GROUPS) - {MATRIX}
    assert len(usual) + len(LONG) == len(cells.CELLS)
    assert all(cell.group == "fetch" for cell in cells.chosen("", False, "fetch"))
    names = [cell.name for cell in cells.chosen("paced 2000", False, "after-bulk,with-bulk")]
    assert names == [
        *(f"after bulk: paced 2000/s {mode}" for mode in ("flush=os", "flush=commit", "fsynced")),
        *(f"with bulk: paced 2000/s {mode}" for mode in ("flush=os", "flush=commit", "fsynced")),
    ]


def test_long_rows_can_be_chosen_by_words() -> None:
    """--cells separates words by commas."""
    assert not [cell.name for cell in LONG if "," in cell.name]


def test_rows_are_checked() -> None:
    assert report.rows_options("matrix,fetch") == "matrix,fetch"
    assert report.rows_options(ALL_ROWS) == ALL_ROWS
    with pytest.raises(Exception, match="fetchs is not one of matrix, fetch"):
        report.rows_options("fetchs")


def test_warm_data_is_not_hot_and_mixed_data_is_both() -> None:
    hot, journal = (BROKER_CONFIGS[name].default for name in ("hot.bytes", "journal.bytes"))
    assert isinstance(hot, int)
    assert isinstance(journal, int)
    assert journal > long_cells.HOT_BYTES
    assert hot + journal < long_cells.NEWER_BYTES
    assert hot + journal < long_cells.MIXED_BYTES


def test_rows_after_bulk_measure_from_first_request_on() -> None:
    for cell in LONG:
        if cell.group in ("after-bulk", "with-bulk", "after-pause"):
            assert cell.whole
            assert cell.warmup_s == 0
            assert cell.metric is Metric.P99_US
            assert cell.writes_much
        if cell.group == "after-bulk":
            assert cell.seconds == 6
            assert cell.fill[0].options["bytes"] == 900 * MB
            assert cell.pause_s == 0
            assert not cell.load_writes_much


def test_cost_is_per_mb_per_record_or_per_request() -> None:
    measured = job(requests=500, records=1000, size=2 * MB)
    rate = Cell("a", (bulk(100),), Metric.MB_S)
    waiting = Cell("b", tail(1000), Metric.P99_US, measured=1)
    small = Cell("c", (produce(),))
    shared = Cell("d", (paced(2000), bulk(100)), Metric.P99_US)
    found = [(each.cost_unit, each.cost_us(measured)) for each in (rate, waiting, small, shared)]
    assert found == [("MB", 500_000), ("record", 1000), ("request", 2000), ("request", None)]
    assert report.cell_row(run(rate, 9.0))[8:10] == ["1,000,000", "MB"]


def test_scaled_cell_has_less_of_everything() -> None:
    cell = cells.named("after a pause: paced 2000/s flush=commit")
    tried = scaled(cell, 0.1)
    assert (tried.fill[0].options["bytes"], tried.pause_s) == (90 * MB, 0.9)
    assert tried.seconds == pytest.approx(0.3)
    assert tried.jobs == cell.jobs
    assert scaled(cell, 1.0) is cell


def test_brokers_run_cells_in_which_their_ack_means_the_same() -> None:
    kafka = Recipe("Kafka", lambda port, folder: [])
    syncing = Recipe("Kafka fsync", kafka.command, durable=True)
    klite = Recipe("klite", kafka.command, durable=True, only_durable=True)
    known = [kafkawire(False), kafkawire(True), kafka, syncing, klite]
    part = {
        mode: [known.index(r) for r in known if takes_part(r, cells.named(f"{name} {mode}"))]
        for mode in ("flush=os", "flush=commit", "fsynced")
        for name in ("after bulk: paced 2000/s",)
    }
    assert part == {"flush=os": [0, 2, 4], "flush=commit": [1, 2, 4], "fsynced": [1, 3, 4]}


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_klite_is_found_or_left_out_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KLITE", raising=False)
    assert [recipe.name for recipe in recipes(["klite"], [])] == ["kafkawire", "kafkawire"]
    assert capsys.readouterr().out == "without klite: no klite on PATH, and KLITE names none\n"
    monkeypatch.setenv("KLITE", "/no/such")
    with pytest.raises(NotInstalled, match="KLITE is /no/such"):
        peer_recipes.klite()
    monkeypatch.setenv("KLITE", str(program(tmp_path / "mine", "echo klite version 9.8.7")))
    assert peer_recipes.versions()["klite"] == "9.8.7"
    monkeypatch.delenv("KLITE")
    found = program(tmp_path / "klite", "exit 0")
    command = peer_recipes.installed("klite").command(9, tmp_path)
    assert command[0] == str(found)
    assert "127.0.0.1:9" in command


def test_losses_are_listed_worst_first() -> None:
    fast, slow = cells.named("fetch warm 1 consumer"), cells.named("tail 1000/s")
    compared = [
        Comparison(fast, "Kafka", [run(fast, 900.0, 1.5)] * 2, [run(fast, 1000.0, 1.0)] * 2),
        Comparison(
            slow, "klite", [run(slow, 8.0), run(slow, 2.0), run(slow, 8.0)], [run(slow, 4.0)] * 3
        ),
        Comparison(slow, "kfake", [run(slow, 3.0)], [run(slow, 4.0)]),
    ]
    rows = loss_rows(losses_of(compared, "one core"))
    assert [len(row) for row in rows] == [len(comparison.LOSS_HEAD)] * 3
    assert [(row[0], row[1], row[4], row[6], row[7]) for row in rows] == [
        ("tail 1000/s", "p99 us", "klite", "0.50", "2 of 3"),
        ("fetch warm 1 consumer", "cpu us/MB", "Kafka", "0.67", "2 of 2"),
        ("fetch warm 1 consumer", "MB/s", "Kafka", "0.90", "2 of 2"),
    ]
    assert not losses_of(compared[2:], "one core")
    assert all(len(each.row()) == len(comparison.HEAD) for each in compared)


BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
time.sleep(60)
"""


class Working(Server):
    """A broker whose CPU time is given."""

    def __init__(self, used: list[float]) -> None:
        self.used = used

    def tree_cpu_s(self) -> float:
        return self.used.pop(0)


def test_load_begins_when_the_broker_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SETTLE_STEP_S", 0.01)
    broker = Working([0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 9.9])
    assert broker.settle(60.0)
    assert broker.used == [9.9]
    assert not Working([0.0]).settle(0.0)


@needs_cc
@pytest.mark.slow
def test_cpu_time_of_child_processes_counts(tmp_path: Path) -> None:
    with (
        running({}) as port,
        subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as parent,
    ):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            found = client.run([PRODUCE], {"port": port, "seconds": 0.3, "server_pid": parent.pid})
            broker = Server(kafkawire(), tmp_path, {0})
            broker.process = parent
            seconds = broker.tree_cpu_s()
        finally:
            os.kill(child, 9)
            parent.kill()
    assert found[0].server_cpu_s > 0.01
    assert seconds > found[0].server_cpu_s / 2


@needs_cc
def test_no_step_holds_event_loop_while_new_data_is_read(tmp_path: Path) -> None:
    """By CPU time, so it does not depend on what else the machine does. Most of the data is not
    mapped, as in the full rows."""
    plain = kafkawire()

    def command(port: int, folder: Path) -> list[str]:
        small = [f"{name}={8 << 20}" for name in ("hot.bytes", "journal.bytes")]
        return [*plain.command(port, folder), *(word for each in small for word in ("--set", each))]

    found = Server(Recipe("kafkawire", command, env=plain.env), tmp_path / "data", {0})
    found.start()
    try:
        for cell in cells.chosen("", False, "recent"):
            result = run_cell(found, scaled(cell, 0.2), Place())
            assert not result.errors
            assert not result.long_steps, found.tail()
    finally:
        found.stop()
        found.discard()


@needs_cc
def test_bench_runs_on_a_broker_that_runs_already(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cells", "small acks=1", "--seconds", "0.2", "--no-ceiling", "--no-warm"]
    with broker() as found:
        assert main(["--at", found.bootstrap, "--scale", "0.1", *words]) == 0
        with Cluster(found.bootstrap) as cluster:
            assert not cluster.metadata(None).topics
    shown = capsys.readouterr().out
    assert f"{found.bootstrap}" in shown
    assert "req/s" in shown


def test_address_of_a_running_broker_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--at", "9092"])
    assert "9092: it must be HOST:PORT, such as 127.0.0.1:9092" in capsys.readouterr().err
    assert main(["--at", "127.0.0.1:1", "--no-ceiling", "--no-warm"]) == 2
    assert "no broker accepts connections at 127.0.0.1:1" in capsys.readouterr().err


@needs_cc
@pytest.mark.slow
def test_growth_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--kinds", "groups,open trans", "--scale", "0.002", "--data", str(tmp_path / "data")]
    assert growth.main(words) == 0
    table = capsys.readouterr().out
    assert "groups with an offset" in table
    assert "open transactions" in table
