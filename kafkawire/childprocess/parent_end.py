"""One child process as its parent sees it: start, frames, rest, end. For the event loop."""

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
    """A child from its start to its end. Frames go to its standard input and come from its
    standard output."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout
        self._resting: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, module: str, pass_fds: Sequence[int] = ()) -> ChildProcess:
        """Start `python -P -m module PARENT`; see kafkawire.childprocess.child_end. OSError."""
        command = (sys.executable, "-P", "-m", module, str(os.getpid()))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, pass_fds=pass_fds, start_new_session=True
        )  # a session of its own: Ctrl-C in a terminal is for the broker, which ends it
        return cls(process)

    @property
    def pid(self) -> int | None:
        """None once it has ended."""
        return self._process.pid if self._process.returncode is None else None

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more. A dead process closes its pipes one by one, and
        its end is reported after that."""
        return self._input.is_closing()

    def send(self, frame: Sequence[bytes]) -> None:
        """Hand a frame to the pipe. ConnectionResetError if that is closed, as it is between the
        death of the child and the moment asyncio reports it: uvloop would raise RuntimeError ("the
        handler is closed"), asyncio's own loop would drop the bytes."""
        if self._input.is_closing():
            raise ConnectionResetError("the pipe to the child process is closed")
        self._input.writelines(frame)

    async def drain(self) -> None:
        """Wait until the pipe has taken what was sent. ConnectionError."""
        await self._input.drain()

    async def receive(self) -> bytes:
        """Return the body of the next frame. IncompleteReadError at the end, FrameError."""
        return await receive(self._output)

    def rest_after(self, idle_s: float, retire: Callable[[], object]) -> None:
        """It has nothing to do: call `retire` after so long, unless `busy` comes before."""
        self._resting = asyncio.get_running_loop().call_later(idle_s, retire)

    def busy(self) -> None:
        """It has something to do."""
        if self._resting is not None:
            self._resting.cancel()

    def retire(self) -> None:
        """End its input, which ends it."""
        self._input.close()

    def kill(self) -> None:
        """End it at once; harmless if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Return what it ended with."""
        return await self._process.wait()

    async def ended(self, grace_s: float) -> int:
        """Return what it ended with, whose pipes have ended; it is killed if it has not within
        `grace_s`. Not at once: Popen.kill polls first, and takes the code of one that has just
        ended from asyncio, which then says 255."""
        self.busy()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await self._process.wait()
        self.kill()
        return await self._process.wait()


def exit_words(code: int) -> str:
    """Return what a process ended with, for people: a code, or a signal's name."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
