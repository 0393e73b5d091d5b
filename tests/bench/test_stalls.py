"""The trace of the broker's waits: what is recorded, and which cause a stall gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench import stall_causes, stalls
from bench.client import BENCH
from bench.server import kafkawire
from bench.stall_causes import Call, JobRun, Memory, Recording, Stall, Task

LOOP, COMMITS = 10, 11


def recorded() -> Recording:
    """A second of fill, then two seconds of load with one stall of an eighth at 0.5 s."""
    return Recording(
        LOOP,
        calls=[
            Call("callback CommitLog._flush", LOOP, 10.49, 10.61),
            Call("pwritev of 7.0 MB", LOOP, 10.5, 10.6),
            Call("sync", COMMITS, 10.4, 10.9),
            Call("sync", COMMITS, 9.2, 9.3),
        ],
        jobs=[JobRun("commit", "sync_all", 10.375, 10.4375, 10.9375, 11.0, COMMITS)],
        stalls=[Stall(10.5, 10.625, 0.01, 0.02), Stall(3.0, 4.0, 0.9, 0.0)],
        waits=[
            (10.51, LOOP, "balance_dirty_pages"),
            (10.55, LOOP, "balance_dirty_pages"),
            (10.58, LOOP, "futex_wait"),
            (10.5, COMMITS, "folio_wait_writeback"),
        ],
        memory=[Memory(9.5, 10**6, 0), Memory(10.55, 600 * 10**6, 50 * 10**6)],
        used=[(10.55, 13, 0.04), (10.6, 13, 0.02), (10.6, COMMITS, 0.01), (10.7, COMMITS, 0.1)],
        names={COMMITS: "kafkawire-commit_0"},
        before={LOOP: Task("the broker", "python", 0, 5.0)},
        after={
            LOOP: Task("the broker", "python", 0, 6.0),
            COMMITS: Task("the broker", "python", 0, 0.5),
            12: Task("load", "load", 1, 0.0),
            13: Task("a child of the broker", "python", 0, 0.1),
        },
        began=9.0,
        load_at=10.0,
        ended=12.0,
    )


def test_stall_has_what_ran_where_it_waited_and_dirty_pages() -> None:
    rows = stall_causes.stall_rows(recorded(), 10)
    assert rows == [
        [
            "0.500", "125", "10.0", "20.0", "95.0", "pwritev of 7.0 MB", "balance_dirty_pages",
            "600", "50.0", "waited in the kernel: balance_dirty_pages",
        ]
    ]  # fmt: skip
    assert len(rows[0]) == len(stall_causes.STALL_HEAD)


@pytest.mark.parametrize(
    ("cpu_s", "no_core_s", "wait", "words"),
    [
        (0.09, 0.0, "", "computed"),
        (0.01, 0.08, "", "had the core: a child of the broker used 60.0 ms, commit: sync_all was"),
        (0.01, 0.0, "futex_wait < do_futex", "interpreter lock: a child of the broker used"),
        (0.01, 0.0, "", "no sample of where"),
    ],
)
def test_cause_is_where_most_of_the_time_went(
    cpu_s: float, no_core_s: float, wait: str, words: str
) -> None:
    run = recorded()
    run.waits = [(10.55, LOOP, wait)] if wait else []
    assert words in stall_causes.cause(run, Stall(10.5, 10.6, cpu_s, no_core_s))


def test_stall_of_virtual_machine_is_named() -> None:
    run = recorded()
    run.memory = [Memory(10.45, 0, 0, 7.0), Memory(10.55, 0, 0, 7.0), Memory(10.65, 0, 0, 7.08)]
    assert "steal" in stall_causes.cause(run, Stall(10.5, 10.6, 0.09, 0.0))
    assert "steal" not in stall_causes.cause(run, Stall(10.46, 10.54, 0.09, 0.0))
    run.memory = [Memory(10.65, 0, 0, 7.0)]  # none before the stall
    assert "steal" not in stall_causes.cause(run, Stall(10.5, 10.6, 0.09, 0.0))


def test_what_ran_comes_from_stacks_if_no_call_covers_the_stall() -> None:
    run = recorded()
    stall = Stall(11.0, 11.1, 0.0, 0.0)
    assert stall_causes.ran(run, stall) == "unknown"
    run.stacks = [(11.05, ["threading.wait", "kafkawire.log.append.disk_sink.synced", "uv"])]
    assert stall_causes.ran(run, stall) == "kafkawire.log.append.disk_sink.synced"
    run.stacks = [(11.05, ["asyncio.runners.Runner.run", "kafkawire.server.run._run"])]
    assert stall_causes.ran(run, stall) == "the loop itself, no function"
    run.calls.append(Call("map", LOOP, 11.0, 11.01))
    run.stacks = []
    assert stall_causes.ran(run, stall) == "partly map"


def test_jobs_threads_and_times_have_their_tables() -> None:
    run = recorded()
    (job,) = stall_causes.job_rows(run, 5)
    assert job == [
        "0.375", "commit", "sync_all", "62.5", "500", "62.5", "folio_wait_writeback", "600", "50.0",
    ]  # fmt: skip
    assert len(job) == len(stall_causes.JOB_HEAD)
    assert [row[:4] for row in stall_causes.cpu_rows(run, 5)] == [
        ["the broker", "python", "0", "1,000"],
        ["the broker", "kafkawire-commit_0", "0", "500"],
        ["a child of the broker", "python", "0", "100"],
    ]
    summary = {row[0]: row[1:] for row in stall_causes.summary_rows(run)}
    assert summary["sync, in a thread"] == ["1", "500", "500", "500", "500"]
    assert summary["stall of the loop"][3] == "125"
    assert "pwritev, on the loop" in summary
    timeline = stall_causes.timeline_rows(run)
    assert [row[:3] for row in timeline[:4]] == [
        ["-1.0", "fill", ""], ["-0.5", "fill", "1.00"], ["0.0", "load", ""], ["0.5", "load", "600"],
    ]  # fmt: skip
    assert {len(row) for row in timeline} == {len(stall_causes.TIMELINE_HEAD)}


def test_recording_without_anything_gives_empty_tables() -> None:
    run = stall_causes.recording(
        {"loop_thread": 1, "calls": [], "jobs": [], "stalls": [], "stacks": [], "threads": {}}
    )
    assert not stall_causes.stall_rows(run, 5)
    assert not stall_causes.summary_rows(run)


def test_proc_files_are_parsed() -> None:
    stack = "[<0>] balance_dirty_pages+0x1f0/0xbd0\n[<0>] generic_perform_write+0x1/0x2\n"
    assert stalls.kernel_stack(stack) == "balance_dirty_pages < generic_perform_write"
    text = "MemTotal:  1 kB\nDirty:   8 kB\nWriteback:  4 kB\nWritebackTmp:   9 kB\n"
    stat = f"cpu  1 2 3 4 5 6 7 {os.sysconf('SC_CLK_TCK') // 4} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"
    assert stalls.memory_now(text, stat, 1.0) == Memory(1.0, 8192, 4096, 0.25)
    tasks = stalls.tasks_now(os.getpid())
    assert tasks[threading.get_native_id()].process == "the broker"
    assert tasks[threading.get_native_id()].cpu_s > 0


PROGRAM = """
import asyncio, os, signal, sys, time
from kafkawire.log.io.disk import real_env

