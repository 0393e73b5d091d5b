"""The ports: everything the broker uses of the machine, each method with what it guarantees.

Clock, Random, FileSystem (with File and Lock), Offload and Worker are Protocols; `Env` holds one of
each, and starts tasks and timers. The real ones are in kafkawire/log/io/disk.py and
kafkawire/log/io/worker_process.py, the simulated ones in tests/kit (memfs, simloop, env);
tests/log/io/test_ports.py checks both against the same guarantees.

Elsewhere: SQL (kafkawire.metadata.store.Metadata), sockets (kafkawire.server.listener). Shell
modules take an Env; pure modules take values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kafkawire.hooks import HookRunner
from kafkawire.log.io.slices import Slices
from kafkawire.log.io.watchdog import Stepwise, Watchdog

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Done = Callable[[T | None, BaseException | None], None]
"""Takes the result of a call, or None and why it failed."""


class LogError(RuntimeError):
    """The log cannot be opened or used; the text is one sentence for the operator."""


class Superseded(LogError):
    """Another life of this broker has ended its log: nothing can be stored in it any more."""


class WorkerError(LogError):
    """A job of the worker process failed, or ended the process."""


class Clock(Protocol):
    """Two clocks: one for people and records, one for measuring."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC. May jump, also backwards."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment. Never decreases."""


class Random(Protocol):
    """Randomness; seeded in the simulation, so that a run can be repeated."""

    def random(self) -> float:
        """Return a number, uniform in [0, 1)."""

    def getrandbits(self, k: int) -> int:
        """Return a non-negative integer of k random bits."""

    def randbytes(self, n: int) -> bytes:
        """Return n random bytes, suitable for ids that must not collide."""


class File(Protocol):
    """One open file. Positions are absolute; there is no cursor."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write the buffers one after the other at `position`; return how many bytes were written.

        May write less than requested, when the disk fills up. If it raises OSError some of the
        bytes may have been written. Nothing is durable before `sync`. At most 1000 buffers.
        """

    def pread(self, length: int, position: int) -> bytes:
        """Return `length` bytes at `position`, fewer only where the file ends."""

    def is_cached(self, length: int, position: int) -> bool:
        """Return whether reading these bytes would probably not wait for the disk: samples of them
        are in the page cache. True where that is unknown. Does not wait itself."""

    def send(self, socket_fd: int, length: int, position: int) -> int:
        """Send bytes at `position` to a non-blocking socket without reading them; return how many
        it took: at most `length`, 0 only where the file ends.

        BlockingIOError if the socket takes none now, OSError from the disk or the socket. Waits for
        the disk unless the bytes are in the page cache (`is_cached`).
        """

    def drop_cached(self) -> bool:
        """Drop the file from the page cache; return whether nothing of it is left there: then no
        socket has pages of it any more that `send` gave it, and no process a mapping. Takes
        milliseconds."""

    def sync(self) -> None:
        """Return when every write that returned before the call is durable. Raises OSError.

        After an error it is unknown which bytes are durable, and a second call may succeed without
        having made them so (known as fsyncgate): treat it as final.
        """

    def allocate(self, size_bytes: int) -> None:
        """Make the file `size_bytes` long, with the space reserved on disk where that is possible.

        Never fails for lack of space; a later write may. Does not change bytes.
        """

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or lengthen it with zeros."""

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def map(self, size_bytes: int) -> memoryview:
        """Return a read-only view of the first bytes of the file, which shows later writes too.

        `size_bytes` is at most the file's size. The view must not outlive a truncation below it.
        """

    def close(self) -> None:
        """Close the handle; views stay valid."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Release the lock."""


