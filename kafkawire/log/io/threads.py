"""Threads for calls that block: named pools, which implement the port `Offload`.

A commit is one call, so a call has to be cheap: the thread passes the outcome to the event loop
itself. `run_in_executor` takes twice the CPU time: it makes a second future with a lock and a
condition of its own, and wakes threads that have nothing to do.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from kafkawire.log.io.ports import Done

T = TypeVar("T")

POOL_THREADS = {
    "commit": 1, "write": 1, "read": 4, "warm": 4, "send": 4, "files": 1, "brokers": 4,
    "passwords": 2, "issuer": 1,
}  # fmt: skip
"""Threads per pool. One for commits and one for writes, because both are ordered; four for reads of
journals, four for reads of segments and four for sending from files that are not in the page cache,
which keep a disk busy without letting consumers of old data use every core; one for creating,
renaming and deleting files; four for requests to other brokers, of which few are slow at the same
time; two for the derivation of keys from passwords, so that log-ins leave cores free; one for
reading the keys of an issuer of tokens."""

Future = asyncio.Future[Any]
Report = Callable[[Any, Any, BaseException | None], None]
"""Passes an outcome or failure to the first argument, on the event loop."""
Job = tuple[asyncio.AbstractEventLoop, Report, Future | Done[Any], Callable[..., Any], Any]
Jobs = SimpleQueue[Job | None]


class ThreadPool:
    """Threads that run calls in the order of submission, each started when the others are busy.

    All methods are called on the event loop. A pool that is garbage collected ends its threads.
    """

    __slots__ = ("__weakref__", "_jobs", "_max_threads", "_name", "_threads", "_unfinished")

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._jobs: Jobs = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        weakref.finalize(self, _end, self._jobs, self._threads).atexit = False

    def submit(self, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run fn(*args) in a thread, unless the returned future is cancelled before that.

        Raises RuntimeError if no thread can be started.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put((loop, self._settle, future, fn, args))
        return future

    def submit_then(self, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        """Run fn(*args) in a thread, then `done` on the event loop.

        Raises RuntimeError if no thread can be started.
        """
        self._put((asyncio.get_running_loop(), self._report, done, fn, args))

    def close(self) -> None:
        """Run what was submitted, and end the threads."""
        _end(self._jobs, self._threads)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _put(self, job: Job) -> None:
        if self._unfinished >= len(self._threads) < self._max_threads:
            self._start_thread()
        self._unfinished += 1
        self._jobs.put(job)

    def _start_thread(self) -> None:
        # A daemon: a process that ends after an error does not wait for a disk that hangs.
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _report(self, done: Done[Any], outcome: Any, failure: BaseException | None) -> None:
        self._unfinished -= 1
        done(outcome, failure)

    def _settle(self, future: Future, outcome: Any, failure: BaseException | None) -> None:
        self._unfinished -= 1
        if future.done():
            return  # cancelled
        if failure is None:
            future.set_result(outcome)
        else:
            future.set_exception(failure)


class ThreadOffload:
    """Named thread pools as an `Offload`, each made at its first use."""

    def __init__(self) -> None:
        self._pools: dict[str, ThreadPool] = {}

    def submit(self, pool: str, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._pool(pool).submit(fn, *args)

    def submit_then(self, pool: str, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        self._pool(pool).submit_then(done, fn, *args)

    def _pool(self, name: str) -> ThreadPool:
        threads = self._pools.get(name)
        if threads is None:
            threads = self._pools[name] = ThreadPool(f"kafkawire-{name}", POOL_THREADS[name])
        return threads

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()


def _end(jobs: Jobs, threads: list[threading.Thread]) -> None:
    """Let the threads end after what was submitted."""
    for _ in threads:
        jobs.put(None)


def _run(jobs: Jobs) -> None:
    """Run calls until there is a None instead of one. The program of each thread."""
    while (job := jobs.get()) is not None:
        loop, report, target, fn, args = job
        outcome: Any = None
        failure: BaseException | None = None
        if not (isinstance(target, asyncio.Future) and target.cancelled()):
            try:
                outcome = fn(*args)
            except BaseException as caught:  # any failure is the caller's
                failure = caught
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(report, target, outcome, failure)
        del job, report, target, fn, args, outcome, failure  # free them before the next wait
