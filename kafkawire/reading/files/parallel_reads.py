"""Read ranges of files with several concurrent requests; results are returned in the order of a
plan.

A remote bucket takes a fifth of a second to the first byte and provides 50 MB/s per connection, so
sequential requests would mostly wait. The consumer also schedules the requests: the only threads
are those waiting for responses. They are started with the first request, so never before a fork,
and end with the iteration or an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, NamedTuple, TypeVar

from kafkawire.codec.types import Buffer
from kafkawire.reading.files.locations import Place

T = TypeVar("T")
R = TypeVar("R")


class ReadRange(NamedTuple):
    """A range of bytes of a file, in one request."""

    place: Place
    key: str
    start: int
    length: int


class Step(NamedTuple, Generic[T]):
    """Ranges that are processed together. `made`: builds the result from their bytes, in order;
    None for a range of a missing file."""

    ranges: Sequence[ReadRange]
    made: Callable[[Sequence[Buffer | None]], Iterator[T]]

    @property
    def size_bytes(self) -> int:
        """Total of the requested bytes."""
        return sum(each.length for each in self.ranges)


Plan = Iterator["Step[T] | Future[Any]"]
"""Steps in order, taken when there is room for more. A future among them: the following steps are
unknown until it is done."""


class ReadsInFlight(Generic[T]):
    """Requests of one reader: at most `at_once` run concurrently, and results that are not consumed
    yet are at most as many steps, of `most_bytes`, or one. The result being consumed is not
    counted."""

    def __init__(self, at_once: int, most_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(at_once, "kafkawire-ahead")
        self._at_once = at_once
        self._most_bytes = most_bytes
        self._bytes = 0
        self._asked: deque[tuple[Step[T], list[Future[Buffer | None]]]] = deque()
        self._next: Step[T] | Future[Any] | None = None

    def submit(self, work: Callable[..., R], *arguments: Any) -> Future[R]:
        """Run other work among the requests, which the plan needs."""
        return self._pool.submit(work, *arguments)

    def yield_results(self, plan: Plan[T]) -> Generator[T, None, None]:
        """Yield the results of the steps, in order. The error of a step is raised after the results
        before it."""
        try:
            self._next = next(plan, None)
            while self._ask(plan, patient=True):
                yield from self._yield_first(plan)
        finally:
            # Requests in progress end by their own time limits; no caller waits for them.
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, plan: Plan[T], *, patient: bool) -> bool:
        """Start as many requests as there is room for; return whether any was started. `patient`:
        wait until the plan continues, because there is nothing else to do."""
        while self._next is not None:
            if isinstance(self._next, Future):
                if not self._next.done() and (self._asked or not patient):
                    break
                wait([self._next])
            else:
                size = self._next.size_bytes
                is_full = len(self._asked) >= self._at_once
                if is_full or (self._asked and self._bytes + size > self._most_bytes):
                    break
                self._bytes += size
                coming = [self._pool.submit(_read, each) for each in self._next.ranges]
                self._asked.append((self._next, coming))
            self._next = next(plan, None)
        return bool(self._asked)

    def _yield_first(self, plan: Plan[T]) -> Iterator[T]:
        """Return the result of the first step; its slot is freed before the caller processes it."""
        step, coming = self._asked.popleft()
        found = [each.result() for each in coming]
        self._bytes -= step.size_bytes
        self._ask(plan, patient=False)
        return step.made(found)


def _read(wanted: ReadRange) -> Buffer | None:
    try:
        return wanted.place.get_range(*wanted[1:])
    except FileNotFoundError:
        return None
