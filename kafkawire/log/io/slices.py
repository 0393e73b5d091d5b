"""Long computations on the event loop, one slice at a time.

The event loop belongs to every client: nothing may compute on it for more than MAX_STRETCH_S
without letting the others run. This is the only way to do so:

- A computation whose length a client decides asks `over` (or awaits `give_way`) between two steps,
  or hands its steps to `run`: it pauses when its slice of CPU time is used up.
- A background task awaits `pause` after each batch of elements that is known to take less than a
  slice or two. It does not read the clock after each: that would cost as much as the element.

Both wait in one queue, and each event-loop iteration has one slice. So a hundred computations delay
small requests no more than one does, and each of them progresses at the same rate.

Shell; one per broker, in kafkawire.log.io.ports.Env. Its clock stands still in the simulation, so a
simulated computation pauses at most once for each moment of virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from heapq import merge
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX_STRETCH_S: Final = 0.005
"""The longest CPU time that a request may use on the event loop without a pause. The watchdog
reports longer ones, and tests/broker/test_event_loop_time.py checks every API against it."""

SLICE_S = 0.0005
"""CPU time between two runs of the event loop: well below the 1 ms that a small request may wait at
the 99th percentile, and long enough that pausing costs little compared with the work."""

SORTED_AT_ONCE = 1_000
"""Items that are sorted in one step: some tenths of a millisecond."""


async def collect(items: Iterable[T], give_way: Callable[[], Awaitable[None]]) -> list[T]:
    """Return the items as a list; `give_way` is awaited after each."""
    found: list[T] = []
    for item in items:
        found.append(item)
        await give_way()
    return found


async def count_keys(keys: Iterable[T], give_way: Callable[[], Awaitable[None]]) -> dict[T, int]:
    """Return how often each key occurs, in the order of first occurrence; `give_way` is awaited
    after each key. To be freed with `empty_slowly`."""
    counts: dict[T, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
        await give_way()
    return counts


async def duplicates(keys: Iterable[T], give_way: Callable[[], Awaitable[None]]) -> set[T]:
    """Return the keys that occur more than once; `give_way` is awaited after each. To be freed
    with `empty_slowly`."""
    seen: set[T] = set()
    twice: set[T] = set()
    for key in keys:
        if key in seen:
            twice.add(key)
        seen.add(key)
        await give_way()
    await empty_slowly(seen, give_way)
    return twice


async def in_order(items: list[str], give_way: Callable[[], Awaitable[None]]) -> list[str]:
    """Return the items in order: sorted in parts, which are then merged."""
    parts: list[list[str]] = []
    for start in range(0, len(items), SORTED_AT_ONCE):
        parts.append(sorted(items[start : start + SORTED_AT_ONCE]))
        await give_way()
    return await collect(merge(*parts), give_way)


async def empty_slowly(
    collection: list[Any] | set[Any] | dict[Any, Any], give_way: Callable[[], Awaitable[None]]
) -> None:
    """Remove all elements; `give_way` is awaited after each. Freeing tens of thousands of objects
    at once would hold the event loop for milliseconds. Messages are freed with
    kafkawire.handlers.slices.free_in_steps, which also frees their lists."""
    # From the end: removing the first element of a list would move all others.
    remove = collection.popitem if isinstance(collection, dict) else collection.pop
    while collection:
        remove()
        await give_way()


async def drain_slowly(
    lists: list[list[T]], give_way: Callable[[], Awaitable[None]]
) -> AsyncIterator[T]:
    """Yield the elements of all lists, the last one first, and remove them, so that they are freed
    one by one; `give_way` is awaited after each."""
    while lists:
        items = lists[-1]
        while items:
            yield items.pop()
            await give_way()
        lists.pop()


def run_at_once(steps: Generator[None, None, T]) -> T:
    """Run steps that are known to be few to their end, as `Slices.run` does without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Slices:
    """The queue of computations that wait for their next slice."""

    __slots__ = ("_granting", "_monotonic", "_until", "_waiting")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until = -1.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granting = False

    def over(self) -> bool:
        """Whether the current slice is used up."""
        return self._monotonic() >= self._until

    async def give_way(self) -> None:
        """Pause if the slice is used up; otherwise return at once."""
        if self._monotonic() >= self._until:
            await self.pause()

    async def pause(self) -> None:
        """Wait for the next slice: first come, first served."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        self._waiting.append(granted)
        # One slice per event-loop iteration, for all computations together.
        if not self._granting:
            self._granting = True
            loop.call_soon(self._grant)
        await granted

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run the generator `steps` to its end, pausing between two steps when a slice is used up.

        Returns what the generator returns and raises what it raises.
        """
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if self._monotonic() >= self._until:
                await self.pause()

    def _grant(self) -> None:
        """Wake the first waiting computation, which runs in the next event-loop iteration."""
        waiting = self._waiting
        while waiting:
            granted = waiting.popleft()
            if not granted.done():  # else its task was cancelled
                self._until = self._monotonic() + SLICE_S
                granted.set_result(None)
                break
        self._granting = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_soon(self._grant)
