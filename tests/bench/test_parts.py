"""Parts of the bench that need no broker: warm memory, targets, real clients, publishing."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from bench import cells, client_kinds, comparison, publish, reference, warm
from bench.__main__ import flatness
from bench.cell import Cell
from bench.client import JobResult
from bench.client_jobs import Reading
from bench.client_kinds import ClientError, Kind, Work
from bench.fleet import Fleet
from bench.runner import CellResult
from bench.server import RECYCLED_BYTES, Server, kafkawire

MIB = warm.MIB


class Machine:
    """Free memory as set by a test."""

    def __init__(self) -> None:
        self.free = 1000 * MIB

    def now(self) -> int:
        return self.free


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def room(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(warm, "AHEAD_BYTES", 8 * MIB)
    monkeypatch.setattr(warm, "remnants_now", lambda: 0)
    found = warm.Room(256 * MIB, free=machine.now)
    found.remnants._now = lambda: 0
    yield found
    found.close()


def until(reached: Any) -> None:
    for _ in range(12_000):
        if reached():
            return
        time.sleep(0.005)
    pytest.fail("not within a minute")


def test_room_holds_a_quarter_of_available_memory(room: warm.Room) -> None:
    assert room.size == 64 * MIB
    assert room.given == room.size
    reported: list[str] = []
    room.take(reported.append)
    assert room.given == 0
    assert len(reported) == 4


def test_room_releases_memory_for_writer_and_takes_it_back(
    room: warm.Room, machine: Machine
) -> None:
    room.take()
    with room.giving():
        until(lambda: room.given >= 8 * MIB)
        machine.free += 8 * MIB  # what has been given is free now
        machine.free -= 20 * MIB  # and the writer uses this
        until(lambda: room.given >= 20 * MIB)
        machine.free += 100 * MIB  # the file is deleted
        until(lambda: room.given == 0)
        machine.free = 0
        until(lambda: room.given == room.size)  # never more than there is
    assert room.given == 0


class Ticks:
    """An event that is set after some ticks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def wait(self, seconds: float) -> bool:
        self.count -= 1
        return self.count < 0


def test_resting_room_leaves_memory_as_it_is(room: warm.Room, machine: Machine) -> None:
    room.take()
    room.core = None
    wanted = machine.now() + 20 * MIB
    with room.resting():
        room._follow(wanted, cast("threading.Event", Ticks(3)))
    assert room.given == 0
    room._follow(wanted, cast("threading.Event", Ticks(3)))
    assert room.given >= 20 * MIB


def test_remnants_are_taken_until_few_are_left() -> None:
    rows = ["Node 0, zone Normal 3 2 0 0 0 0 0 0 1 7 9"]
    assert warm.remnants(rows) == (3 + 2 * 2 + 256) * warm.PAGE_BYTES
    left = iter([400, 380, 300, 200, 100])
    some = warm.Remnants(200 * MIB, lambda: next(left) * MIB)
    some.take()
    assert some.held == 3 * warm.STEP_BYTES  # 200 MiB are few enough
    some.close()
    none = warm.Remnants(4096 * MIB, lambda: 400 * MIB)
    none.size = 64 * MIB  # memory that a test may touch
    none.take()
    assert none.held == none.size
    none.take()
    assert none.held == none.size
    none.close()


def test_free_memory_is_read_from_proc() -> None:
    assert warm.free_bytes() > 0
    assert 0 < warm.remnants_now() < warm.available_bytes() * 2


def test_bulk_cells_write_less_than_room_and_kept_journals() -> None:
    for cell in cells.CELLS:
        bounds = [int(job.options.get("bytes", 0)) for job in cell.jobs]
        if cell.writes_much and cell.name.startswith("bulk"):
            assert max(bounds) < (RECYCLED_BYTES + 1 if cell.durable else warm.ROOM_BYTES)
    assert not cells.named("small acks=1 1 in flight").writes_much
    assert cells.named("fetch 1 consumer").writes_much


def test_targets_come_from_best_product_and_memory_store() -> None:
    names = {cell.name for cell in cells.CELLS}
    assert {*reference.FIGURES, *reference.SAME_AS, *reference.FACTORS, *reference.FIXED} <= names
    wanted = {cell.name: cell.target for cell in cells.CELLS}
    assert wanted["small acks=1 1 in flight"] == pytest.approx(58_400 * 1.3)
    assert wanted["small fsynced 16 connections"] == pytest.approx(15_800 * 1.5)
    assert wanted["small fsynced 64 connections"] == pytest.approx(15_800 * 2)
    assert wanted["fetch 16 consumers"] == 4_150
    assert wanted["paced 2000/s"] == 800
    assert wanted["connections 16"] is None


def test_estimate_is_scaled_by_kafkas_ratio() -> None:
    small, tail = cells.named("small acks=1 1 in flight"), cells.named("tail 1000/s")
    found = reference.estimates(small, [2.0, 3.0, 4.0], {"Kafka", "kfake"})
    assert set(found) == {"klite", "Nisshi", "SeaweedMQ"}
    assert found["klite"] == pytest.approx(3.0 * 31_600 / 17_500)
    # Kafka waits 920 us and klite 2,300: who is three times as quick as Kafka is more than seven.
    assert reference.estimates(tail, [3.0], {"Kafka"})["klite"] == pytest.approx(3 * 2300 / 920)
    assert not reference.estimates(cells.named("connections 16"), [3.0], set())


