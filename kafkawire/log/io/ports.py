"""The ports: everything the broker knows of the world outside, each method with its promise.

Clock, Random, FileSystem (with File and Lock), Offload and Worker are Protocols; `Env` carries one
of each, plus what it takes to start tasks and timers. The real ones are in kafkawire/log/io/disk.py
and kafkawire/log/io/worker_process.py, the simulated ones in tests/kit (memfs, simloop, env);
tests/log/io/test_ports.py holds both to the same promises.

Not here: SQL (kafkawire.metadata.store.Metadata), sockets (server.listener). Shell modules take an
Env; pure modules take values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kafkawire.log.io.slices import Slices
from kafkawire.log.io.watchdog import Watchdog

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class LogError(RuntimeError):
    """The log cannot be opened or used; the text is one sentence for the operator."""


class WorkerError(LogError):
    """A job of the worker process failed, or the process died of it."""


class Clock(Protocol):
    """Two clocks: one for people and records, one for measuring."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC. May jump, also backwards."""

    def monotonic(self) -> float:
        """Seconds since some moment. Never goes back."""


class Random(Protocol):
    """Randomness; seeded in the simulation, so that a run can be repeated."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def getrandbits(self, k: int) -> int:
        """A non-negative integer of k random bits."""

    def randbytes(self, n: int) -> bytes:
        """n random bytes, good enough for ids that must not collide."""


class File(Protocol):
    """One open file. Positions are absolute; there is no cursor."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other at `position`; how many bytes were written.

        May write less than asked (a disk that fills up). Raises OSError, and then some of the
        bytes may be there all the same. Nothing is durable before `sync`. At most 1000 buffers.
        """

    def pread(self, length: int, position: int) -> bytes:
        """The bytes at `position`; fewer only where the file ends."""

    def cached(self, length: int, position: int) -> bool:
        """Whether reading these bytes would probably not wait for the disk: samples of them are in
        the page cache. True where that is unknown. Does not wait itself."""

    def sync(self) -> None:
        """Return when every write that returned before the call is durable. Raises OSError.

        After an error no one can tell which bytes are durable, and a second call may succeed
        without having made them so (fsyncgate): treat it as final.
        """

    def allocate(self, size_bytes: int) -> None:
        """Make the file `size_bytes` long; where the disk can promise the room, it does.

        Never fails for lack of space: then only writing will. Does not change bytes.
        """

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or lengthen it with zeros."""

    def size(self) -> int:
        """Its length in bytes."""

    def map(self, size_bytes: int) -> memoryview:
        """A read-only view of the first bytes of the file that shows later writes too.

        `size_bytes` is at most the file's size. The view must not outlive a truncation below it.
        """

    def close(self) -> None:
        """Give the handle back; views stay valid."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Give it up."""


class FileSystem(Protocol):
    """A file system as far as a broker needs one. Paths are absolute."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. `create`: make it if absent. FileNotFoundError else."""

    def rename(self, old: str, new: str) -> None:
        """Atomic, replaces `new`; durable only after `sync_dir`."""

    def remove(self, path: str) -> None:
        """Removing what is absent succeeds; durable only after `sync_dir`."""

    def listdir(self, path: str) -> list[str]:
        """Names in a folder, sorted. FileNotFoundError if there is none."""

    def makedirs(self, path: str) -> None:
        """Make a folder and those above it; existing ones are fine. Durable at once."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""

    def lock(self, path: str) -> Lock:
        """An exclusive lock that dies with the process. BlockingIOError if it is held."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(total, free for us) of the volume that holds `path`."""


class Offload(Protocol):
    """Threads, only for calls that release the interpreter lock: fsync, write, pread, SQL.

    Pools are named and small: "commit" (1), "write" (1), "read" (4), "warm" (4), "files" (1). A
    pool runs its calls in the order of submission as far as its number of threads allows.
    """

    def submit(self, pool: str, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run fn(*args) elsewhere; the future is resolved on the loop."""

    def close(self) -> None:
        """Wait for the running calls and end the threads."""


class Worker(Protocol):
    """Other processes, for what loops over batches: cutting, rewriting, compaction, scrubbing.

    Jobs are functions by name (kafkawire.log.io.worker_jobs). Short ones, as cuts, run one at a
    time, in the order of the calls; so do all others, concurrently.
    """

    async def run(self, job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        """Run a job, reading at most so many bytes a second (-1: as fast as it goes).

        Raises OSError from the disk, WorkerError for whatever else; in both cases the job may
        have written files, which are the caller's to remove. If the caller is cancelled a job
        that has begun goes on or dies, and its outcome is lost.
        """

    async def close(self) -> None:
        """End the processes. Jobs that run or wait fail with WorkerError."""


class Timer(Protocol):
    """A call that will happen later."""

    def cancel(self) -> None:
        """Forget it. Harmless when it has happened."""


@dataclass(frozen=True, slots=True)
class Env:
    """The world as a shell module sees it; tests pass fakes and nothing else changes."""

    clock: Clock
    random: Random
    fs: FileSystem
    offload: Offload
    tasks: set[asyncio.Task[Any]]
    worker: Worker
    watchdog: Watchdog | None = None
    slices: Slices = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slices", Slices(self.clock.monotonic))

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that is kept alive, has a name, and whose failure is not lost.

        An exception no one fetches is reported by the loop's exception handler.
        """
        watched = coro if self.watchdog is None else self.watchdog.stepwise(coro, name)
        task = asyncio.get_running_loop().create_task(watched, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def call_later(
        self, delay_s: float, fn: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Run fn(*args) on the loop after `delay_s` seconds."""
        if self.watchdog is not None:
            name = f"the timer {getattr(fn, '__qualname__', fn)}"
            args = name, fn, *args
            fn = self.watchdog.timed
        return asyncio.get_running_loop().call_later(delay_s, fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Run fn(*args) on the loop once those scheduled before have run."""
        return asyncio.get_running_loop().call_soon(fn, *args)

    async def sleep(self, delay_s: float) -> None:
        """Let others run for `delay_s` seconds."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        timer = loop.call_later(delay_s, _wake, done)
        try:
            await done
        finally:
            timer.cancel()


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
