"""One child process as its parent sees it, for the event loop: start, frames, idle time, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

from kafkawire.childprocess.frames import receive


class ChildProcess:
    """A child from its start to its end. Frames are sent to its standard input and received from
    its standard output."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._resting: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, module: str, pass_fds: Sequence[int] = ()) -> ChildProcess:
        """Start `python -P -m module PARENT`; see kafkawire.childprocess.child_end. Raises
        OSError."""
        command = (sys.executable, "-P", "-m", module, str(os.getpid()))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, pass_fds=pass_fds, start_new_session=True
        )  # a separate session: Ctrl-C in a terminal reaches only the broker, which stops it
        return cls(process)

    @property
    def pid(self) -> int | None:
        """The process id; None once it has ended."""
        return self._process.pid if self._process.returncode is None else None

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more. A dead process closes its pipes one by one, before
        its end is reported."""
        return self._input.is_closing()

    def send(self, frame: Sequence[bytes]) -> None:
        """Write a frame to the pipe. Raises ConnectionResetError if that is closed, as between the
        death of the child and asyncio's report of it: uvloop would raise RuntimeError ("the handler
        is closed"), asyncio's own loop would drop the bytes."""
        if self._input.is_closing():
            raise ConnectionResetError("the pipe to the child process is closed")
        self._input.writelines(frame)

    async def drain(self) -> None:
        """Wait until the pipe has taken the sent data. Raises ConnectionError."""
        await self._input.drain()

    async def receive(self) -> bytes:
        """Return the body of the next frame. Raises IncompleteReadError at the end, FrameError."""
        return await receive(self._output)

    def rest_after(self, idle_s: float, retire: Callable[[], object]) -> None:
        """The child is idle: call `retire` after this time, unless `busy` is called before."""
        self._resting = asyncio.get_running_loop().call_later(idle_s, retire)

    def busy(self) -> None:
        """The child has work."""
        if self._resting is not None:
            self._resting.cancel()

    def retire(self) -> None:
        """Close its input, after which it exits."""
        self._input.close()

    def kill(self) -> None:
        """Kill it; no effect if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return await self._process.wait()

    async def ended(self, grace_s: float) -> int:
        """Return the exit code of a child whose pipes have ended; kill it if it has not exited
        within `grace_s`. Not immediately: Popen.kill polls first, and takes the code of one that
        has just ended from asyncio, which then reports 255."""
        self.busy()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await self._process.wait()
        self.kill()
        return await self._process.wait()


def exit_words(code: int) -> str:
    """Describe an exit code, or the signal that ended a process."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