def result(cell: Cell, requests_s: float, cpu_us: float) -> CellResult:
    times = {"count": 9.0, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 2.0, "p999": 2.0, "max": 2.0}
    requests = int(requests_s)
    job = JobResult(
        "produce", requests, requests, requests, 1.0, requests_s, requests_s, 1.0, times, 0,
        cpu_us * requests / 1e6, 0.1, 0, None,
    )  # fmt: skip
    return CellResult(cell.name, cell.metric.value, requests_s, cell.target, None, job)


def test_flatness_is_ratio_of_costs() -> None:
    costs = {"partitions 1": 10.0, "partitions 10000": 12.0, "connections 16": 10.0}
    found = flatness([result(cells.named(name), 1000, cost) for name, cost in costs.items()])
    assert [round(fact.value, 3) for fact in found] == [1.2]
    assert found[0].ratio == pytest.approx(1.3 / 1.2)


def test_our_brokers_have_separate_folders(tmp_path: Path) -> None:
    fleet = Fleet([kafkawire(durable=False), kafkawire(durable=True)], tmp_path, {0})
    assert len({server.folder for server in fleet.servers}) == 2


def test_gap_in_read_offsets_is_an_error() -> None:
    reading = Reading(30)
    reading.saw(0, 9, 10)
    reading.saw(10, 29, 20)
    assert not reading.more
    assert reading.seconds() > 0
    for wrong in ((31, 40, 10), (30, 40, 10)):
        with pytest.raises(RuntimeError, match="where 30 was due"):
            reading.saw(*wrong)
    alone = Reading(5)
    alone.saw(0, 4, 5)
    with pytest.raises(RuntimeError, match="one answer"):
        alone.seconds()


def test_output_of_java_tools_is_parsed() -> None:
    sent = "5 records sent, 1.0 records/sec\n400 records sent, 200.0 records/sec (0.02 MB/sec)\n"
    assert client_kinds.java_read(Work("produce", 100, 400), sent) == (400, 2.0)
    row = "2026-01-01 00:00:00:000, 2026-01-01 00:00:03:000, 1.9, 0.6, 20000, 6000, 500, 2500, 1, 8"
    assert client_kinds.java_read(Work("consume", 100, 20_000), row) == (20_000, 2.5)


class Idle:
    """A server that costs nothing."""

    port = 1

    def cpu_s(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise SystemExit('no broker')", "no broker"),
        ("print('something else')", "it says: something else"),
        ('print(\'{"records": 3, "seconds": 1}\')', "3 of 10 records"),
    ],
)
def test_failed_client_gives_no_figure(program: str, words: str) -> None:
    known = client_kinds.python_kind("any", "kafka", (1, 1), (1, 1))
    kind: Kind = replace(known, command=lambda work, port, topic: [sys.executable, "-c", program])
    with pytest.raises(ClientError, match=re.escape(words)):
        client_kinds.run_work(cast("Server", Idle()), kind, Work("produce", 100, 10), "t", 0)


MACHINE = {
    "when": "2026-01-01 10:00:00 +0000", "commit": "abc", "cores": 2, "cpu": "a CPU",
    "memory_bytes": 2**34, "kernel": "6", "python": "3",
}  # fmt: skip


def results(folder: Path) -> None:
    """Files as the commands write them."""
    facts = [{"name": "page cache, new", "value": 400.0, "unit": "MB/s"}]
    small = cells.named("small acks=1 1 in flight")
    runs = [result(small, 100.0, 5.0)], [result(small, 200.0, 5.0)]
    compared = comparison.Comparison(small, "Kafka", *runs)
    one = {
        "title": "one core", "rounds": 3, "head": comparison.HEAD, "rows": [compared.row()],
        "cells": [compared.as_json()], "facts": [["Kafka", "1", "2", "3"]],
        "estimates": [["small", "klite *", "4"]], "failed": ["Kafka: it fell over"],
    }  # fmt: skip
    table = {"machine": MACHINE, "facts": facts, "head": ["cell", "reached"], "rows": [["x", "1"]]}
    (folder / "bench.json").write_text(json.dumps(table))
    (folder / "peers.json").write_text(json.dumps({"machine": MACHINE, "sets": [one]}))


def test_tables_are_published_between_markers(tmp_path: Path) -> None:
    results(tmp_path)
    said: list[str] = []
    before = publish.DOCUMENT.read_text()
    text = publish.published(before, tmp_path, said.append)
    assert "| x | 1 |" in text
    assert "Page cache, new: 400 MB/s" in text
    assert "- failed: Kafka: it fell over" in text
    assert (
        "| small acks=1 1 in flight | req/s | one core | 100 | Kafka | 200 | 0.50 | 1 of 1 |"
        in text
    )
    assert "klite *" in text
    assert any("left as it is" in line for line in said)
    assert publish.published(text, tmp_path, said.append) == text
    outside = re.compile(r"<!-- bench (\w+) -->.*?<!-- /bench \1 -->", re.DOTALL)
    assert outside.sub("", text) == outside.sub("", before)


def test_document_without_markers_and_old_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(publish.PublishError, match="bench peers"):
        publish.replaced("nothing here", "peers", "x")
    (tmp_path / "bench.json").write_text("{}")
    assert publish.main(["--results", str(tmp_path), "--document", str(tmp_path / "none")]) == 2
    with pytest.raises(publish.PublishError, match="run it again"):
        publish.published(publish.DOCUMENT.read_text(), tmp_path, print)
