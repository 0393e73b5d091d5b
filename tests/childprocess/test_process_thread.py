"""Processes are started, and waited for, in threads of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from functools import partial

import pytest

from kafkawire.childprocess.process_thread import ProcessThread, discard, spawn
from tests.kit.waiting import WITHIN_S, ticks, until

SLEEPING = ("sleep", "100")


class SlowStart:
    """A start of a process that blocks until `released`."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.begun = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> subprocess.Popen[bytes]:
        self.begun.set()
        assert self.released.wait(WITHIN_S)
        self.process = spawn(SLEEPING, 0, ())
        return self.process


async def test_event_loop_runs_while_process_starts() -> None:
    start = SlowStart()
    thread = ProcessThread(start)
    starting = asyncio.ensure_future(thread.wait_until_started())
    await until(start.begun.is_set)
    await ticks()  # the loop would not get here
    assert not starting.done()
    assert thread.pid is None
    thread.kill()  # no effect
    start.released.set()
    process = await starting
    assert thread.pid == process.pid
    discard(process)
    assert await thread.ended == -signal.SIGKILL
    assert thread.pid is None
    thread.kill()  # no effect


async def test_process_is_killed_if_caller_is_cancelled_during_start() -> None:
    start = SlowStart()
    thread = ProcessThread(start)
    starting = asyncio.ensure_future(thread.wait_until_started())
    await ticks()
    starting.cancel()
    await ticks()
    start.released.set()
    assert await thread.ended == -signal.SIGKILL
    assert start.process is not None
    assert start.process.stdin is not None
    assert start.process.stdin.closed


async def test_failed_start_is_raised() -> None:
    with pytest.raises(FileNotFoundError):
        await ProcessThread(partial(spawn, ("/no/such/program",), 0, ())).wait_until_started()


def test_process_is_killed_if_event_loop_ended_during_start() -> None:
    start = SlowStart()

    async def leave() -> None:
        ProcessThread(start)

    asyncio.run(leave())
    start.released.set()
    for thread in threading.enumerate():
        if thread.name == "kafkawire-child":
            thread.join(WITHIN_S)
    assert start.process is not None
    assert start.process.returncode == -signal.SIGKILL


async def test_process_has_priority_before_its_program_runs() -> None:
    """In a session of its own it would have half of a core that it shares with the broker."""
    process = spawn(SLEEPING, 3, ())
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.nice(0) + 3)
    assert os.getsid(process.pid) == os.getsid(0)
    assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    discard(process)
    process.wait()
