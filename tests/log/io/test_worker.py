"""The worker process: jobs, replacement after a crash, stop when idle, end with its broker.

The first tests run against the worker of the simulation as well, which must behave the same.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafkawire.childprocess import frames
from kafkawire.log.io import worker_jobs
from kafkawire.log.io.disk import DiskFileSystem, real_env
from kafkawire.log.io.ports import FileSystem, Worker, WorkerError
from kafkawire.log.io.worker_jobs import ScrubArguments, ScrubResult, entries_of
from kafkawire.log.io.worker_process import NICE, WorkerChild, WorkerProcess, answer
from tests.kit.env import InlineOffload, OffloadWorker
from tests.kit.log import segments
from tests.kit.log.segments import Part, batch, cutting, journal, output, segment, wanted
from tests.kit.waiting import ticks, until

Port = tuple[Worker, FileSystem, str]


@pytest.fixture(params=["process", "inline"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Port]:
    fs = DiskFileSystem()
    made: Worker
    made = WorkerProcess() if request.param == "process" else OffloadWorker(InlineOffload(), fs)
    yield made, fs, str(tmp_path)
    await made.close()


def put(folder: str | Path, data: bytes | None = None) -> str:
    path = Path(folder, "a.segment")
    path.write_bytes(segment([Part(3, [batch(0)])]) if data is None else data)
    return str(path)


async def scrubbed(port: Worker | WorkerChild, path: str) -> list[str]:
    result = await port.run("scrub", ScrubArguments(path), -1)
    assert isinstance(result, ScrubResult)
    return result.problems


async def test_jobs_return_results_and_failures(port: Port) -> None:
    run, _, folder = port
    assert await scrubbed(run, put(folder)) == []
    assert "does not begin as" in (await scrubbed(run, put(folder, bytes(200))))[0]
    with pytest.raises(FileNotFoundError) as caught:
        await scrubbed(run, folder + "/none")
    assert caught.value.filename == folder + "/none"
    with pytest.raises(WorkerError, match="the job 'polish' failed"):
        await run.run("polish", None)
    with pytest.raises(WorkerError, match="the job 'scrub' failed"):
        await run.run("scrub", None)
    assert await scrubbed(run, put(folder)) == []


async def test_cut_job(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    run, fs, folder = port
    monkeypatch.setattr(segments, "FOLDER", folder)
    file = journal(fs, 1, [(3, [batch(0, 2)]), (4, [batch(0)]), (3, [batch(2)])])
    job = cutting([file], [wanted(3, 0, 3), wanted(4, 0, 1)], [output(1, 3, 4)])
    result = await run.run("cut", job)
    assert [entry.number for entry in entries_of(result.made[0])] == [3, 4]
    assert await scrubbed(run, result.made[0].path) == []


async def test_jobs_are_serialised_and_results_not_mixed_up(port: Port) -> None:
    run, _, folder = port
    good, path = put(folder), folder + "/none"
    asked = [scrubbed(run, good if n % 2 else path) for n in range(6)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(outcome, FileNotFoundError) for outcome in outcomes] == [True, False] * 3


async def test_closed_worker_refuses_jobs(port: Port) -> None:
    run, _, folder = port
    path = put(folder)
    assert await scrubbed(run, path) == []
    await run.close()
    await run.close()
    with pytest.raises(WorkerError, match="closed"):
        await scrubbed(run, path)


@pytest.mark.slow
async def test_cut_does_not_wait_for_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "FOLDER", str(tmp_path))
    process = WorkerProcess()
    await scrubbed(process, put(tmp_path))
    other = process._long.pid
    assert other is not None
    os.kill(other, signal.SIGSTOP)
    waiting = asyncio.ensure_future(scrubbed(process, put(tmp_path)))
    file = journal(DiskFileSystem(), 1, [(3, [batch(0)])])
    result = await process.run("cut", cutting([file], [wanted(3, 0, 1)], [output(1, 3)]))
    assert result.damaged == []
    assert not waiting.done()
    os.kill(other, signal.SIGCONT)
    assert await waiting == []
    await process.close()


# One child


@pytest.fixture
async def process() -> AsyncIterator[WorkerChild]:
    made = WorkerChild(60.0)
    yield made
    await made.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_worker_starts_at_first_job_with_low_priority(
    process: WorkerChild, tmp_path: Path
) -> None:
    assert process.pid is None
    await scrubbed(process, put(tmp_path))
    first = process.pid
    assert first is not None
    assert os.getpgid(first) == first, "a terminal's Ctrl-C is for the broker alone"
    assert os.getpriority(os.PRIO_PROCESS, first) >= min(19, os.nice(0) + NICE)
    await scrubbed(process, put(tmp_path))
    assert process.pid == first


@pytest.mark.slow
async def test_crash_fails_job_and_next_uses_new_process(
    process: WorkerChild, tmp_path: Path
) -> None:
    path = put(tmp_path)
    await scrubbed(process, path)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # so that the job is in progress when it is killed
    waiting = asyncio.ensure_future(scrubbed(process, path))
    queued = asyncio.ensure_future(scrubbed(process, path))
    await ticks()  # the request is sent
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerError, match="ended with SIGKILL during 'scrub'"):
        await waiting
    assert await queued == []
    assert process.pid not in (None, first)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="this system has no waitid")
async def test_exit_signal_is_reported_if_loop_is_late(
    process: WorkerChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waitpid = os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        threading.Event().wait(0.1)
        return waitpid(pid, options)

    monkeypatch.setattr(os, "waitpid", late)
    path = put(tmp_path)
    await scrubbed(process, path)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(scrubbed(process, path))
    await ticks()  # the request is sent
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="ended with SIGKILL during 'scrub'"):
        await waiting


@pytest.mark.slow
async def test_worker_that_died_while_idle_is_replaced(
    process: WorkerChild, tmp_path: Path
) -> None:
    path = put(tmp_path)
    await scrubbed(process, path)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await until(lambda: process.pid is None)
    assert await scrubbed(process, path) == []
    assert process.pid != first


@pytest.mark.slow
async def test_idle_worker_is_stopped(tmp_path: Path) -> None:
    process = WorkerChild(0.01)
    await scrubbed(process, put(tmp_path))
    first = process.pid
    await until(lambda: process.pid is None)
    assert first is not None
    await until(lambda: gone(first))
    assert await scrubbed(process, put(tmp_path)) == []
    await process.close()


@pytest.mark.slow
async def test_close_waits_for_a_child_that_was_stopped_while_idle(tmp_path: Path) -> None:
    process = WorkerChild(60.0)
    await scrubbed(process, put(tmp_path))
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # it would end by itself
    process._rest()
    assert process.pid is None
    await process.close()
    assert gone(first)


async def test_close_during_the_start_of_a_child(tmp_path: Path) -> None:
    process = WorkerChild(60.0)
    waiting = asyncio.ensure_future(scrubbed(process, put(tmp_path)))
    await ticks(2)  # it is being started
    await process.close()
    with pytest.raises(WorkerError, match=r"ended with SIGKILL|is closed"):
        await waiting
    assert process.pid is None


@pytest.mark.slow
async def test_result_of_cancelled_caller_is_discarded(
    process: WorkerChild, tmp_path: Path
) -> None:
    path = put(tmp_path)
    await scrubbed(process, path)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(scrubbed(process, str(tmp_path / "none")))
    await ticks()  # the request is sent
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await scrubbed(process, path) == []


async def test_close_fails_job_in_progress(process: WorkerChild, tmp_path: Path) -> None:
    path = put(tmp_path)
    await scrubbed(process, path)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    waiting = [asyncio.ensure_future(scrubbed(process, path)) for _ in range(2)]
    await ticks()  # the request is sent
    await process.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [WorkerError] * 2
    assert gone(first)
    assert process.pid is None


async def test_too_large_job_is_not_sent(
    process: WorkerChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(WorkerError, match="is too large: 1000 are allowed"):
        await process.run("scrub", bytes(2000), -1)
    assert process.pid is None


@pytest.mark.slow
async def test_invalid_result_ends_process(
    process: WorkerChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(segment([Part(3, [batch(n, size=5000) for n in range(60)])]))
    for at in range(1000, 290_000, 2 * len(batch(0, size=5000))):
        data[at] ^= 1
    path = put(tmp_path, bytes(data))
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(WorkerError, match="ended with SIGKILL"):
        await scrubbed(process, path)
    monkeypatch.undo()
    assert len(await scrubbed(process, path)) > 25


PARENT = """
import asyncio, os, sys
from kafkawire.log.io.worker_jobs import ScrubArguments
from kafkawire.log.io.worker_process import WorkerChild

async def main():
    process = WorkerChild(60.0)
    await process.run("scrub", ScrubArguments(sys.argv[1]), -1)
    print(process.pid, flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


@pytest.mark.slow
def test_worker_ends_with_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, put(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    asyncio.run(until(lambda: gone(child)))


def test_worker_ends_at_end_of_input() -> None:
    command = [sys.executable, "-P", "-m", "kafkawire.log.io.worker_main", str(os.getpid())]
    ended = subprocess.run(command, input=b"\0\0\0\1", capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_worker_does_not_start_without_broker() -> None:
    command = [sys.executable, "-P", "-m", "kafkawire.log.io.worker_main", "0"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=60)
    assert ended.returncode == 1


async def test_real_env_has_worker() -> None:
    env = real_env()
    assert isinstance(env.worker, WorkerProcess)
    await env.worker.close()


def test_encoding_results_never_raises() -> None:
    for request in (b"", b"garbage", pickle.dumps(("scrub",))):
        assert pickle.loads(answer(DiskFileSystem(), request, lambda: None))[0] == "failed"


def test_every_job_has_a_module() -> None:
    for name in worker_jobs.JOBS:
        if name != "compact":
            assert callable(worker_jobs.find_job(name))
