"""A child process from its parent's point of view."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import uvloop

from kafkawire.childprocess import parent_end
from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.childprocess.process_thread import spawn
from tests.kit.waiting import until


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
    assert exit_words(await child.ended(0.01)) == "SIGKILL"
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


async def test_cancelled_while_connecting_closes_the_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller never had them: they are closed when the process has ended."""
    connect, entered, go_on = parent_end._connected, asyncio.Event(), asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def slow(*given: Any) -> Any:
        entered.set()
        await go_on.wait()
        streams = await connect(*given)
        writers.append(streams[0])
        return streams

    monkeypatch.setattr(parent_end, "_connected", slow)
    starting = asyncio.ensure_future(sleeping())
    await entered.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    go_on.set()
    await until(lambda: bool(writers) and writers[0].is_closing())


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
