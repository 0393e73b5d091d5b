"""The worker process: both ends of the Worker port of kafkawire.log.io.ports, and what runs in
between.

A device. `WorkerProcess` is the broker's end: a child for short jobs, cuts above all, and one for
all else, so that a cut never waits for a compaction. A child, `python -P -m
kafkawire.log.io.worker_process`, is started at its first job and ended when it had none for a
while. Requests and answers are pickled, each in a frame with its length before it, over the child's
standard input and output. Both ends are the same program of the same installation, so pickle is no
danger and no version is needed.

A child is nice, lets the terminal's Ctrl-C pass (the broker decides when it ends), and does not
outlive the broker: Linux kills it with its parent, elsewhere it looks for itself before each piece
of work; and when it waits for a job, the end of its input is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from kafkawire.log.io.ports import FileSystem, WorkerError
from kafkawire.log.segments.jobs import SHORT, run_job

IDLE_S = 60.0
"""An idle child costs 30 MB; starting one costs a tenth of a second."""
NICE = 10
MAX_FRAME_BYTES = 1 << 28
"""Ten thousand partitions with a thousand idempotent producers each would be larger, and such a
job can be asked for in parts; whatever else claims to be larger is no frame."""
ENDS_S = 1.0
"""For a child whose pipes have ended to end itself: the system does that at once."""
NAP_S = 0.5
"""The longest sleep of the throttle: how late a change of mind by the broker's death is seen."""
_LENGTH = Struct(">Q")
_PR_SET_PDEATHSIG = 1


class WorkerProcess:
    """The real Worker; see kafkawire.log.io.ports.Worker. `idle_s`: how long a child without jobs
    is kept."""

    __slots__ = ("_long", "_short")

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._short = Child(idle_s)
        self._long = Child(idle_s)

    async def run(self, job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        """Run a job, reading at most so many bytes a second (-1: as fast as it goes)."""
        child = self._short if job in SHORT else self._long
        return await child.run(job, arguments, bytes_per_second)

    async def close(self) -> None:
        """End the processes."""
        await self._short.close()
        await self._long.close()


class Child:
    """One child process, as long as there is something for it to do; one job at a time."""

    __slots__ = ("_closed", "_dying", "_idle", "_idle_s", "_process", "_turn")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._process: Process | None = None
        self._dying: list[Process] = []  # killed, and not waited for yet
        self._idle: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is none."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def run(self, job: str, arguments: Any, bytes_per_second: int) -> Any:
        """Run a job, reading at most so many bytes a second (-1: as fast as it goes)."""
        request = pickle.dumps((job, arguments, bytes_per_second), pickle.HIGHEST_PROTOCOL)
        if len(request) > MAX_FRAME_BYTES:
            raise WorkerError(
                f"a job {job!r} of {len(request)} bytes is too large: {MAX_FRAME_BYTES} are "
                "allowed, so it must be split"
            )
        async with self._turn:
            if self._closed:
                raise WorkerError(f"the job {job!r} was not started: the worker is closed")
            answer = await self._ask(job, request)
        kind, *outcome = pickle.loads(answer)
        if kind == "os":
            raise OSError(*outcome)
        if kind == "failed":
            raise WorkerError(*outcome)
        return outcome[0]

    async def _ask(self, job: str, request: bytes) -> bytes:
        """One request and its answer, while no other is under way."""
        if self._idle is not None:
            self._idle.cancel()
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process, (_LENGTH.pack(len(request)), request))
            await process.stdin.drain()
            (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
            if length > MAX_FRAME_BYTES:
                raise ConnectionError(f"invalid length of an answer: {length} bytes")
            answer = await process.stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError) as failure:
            code = await self._ended()
            raise WorkerError(
                f"the worker process ended with {exit_words(code)} during {job!r}"
            ) from (failure)
        except BaseException:
            # The caller gave up: whatever the child answers now, nobody may take it for the
            # answer to the next job.
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            self._process = None
            self._dying = [each for each in self._dying if each.returncode is None]
            self._dying.append(process)
            raise
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._rest)
        return answer

    async def _running(self) -> Process:
        process = self._process
        if process is None or process.returncode is not None:
            command = (
                sys.executable,
                "-P",
                "-m",
                "kafkawire.log.io.worker_process",
                str(os.getpid()),
            )
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, start_new_session=True
            )  # a session of its own: Ctrl-C in a terminal is for the broker, which ends it
            self._process = process
        return process

    def _rest(self) -> None:
        """It had nothing to do for a while: the end of its input ends it."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()

    async def _ended(self) -> int:
        """How it ended, whose pipes have; one that has not is killed. Not at once: Popen.kill looks
        first, and takes the code of one that has just ended from asyncio, which then says 255."""
        process, self._process = self._process, None
        assert process is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_S):
                return await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        return await process.wait()

    async def close(self) -> None:
        """End the processes."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            self._process = None
        for killed in self._dying:
            await killed.wait()


