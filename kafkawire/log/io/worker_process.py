"""The worker process: both ends of the Worker port of kafkawire.log.io.ports.

A device. `WorkerProcess` is the broker's end: a child for short jobs, mainly cuts, and one for all
others, so that a cut never waits for a compaction. A child, `python -P -m
kafkawire.log.io.worker_main`, is started for its first job and ended after some time without jobs.
Requests and answers are pickled, each in a frame with its length before it, over the child's
standard input and output. Both ends are the same program of the same installation, so pickle is
safe and no version is needed.

A child has a low priority and ignores Ctrl-C in the terminal (the broker decides when it ends). It
does not outlive the broker: Linux kills it with its parent, elsewhere it checks before each piece
of work; while it waits for a job it ends with its input.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kafkawire.childprocess.frames import LENGTH, FrameError, pack, read_frame, write_frame
from kafkawire.childprocess.parent_end import ChildProcess, exit_words
from kafkawire.log.io.ports import FileSystem, WorkerError
from kafkawire.log.io.worker_jobs import SHORT, run_job
from kafkawire.rate_limit import RateLimit

NICE = 10
"""Priority below the broker's event loop and the storage process (5)."""
IDLE_S = 60.0
"""An idle child costs 30 MB; starting one costs a tenth of a second."""
ENDS_S = 1.0
"""How long to wait for a child to exit after its pipes have ended: normally that takes no time."""


class WorkerProcess:
    """The real Worker; see kafkawire.log.io.ports.Worker. `idle_s`: how long a child without jobs
    is kept."""

    __slots__ = ("_long", "_short")

    def __init__(self, idle_s: float = IDLE_S) -> None:
        # Two children: a cut must not wait for a compaction.
        self._short = WorkerChild(idle_s)
        self._long = WorkerChild(idle_s)

    async def run(self, job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        child = self._short if job in SHORT else self._long
        return await child.run(job, arguments, bytes_per_second)

    async def close(self) -> None:
        await self._short.close()
        await self._long.close()


class WorkerChild:
    """One child process, while there are jobs for it; one job at a time."""

    __slots__ = ("_closed", "_ending", "_idle_s", "_lock", "_process")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._process: ChildProcess | None = None
        self._ending: list[ChildProcess] = []  # retired or killed, and not yet waited for
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process id; None while no child is running."""
        return None if self._process is None else self._process.pid

    async def run(self, job: str, arguments: Any, bytes_per_second: int) -> Any:
        try:
            request = pack((job, arguments, bytes_per_second))
        except FrameError as problem:
            raise WorkerError(f"the job {job!r} must be split: {problem}") from None
        # One job at a time: answers have no numbers.
        async with self._lock:
            if self._closed:
                raise WorkerError(f"the job {job!r} was not started: the worker is closed")
            answer = await self._ask(job, request)
        kind, *outcome = pickle.loads(answer)
        if kind == "os":
            raise OSError(*outcome)
        if kind == "failed":
            raise WorkerError(*outcome)
        return outcome[0]

    async def _ask(self, job: str, request: tuple[bytes, bytes]) -> bytes:
        """Send one request and return its answer, while no other request is pending."""
        if self._process is not None:
            # It must not be retired before the request.
            self._process.busy()
        process = await self._running()
        try:
            process.send(request)
            await process.drain()
            answer = await process.receive()
        except (asyncio.IncompleteReadError, ConnectionError, FrameError) as failure:
            self._process = None
            code = await process.wait_or_kill(ENDS_S)
            raise WorkerError(
                f"the worker process ended with {exit_words(code)} during {job!r}"
            ) from failure
        except BaseException:
            # The caller was cancelled: the child's answer must not be taken for the answer to the
            # next job.
            process.kill()
            self._leave(process)
            raise
        process.rest_after(self._idle_s, self._rest)
        return answer

    async def _running(self) -> ChildProcess:
        process = self._process
        if process is None or process.pid is None:
            process = self._process = await ChildProcess.start("kafkawire.log.io.worker_main", NICE)
            if self._closed:
                process.kill()
        return process

    def _rest(self) -> None:
        """End the child, which had no jobs for a while."""
        if self._process is not None:
            self._process.retire()
            self._leave(self._process)

    def _leave(self, process: ChildProcess) -> None:
        """Use a child no more that is ending; only `close` waits for it."""
        self._process = None
        self._ending = [each for each in self._ending if each.pid is not None]
        self._ending.append(process)

    async def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()  # the job that it may be running fails
        async with self._lock:  # a job may be starting a child, which ends without running it
            if self._process is not None:
                self._process.busy()
                self._leave(self._process)
        for child in self._ending:
            child.kill()
            await child.wait()


def answer(fs: FileSystem, request: bytes, check: Callable[[], None]) -> bytes:
    """Run the job of a request and return the answer; never raises."""
    try:
        job, arguments, rate = pickle.loads(request)
        pace = partial(RateLimit(rate, time.monotonic, time.sleep).wait_for_rate, check=check)
        reply: tuple[Any, ...] = "done", run_job(fs, job, arguments, pace)
    except OSError as failure:
        reply = "os", failure.errno, failure.strerror or str(failure), failure.filename
    except Exception as failure:
        reply = "failed", str(failure)
    return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def serve(fs: FileSystem, source: int, sink: int, check: Callable[[], None]) -> None:
    """Answer requests from descriptor `source` to `sink` until its end."""
    while (request := read_frame(source)) is not None:
        reply = answer(fs, request, check)
        write_frame(sink, LENGTH.pack(len(reply)), reply)