async def main():
    env = real_env()
    loop = asyncio.get_running_loop()
    env.call_soon(time.sleep, 0.05)
    await asyncio.sleep(0.1)
    file = env.fs.open(sys.argv[1], create=True)
    file.pwritev([b"x" * 10], 0)
    await env.offload.submit("commit", file.sync)
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGUSR2)
    await asyncio.sleep(0.05)
    env.offload.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_broker_under_trace_records_waits(tmp_path: Path) -> None:
    (tmp_path / "small_broker.py").write_text(PROGRAM)
    output = tmp_path / "trace.json"
    command = [sys.executable, str(BENCH / "traced.py"), str(output), "small_broker"]
    path = os.pathsep.join([str(tmp_path), str(BENCH.parent)])
    subprocess.run(
        [*command, str(tmp_path / "file")],
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": path},
    )
    run = stall_causes.recording(json.loads(output.read_text()))
    assert any(stall.length_s > 0.03 for stall in run.stalls)
    (job,) = [job for job in run.jobs if job.pool == "commit"]
    assert job.queued <= job.began <= job.ended <= job.delivered
    assert {(c.what, c.thread == run.loop_thread) for c in run.calls} >= {
        ("callback sleep", True), ("sync", False)
    }  # fmt: skip
    assert run.stacks


def test_broker_is_started_through_the_trace(tmp_path: Path) -> None:
    recipe = stalls.under_trace(kafkawire(True), tmp_path / "out")
    words = list(recipe.command(1, tmp_path))
    at = words.index(str(BENCH / "traced.py"))
    assert words[at + 1 : at + 4] == [str(tmp_path / "out"), "kafkawire", "serve"]
    assert recipe.durable
