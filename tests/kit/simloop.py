"""An asyncio event loop with virtual time: a day passes in no time, the same way every time.

Nothing waits: when no callback is ready the clock jumps to the next timer. A loop with neither
stops with Deadlock instead of hanging. Used by the simulations and by tests that need timers.

Processes whose clocks drift share a loop: a task that is created in `drifting(rate)` has a clock
that runs so many times as fast, and so have all tasks, timers and timeouts that it begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_RATE: ContextVar[float] = ContextVar("rate", default=1.0)


def drifting(rate: float) -> Context:
    """Return the context of a process whose clock runs `rate` times as fast as the loop's."""
    context = copy_context()
    context.run(_RATE.set, rate)
    return context


class Deadlock(Exception):
    """Raised when every task waits and no event will ever wake one."""


class _Selector:
    """A selector that advances the clock where a real loop would wait for sockets."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock
        self._loop.now += max(0.0, timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of this module. `now` is the virtual time in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._clock_resolution = 1e-9
        self._selector = _Selector(self)
        self.failures: list[BaseException] = []
        self._order: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        self._numbers = count()
        self.set_exception_handler(self._note_failure)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        self._order[task] = next(self._numbers)
        return task

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done in the order of their creation: asyncio.all_tasks is a
        set, whose order follows from memory addresses."""
        return sorted(asyncio.all_tasks(self), key=self._order.__getitem__)

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        self.failures.append(failure or RuntimeError(context["message"]))

    def time(self) -> float:
        return self.now * _RATE.get()

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when / _RATE.get(), callback, *args, context=context)

    def call_when(
        self,
        now: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a moment of virtual time, whatever the clock of the caller shows."""
        return super().call_at(now, callback, *args, context=context)

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list, "a simulation has no sockets"

    def _write_to_self(self) -> None:
        """Threads would wake the loop here; there are none."""


def run(loop: SimLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, then cancel the tasks it left.

    Raise what any callback or detached task raised: nothing is only logged.
    """
    asyncio.set_event_loop(None)
    try:
        return loop.run_until_complete(main)
    finally:
        left = loop.tasks()
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()
        if loop.failures:
            raise loop.failures[0]
