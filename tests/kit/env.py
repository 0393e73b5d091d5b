"""Env for tests: virtual or real time, a disk in memory, offload pools without threads.

`sim_env` belongs to a SimLoop: offloaded calls run at a random moment between submission and
result, so that anything may happen in between. `memory_env` works on any running loop, at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, TypeVar

from kafkawire.log.io.ports import Done, Env, FileSystem, Offload, WorkerError
from kafkawire.log.io.worker_jobs import SHORT, no_pace, run_job
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, drifting

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Virtual time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.now * 1000)

    def monotonic(self) -> float:
        return self._loop.now


class MachineClock(SimClock):
    """The clocks of one machine: its wall clock is `ahead_ms` ahead of virtual time, and its
    monotonic clock runs `rate` times as fast."""

    def __init__(self, loop: SimLoop, rate: float = 1.0) -> None:
        super().__init__(loop)
        self.ahead_ms = 0
        self.rate = rate

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return super().monotonic() * self.rate


class MachineEnv(Env):
    """The world of a process whose clock drifts: its tasks and timers have that clock, also if a
    test calls it."""

    @property
    def _context(self) -> Context:
        assert isinstance(self.clock, MachineClock)
        return drifting(self.clock.rate)

    def spawn(
        self, coro: Coroutine[Any, Any, T], name: str, *, watched: bool = True
    ) -> asyncio.Task[T]:
        return self._context.run(lambda: super(MachineEnv, self).spawn(coro, name, watched=watched))

    def call_later(
        self, delay_s: float, fn: Callable[..., object], *args: Any
    ) -> asyncio.TimerHandle:
        return self._context.run(super().call_later, delay_s, fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> asyncio.Handle:
        return self._context.run(super().call_soon, fn, *args)

    async def sleep(self, delay_s: float) -> None:
        woken = asyncio.Event()
        timer = self.call_later(delay_s, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()


class SettableClock:
    """A clock that stands still until a test sets it."""

    def __init__(self) -> None:
        self.ms = EPOCH_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class SimOffload:
    """Run calls on the loop itself, now or later, and deliver their results later still. One call
    of a pool at a time, in order, as pools of one thread do."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self._free_at: dict[str, float] = {}
        self.alive = True

    def submit(self, pool: str, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self.submit_then(pool, partial(_resolve, future), fn, *args)
        return future

    def submit_then(self, pool: str, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        start = max(self._loop.now, self._free_at.get(pool, 0.0))
        runs = start + self._rng.random() * 0.004
        self._free_at[pool] = answered = runs + self._rng.random() * 0.004
        self._loop.call_when(runs, self._run, done, answered, fn, args)

    def _run(self, done: Done[Any], answered: float, fn: Callable[..., Any], args: Any) -> None:
        if not self.alive:
            return
        try:
            outcome, failure = fn(*args), None
        except Exception as caught:
            outcome, failure = None, caught
        self._loop.call_when(answered, done, outcome, failure)

    def close(self) -> None:
        self.alive = False


class InlineOffload:
    """Run calls at once; the result arrives in the next event-loop iteration."""

    def __init__(self) -> None:
        self.held: list[tuple[str, Callable[[], None]]] = []
        self.holding: set[str] = set()

    def submit(self, pool: str, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.submit_then(pool, partial(_resolve, future), fn, *args)
        return future

    def submit_then(self, pool: str, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        loop = asyncio.get_running_loop()

        def run() -> None:
            outcome, failure = None, None
            try:
                outcome = fn(*args)
            except Exception as caught:
                failure = caught
            loop.call_soon(done, outcome, failure)

        if pool in self.holding:
            self.held.append((pool, run))
        else:
            run()

    def hold(self, pool: str) -> None:
        """Keep the calls of a pool until `release`."""
        self.holding.add(pool)

    def release(self, pool: str) -> None:
        """Run what was kept, in order."""
        self.holding.discard(pool)
        ready = [run for name, run in self.held if name == pool]
        self.held = [item for item in self.held if item[0] != pool]
        for run in ready:
            run()

    def close(self) -> None:
        pass


class OffloadWorker:
    """A worker without a process: jobs run on the offload like calls of two pools of one thread."""

    def __init__(self, offload: Offload, fs: FileSystem) -> None:
        self._offload = offload
        self._fs = fs
        self._closed = False

    async def run(self, job: str, arguments: Any, bytes_per_second: int = -1) -> Any:
        if self._closed:
            raise WorkerError(f"the job {job!r} was not started: the worker is closed")
        pool = "cut" if job in SHORT else "worker"
        return await self._offload.submit(pool, run_job, self._fs, job, arguments, no_pace)

    async def close(self) -> None:
        self._closed = True

    def reopen(self) -> None:
        """Give the next process of the same world a worker of its own."""
        self._closed = False


def _resolve(future: asyncio.Future[Any], outcome: Any, failure: BaseException | None) -> None:
    if future.done():
        return
    if failure is None:
        future.set_result(outcome)
    else:
        future.set_exception(failure)


def sim_env(loop: SimLoop, rng: random.Random, fs: MemFileSystem) -> Env:
    """The world of one simulated process."""
    offload = SimOffload(loop, rng)
    return Env(SimClock(loop), rng, fs, offload, {}, OffloadWorker(offload, fs))


def memory_env(fs: MemFileSystem | None = None, seed: int = 0) -> Env:
    """A world without waiting, for tests on an ordinary loop."""
    fs = fs or MemFileSystem()
    offload = InlineOffload()
    worker = OffloadWorker(offload, fs)
    return Env(SettableClock(), random.Random(seed), fs, offload, {}, worker)