class FileSystem(Protocol):
    """The operations on files that a broker needs. Paths are absolute."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. `create`: create it if absent; otherwise
        FileNotFoundError."""

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing `new`; durable only after `sync_dir`."""

    def remove(self, path: str) -> None:
        """Remove a file, which may be absent; durable only after `sync_dir`."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted. FileNotFoundError if there is no such folder."""

    def makedirs(self, path: str) -> None:
        """Create a folder and its parents; existing ones are accepted. Durable at once."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder. OSError if something is in it; durable only after `sync_dir`."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""

    def lock(self, path: str) -> Lock:
        """Take an exclusive lock that ends with the process. BlockingIOError if it is held."""

    def native(self, path: str) -> str | None:
        """Return the path under which other libraries find a file; None: it is in no folder of the
        system, but simulated."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """Return (total, available) bytes of the volume that contains `path`."""

    def identity(self, path: str) -> str:
        """Return a text that is equal for processes of one machine that use the same folder, under
        whatever path, and that no copy of the folder has."""


class Offload(Protocol):
    """Threads for calls that release the interpreter lock: fsync, write, pread, SQL.

    Pools are named and small: "commit" (1), "write" (1), "read" (4), "warm" (4), "send" (4),
    "files" (1), "brokers" (4), "passwords" (2), "issuer" (1). A pool runs its calls in the order of
    submission as far as its number of threads allows.
    """

    def submit(self, pool: str, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run fn(*args) in a thread of the pool; the future is resolved on the event loop."""

    def submit_then(self, pool: str, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        """Run fn(*args) in a thread of the pool, then `done` on the event loop; without the
        event-loop iteration between a future and its callback."""

    def close(self) -> None:
        """Wait for the running calls and end the threads."""


class Worker(Protocol):
    """Other processes, for loops over batches: cutting, merging, compaction, scrubbing.

    Jobs are functions by name (kafkawire.log.io.worker_jobs). Short ones, such as cuts, run one at
    a time, in the order of the calls; the long ones likewise, concurrently with the short ones.
    """

    async def run(self, job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        """Run a job, reading at most so many bytes a second (-1: as fast as it goes).

        Raises OSError from the disk, WorkerError for all other failures; in both cases the job may
        have written files, which the caller must remove. If the caller is cancelled, a job that has
        begun continues or is killed, and its outcome is lost.
        """

    async def close(self) -> None:
        """End the processes. Jobs that run or wait fail with WorkerError."""


class Timer(Protocol):
    """A call that will happen later."""

    def cancel(self) -> None:
        """Cancel the call. Does nothing when it has happened."""


@dataclass(frozen=True, slots=True)
class Env:
    """Everything a shell module uses of the machine; tests pass fakes instead. `tasks`: those that
    are not done, in the order of their start; `hooks`: plug-ins that are called with events, None:
    there are none."""

    clock: Clock
    random: Random
    fs: FileSystem
    offload: Offload
    tasks: dict[asyncio.Task[Any], None]
    worker: Worker
    watchdog: Watchdog | None = None
    hooks: HookRunner | None = None
    slices: Slices = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slices", Slices(self.clock.monotonic))

    def spawn(
        self, coro: Coroutine[Any, Any, T], name: str, *, watched: bool = True
    ) -> asyncio.Task[T]:
        """Start a task with a name; it is kept alive and its failure is not lost. `watched`: steps
        that hold the event loop for too long are reported.

        An exception that no caller fetches is reported by the loop's exception handler.
        """
        if watched and self.watchdog is not None:
            coro = Stepwise(self.watchdog, coro, name)
        task = asyncio.get_running_loop().create_task(coro, name=name)
        # A reference: the event loop has none, and would let the task be collected.
        self.tasks[task] = None
        task.add_done_callback(self.tasks.pop)
        return task

    def call_later(
        self, delay_s: float, fn: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        """Run fn(*args) on the loop after `delay_s` seconds."""
        if self.watchdog is not None:
            return asyncio.get_running_loop().call_later(
                delay_s, self.watchdog.run_timer, fn, *args
            )
        return asyncio.get_running_loop().call_later(delay_s, fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Run fn(*args) on the loop once those scheduled before have run."""
        return asyncio.get_running_loop().call_soon(fn, *args)

    async def sleep(self, delay_s: float) -> None:
        """Let others run for `delay_s` seconds. Only to yield, await `Slices.pause`."""
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
