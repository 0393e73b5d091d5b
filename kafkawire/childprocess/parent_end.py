"""One child process as its parent sees it, for the event loop: start, frames, idle time, end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from functools import partial
from subprocess import Popen

from kafkawire.childprocess.frames import receive
from kafkawire.childprocess.process_thread import ProcessThread, spawn


class ChildProcess:
    """A child from its start to its end. Frames are sent to its standard input and received from
    its standard output."""

    def __init__(self, thread: ProcessThread, writer: StreamWriter, reader: StreamReader) -> None:
        self._thread = thread
        self._input = writer
        self._output = reader
        self._resting: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, module: str, nice: int, pass_fds: Sequence[int] = ()) -> ChildProcess:
        """Start `python -P -m module PARENT` with a priority lower by `nice`; see
        kafkawire.childprocess.child_end. Raises OSError."""
        command = (sys.executable, "-P", "-m", module, str(os.getpid()))
        return await cls.connect(partial(spawn, command, nice, pass_fds))

    @classmethod
    async def connect(cls, spawned: Callable[[], Popen[bytes]]) -> ChildProcess:
        """Start a process by calling `spawned` in a thread, and connect to its pipes. If this is
        cancelled the process is killed."""
        thread = ProcessThread(spawned)
        process = await thread.started()
        try:
            return cls(thread, *await asyncio.shield(_connected(process, thread.ended)))
        except BaseException:
            process.kill()  # then the pipes are closed
            raise

    @property
    def pid(self) -> int | None:
        """The process id; None once it has ended."""
        return self._thread.pid

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
        self._thread.kill()

    async def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return await asyncio.shield(self._thread.ended)

    async def ended(self, grace_s: float) -> int:
        """Return the exit code of a child whose pipes have ended; kill it if it has not exited
        within `grace_s`."""
        self.busy()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await self.wait()
        self.kill()
        return await self.wait()


class _Output(asyncio.StreamReaderProtocol):
    """Closes the pipe when it ends."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def _connected(
    process: Popen[bytes], ended: asyncio.Future[int]
) -> tuple[StreamWriter, StreamReader]:
    """Return the streams of the pipes of a process, closed when it has ended: also if the caller
    was cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    reader = StreamReader()
    await loop.connect_read_pipe(lambda: _Output(reader), process.stdout)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(StreamReader()), process.stdin
    )
    writer = StreamWriter(transport, protocol, None, loop)
    ended.add_done_callback(lambda _: writer.close())
    return writer, reader


def exit_words(code: int) -> str:
    """Describe an exit code, or the signal that ended a process."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