def send(process: Process, parts: Sequence[bytes]) -> None:
    """Write to the standard input of a child process. ConnectionResetError if the pipe is closed,
    as it is between the death of the child and the moment asyncio reports it: uvloop would raise
    RuntimeError ("the handler is closed"), asyncio's own loop would drop the bytes."""
    assert process.stdin is not None
    if process.stdin.is_closing():
        raise ConnectionResetError("the pipe to the child process is closed")
    process.stdin.writelines(parts)


def exit_words(code: int) -> str:
    """The exit status of a process in words: a code, or a signal's name."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class Throttle:
    """Keeps a job to so many bytes a second, by sleeping after each piece of work.

    `look` is called at each piece, and after each nap: it ends the process if it should end.
    """

    __slots__ = ("_due", "_look", "_now", "_rate", "_sleep")

    def __init__(
        self,
        bytes_per_second: int,
        look: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._look = look
        self._now = now
        self._sleep = sleep
        self._due = now()

    def __call__(self, size_bytes: int) -> None:
        """So many bytes were read."""
        self._look()
        if self._rate <= 0:
            return
        # Time not used is not saved up: a job that waited for the disk does not then rush.
        self._due = max(self._due, self._now() - NAP_S) + size_bytes / self._rate
        while (left := self._due - self._now()) > 0:
            self._sleep(min(left, NAP_S))
            self._look()


def answer(fs: FileSystem, request: bytes, look: Callable[[], None]) -> bytes:
    """Do what a request asks for; never raises."""
    try:
        job, arguments, rate = pickle.loads(request)
        reply: tuple[Any, ...] = "done", run_job(fs, job, arguments, Throttle(rate, look))
    except OSError as failure:
        reply = "os", failure.errno, failure.strerror or str(failure), failure.filename
    except Exception as failure:
        reply = "failed", str(failure)
    return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def serve(fs: FileSystem, source: int, sink: int, look: Callable[[], None]) -> None:
    """Answer requests from descriptor `source` to `sink` until its end."""
    while (head := read_exactly(source, _LENGTH.size)) is not None:
        (length,) = _LENGTH.unpack(head)
        request = read_exactly(source, length) if length <= MAX_FRAME_BYTES else None
        if request is None:
            return
        reply = answer(fs, request, look)
        write_all(sink, _LENGTH.pack(len(reply)))
        write_all(sink, reply)


def read_exactly(fd: int, length: int) -> bytes | None:
    """So many bytes of a pipe; None if it ends before."""
    parts = bytearray()
    while len(parts) < length:
        part = os.read(fd, min(length - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def write_all(fd: int, data: bytes) -> None:
    """All of it into a pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _die_with_parent() -> None:
    """Ask Linux for a SIGKILL when the broker ends, however it ends."""
    if sys.platform == "linux":
        import ctypes  # only here: the broker's end, which is part of its start, needs none

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """The child. Its argument is the broker's process id."""
    # kafkawire.log.io.disk hands out the other end of this module, so it cannot be imported above.
    from kafkawire.log.io.disk import DiskFileSystem

    parent = int(sys.argv[1])
    _die_with_parent()

    def look() -> None:
        if os.getppid() != parent:
            os._exit(1)

    look()  # it may have died before it was asked for
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of the broker: it reloads its configuration
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing that prints may come between the frames
    with contextlib.suppress(BrokenPipeError):
        serve(DiskFileSystem(), 0, sink, look)


if __name__ == "__main__":
    main()
