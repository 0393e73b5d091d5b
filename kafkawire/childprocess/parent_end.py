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
from kafkawire.childprocess.process_thread import ProcessThread, finish, spawn

RECEIVED_S = 1.0
"""Limit for receiving what an ended process has left in its pipe, which is there already."""


class ChildProcess:
    """A child from its start to its end. Frames are sent to its standard input and received from
    its standard output."""

    def __init__(self, thread: ProcessThread, pipes: Pipes) -> None:
        self._thread = thread
        self._pipes = pipes
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
        cancelled, the process is killed and waited for."""
        thread = ProcessThread(spawned)
        connecting = asyncio.get_running_loop().create_task(
            cls._connect(thread, await thread.wait_until_started())
        )
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # Not cancelled itself: uvloop then closes descriptors whose files close them again.
            await finish(asyncio.get_running_loop().create_task(_end_unused(connecting)))
            raise

    @classmethod
    async def _connect(cls, thread: ProcessThread, process: Popen[bytes]) -> ChildProcess:
        pipes = await Pipes.connect(process)
        thread.ended.add_done_callback(lambda _: pipes.stop_sending())
        return cls(thread, pipes)

    @property
    def pid(self) -> int | None:
        """The process id; None once it has ended."""
        return self._thread.pid

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more. A dead process closes its pipes one by one, before
        its end is reported."""
        return self._pipes.input.is_closing()

    def send(self, frame: Sequence[bytes]) -> None:
        """Write a frame to the pipe. Raises ConnectionResetError if that is closed, as between the
        death of the child and asyncio's report of it: uvloop would raise RuntimeError ("the handler
        is closed"), asyncio's own loop would drop the bytes."""
        if self._pipes.input.is_closing():
            raise ConnectionResetError("the pipe to the child process is closed")
        self._pipes.input.writelines(frame)

    async def drain(self) -> None:
        """Wait until the pipe has taken the sent data. Raises ConnectionError."""
        await self._pipes.input.drain()

    async def receive(self) -> bytes:
        """Return the body of the next frame. Raises IncompleteReadError at the end, FrameError."""
        return await receive(self._pipes.output)

    def rest_after(self, idle_s: float, retire: Callable[[], object]) -> None:
        """The child is idle: call `retire` after this time, unless `busy` is called before."""
        self._resting = asyncio.get_running_loop().call_later(idle_s, retire)

    def busy(self) -> None:
        """The child has work."""
        if self._resting is not None:
            self._resting.cancel()

    def retire(self) -> None:
        """Close its input, after which it exits."""
        self._pipes.input.close()

    def kill(self) -> None:
        """Kill it; no effect if it has ended."""
        self._thread.kill()

    async def wait(self) -> int:
        """Wait for its end and until its pipes are closed; return the exit code."""
        code = await asyncio.shield(self._thread.ended)
        await self._pipes.close()
        return code

    async def wait_or_kill(self, grace_s: float) -> int:
        """Return the exit code of a child whose pipes have ended; kill it if it has not exited
        within `grace_s`."""
        self.busy()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                return await self.wait()
        self.kill()
        return await self.wait()


async def _end_unused(connecting: asyncio.Future[ChildProcess]) -> None:
    child = await connecting
    child.kill()
    await child.wait()


class _PipeEnd(asyncio.StreamReaderProtocol):
    """A pipe, which is closed when the other end is. `closed` is done when it is closed here."""

    def __init__(self, reader: StreamReader) -> None:
        super().__init__(reader)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def eof_received(self) -> bool:
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)


class Pipes:
    """The pipes to standard input and from standard output of a process."""

    def __init__(
        self,
        input: StreamWriter,
        output: StreamReader,
        output_pipe: asyncio.ReadTransport,
        ends: Sequence[_PipeEnd],
    ) -> None:
        self.input = input
        self.output = output
        self._output_pipe = output_pipe
        self._ends = ends

    @classmethod
    async def connect(cls, process: Popen[bytes]) -> Pipes:
        loop = asyncio.get_running_loop()
        output = StreamReader()
        ends = _PipeEnd(output), _PipeEnd(StreamReader())
        read_pipe, _ = await loop.connect_read_pipe(lambda: ends[0], process.stdout)
        write_pipe, _ = await loop.connect_write_pipe(lambda: ends[1], process.stdin)
        return cls(StreamWriter(write_pipe, ends[1], None, loop), output, read_pipe, ends)

    def stop_sending(self) -> None:
        """Discard what the process, which has ended, did not read."""
        if not self.input.is_closing():  # asyncio fails if it is aborted twice
            self.input.transport.abort()

    async def close(self) -> None:
        """Close the pipes of a process that has ended, after what it wrote has been received."""
        # A reader that has stopped because its buffer is full would never see the end.
        await asyncio.wait([self._ends[0].closed], timeout=RECEIVED_S)
        self._output_pipe.close()
        self.stop_sending()
        await asyncio.wait([each.closed for each in self._ends])


def exit_words(code: int) -> str:
    """Describe an exit code, or the signal that ended a process."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
