"""Lines of a worker as its supervisor reads them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Sequence

import pytest

from kafkawire.broker.options import WorkerRole
from kafkawire.childprocess.restarts import SILENT_TICKS
from kafkawire.supervisor.plan import WorkerPlan
from kafkawire.supervisor.worker import SupervisedWorker


class Reports:
    """A worker without a process, and the end of its connection that sends."""

    def __init__(self) -> None:
        self.changes: list[SupervisedWorker] = []

        def no_role(*_: object) -> None:
            raise AssertionError

        plan = WorkerPlan(1, (0,), None, drain=False)
        self.worker = SupervisedWorker(plan, [], no_role, self.changes.append)  # type: ignore[arg-type]
        self.sender, self._receiver = socket.socketpair()

    def send(self, data: bytes) -> None:
        self.sender.send(data)
        self.worker._read(self._receiver)

    def close(self) -> None:
        self.sender.close()
        self._receiver.close()


@pytest.fixture
def reports() -> Reports:
    return Reports()


async def test_absent_brokers_are_taken_once(reports: Reports) -> None:
    reports.send(b"ready\nabsent 3:17 4:1\n")
    assert reports.worker.ready
    assert reports.worker.take_absent() == {3: 17, 4: 1}
    assert reports.worker.take_absent() == {}
    assert len(reports.changes) == 2
    reports.send(b"absent 5:")
    assert len(reports.changes) == 2
    reports.send(b"2\nabsent\n")
    assert reports.worker.take_absent() == {}
    reports.close()


@pytest.mark.parametrize(
    "line", [b"absent 3", b"absent x:1", b"absent 3:1:2", b"absent :", b"knows x", b"knows 1 \xff"]
)
async def test_line_that_cannot_be_read_is_logged(
    reports: Reports, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(SILENT_TICKS):
        reports.worker._beats.tick()
    with caplog.at_level(logging.ERROR):
        reports.send(line + b"\nready\n")
    assert "worker 1 sent a line that cannot be read" in caplog.text
    assert reports.worker.ready
    assert reports.worker.absent == {}
    assert not reports.worker._beats.tick()
    reports.close()


async def test_unknown_words_and_long_lines_change_nothing(reports: Reports) -> None:
    reports.send(b"beat\n\nother 3:1\n")
    for _ in range(3):
        reports.send(b"x" * 4096)
    reports.send(b"\nready\n")
    assert len(reports.changes) == 1
    reports.close()


@pytest.mark.parametrize(
    "failure", [OSError(errno.EAGAIN, "no process"), RuntimeError("can't start new thread")]
)
async def test_worker_whose_process_cannot_be_created_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    """It has served before: the other workers and their supervisor continue to run."""
    monkeypatch.setattr("kafkawire.childprocess.restarts.DELAYS_S", (0.0,))
    plan = WorkerPlan(1, (0,), None, drain=False)
    worker = SupervisedWorker(plan, [], lambda *_: WorkerRole(1, True, False, 0, ()), print)
    starts = 0

    async def spawn(command: Sequence[str], inherited: Sequence[int]) -> None:
        nonlocal starts
        starts += 1
        if starts == 3:
            worker.stop()
        raise failure

    monkeypatch.setattr("kafkawire.supervisor.worker._spawn", spawn)
    worker.started.set()
    assert await worker.run() == 0
    assert starts == 3
    assert f"worker 1: its process cannot be created: {failure}" in caplog.text
    new = SupervisedWorker(plan, [], lambda *_: WorkerRole(1, True, False, 0, ()), print)
    starts = 3
    assert await new.run() == 1  # a first start that fails ends the command


async def test_worker_that_does_not_serve_yet_is_not_killed(
    reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait for its broker to end on another machine, longer than any beat may be late."""
    killed: list[int] = []
    monkeypatch.setattr("kafkawire.supervisor.worker.TICK_S", 0.0001)
    monkeypatch.setattr(reports.worker, "signal", killed.append)
    ticking = asyncio.create_task(reports.worker._tick())
    for _ in range(20 * SILENT_TICKS):
        await asyncio.sleep(0.0001)
    assert killed == []
    reports.send(b"ready\n")
    await ticking
    assert len(killed) == 1
    reports.close()


class Ended:
    """A process that sends its last line and ends."""

    pid, returncode = 1, 0

    def __init__(self, control: int) -> None:
        self._control = control

    async def wait(self) -> int:
        with socket.socket(fileno=self._control) as ours:
            ours.send(b"removed\n")
        return 0


@pytest.mark.parametrize("after", [-1, 7])
async def test_worker_whose_broker_was_removed_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Its last line may be read after its end."""
    plan = WorkerPlan(1, (0,), None, drain=False, after=after)
    controls: list[int] = []

    def role_of(_: WorkerPlan, control: int) -> WorkerRole:
        controls.append(os.dup(control))
        return WorkerRole(1, True, False, 0, ())

    async def spawn(command: Sequence[str], inherited: Sequence[int]) -> Ended:
        return Ended(controls[-1])

    worker = SupervisedWorker(plan, [], role_of, print)
    monkeypatch.setattr("kafkawire.supervisor.worker._spawn", spawn)
    assert await worker.run() == 0
    assert len(controls) == 1
    assert worker.removed
    assert worker.drained
