"""A child process from its parent's point of view."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.childprocess.process_thread import spawn
from tests.kit.waiting import ticks, until


async def sleeping() -> ChildProcess:
    return await ChildProcess.connect(partial(spawn, ("sleep", "100"), 0, ()))


def test_writing_to_ended_process_raises_connection_error() -> None:
    """uvloop raises RuntimeError there, until the end of the process has been reported."""

    async def write_to_the_dead() -> None:
        dying = await sleeping()
        dying.send((b"x",))
        dying.kill()
        await until(lambda: dying.is_closing)
        with pytest.raises(ConnectionResetError):
            dying.send((b"x",))
        await dying.wait()
        assert dying.pid is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(write_to_the_dead())


async def test_process_that_does_not_stop_is_killed() -> None:
    child = await sleeping()
    assert exit_words(await child.wait_or_kill(0.01)) == "SIGKILL"
    child.kill()  # harmless
    assert child.pid is None


async def test_idle_process_is_retired() -> None:
    child = await sleeping()
    child.rest_after(60.0, child.retire)
    child.busy()
    assert not child.is_closing
    child.rest_after(0.0, child.retire)
    await until(lambda: child.is_closing)
    child.kill()
    await child.wait()


class Starts:
    """Starts of processes, which are kept."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self) -> subprocess.Popen[bytes]:
        process = spawn(("sleep", "100"), 0, ())
        self.processes.append(process)
        return process


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("iterations", range(8))
def test_cancelled_start_leaves_no_process_and_no_pipe(
    iterations: int, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """An event loop that is closed next has nothing open: pytest fails with ResourceWarnings."""
    start = Starts()

    async def cancel() -> None:
        starting = asyncio.ensure_future(ChildProcess.connect(start))
        await until(lambda: bool(start.processes))
        await ticks(iterations)
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            child = starting.result()
            child.kill()
            await child.wait()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(cancel())
    (process,) = start.processes
    assert process.poll() == -signal.SIGKILL
    assert process.stdin is not None
    assert process.stdout is not None
    gc.collect()
    assert process.stdin.closed
    assert process.stdout.closed


async def test_pipes_are_closed_although_nothing_is_received() -> None:
    """The reader of a pipe stops when its buffer is full."""
    much = ("sh", "-c", "yes | head -c 10000000; sleep 100")
    child = await ChildProcess.connect(partial(spawn, much, 0, ()))
    output = child._pipes._output_pipe
    await until(lambda: not output.is_reading())
    child.kill()
    await child.wait()
    assert output.is_closing()
    assert child.is_closing


def test_child_ends_when_parent_ends() -> None:
    program = (
        "from kafkawire.childprocess.child_end import begin; "
        "begin((), killed_with_parent=True); print('ran')"
    )
    for parent, code in (("0", 1), (str(os.getpid()), 0)):
        command = [sys.executable, "-P", "-c", program, parent]
        ended = subprocess.run(command, capture_output=True, timeout=60)
        assert ended.returncode == code
        assert ended.stdout == b""  # its output is not a frame: it goes to standard error


def test_exit_codes_as_text() -> None:
    assert [exit_words(code) for code in (0, 3, -9, -99)] == [
        "code 0", "code 3", "SIGKILL", "signal 99",
    ]  # fmt: skip
