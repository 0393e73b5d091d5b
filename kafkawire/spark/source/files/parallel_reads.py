"""Ranges of files, several requests under way at a time, taken in the order of a plan.

A far bucket takes a fifth of a second to the first byte and gives a connection 50 MB/s, so a reader
that asks for one range after the other waits most of the time. The consumer also sends the
requests: there is no thread but those that wait for an answer. They are started when there is
something to ask, so never before a fork, and end when the taking ends, by itself or by an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Generic, NamedTuple, TypeVar

from kafkawire.codec.types import Buffer
from kafkawire.spark.source.files.locations import Place

T = TypeVar("T")
R = TypeVar("R")


class FileRange(NamedTuple):
    """So many bytes of a file, in one request."""

    place: Place
    key: str
    start: int
    length: int


class Step(NamedTuple, Generic[T]):
    """Ranges that are of use together. `made`: of their bytes, in their order; None for a range
    whose file is not there."""

    ranges: Sequence[FileRange]
    made: Callable[[Sequence[Buffer | None]], Iterator[T]]

    @property
    def size_bytes(self) -> int:
        """Of what is asked for."""
        return sum(each.length for each in self.ranges)


Plan = Iterator["Step[T] | Future[Any]"]
"""Steps in order, taken when there is room for more. A future among them: what follows is not known
before it is done."""


class ReadsInFlight(Generic[T]):
    """Requests of one reader: at most `at_once` are under way, and what was asked for and is not
    taken yet are as many steps at most, of `most_bytes`, or one. What is being taken comes on top.
    """

    def __init__(self, at_once: int, most_bytes: int) -> None:
        self._pool = ThreadPoolExecutor(at_once, "kafkawire-ahead")
        self._at_once = at_once
        self._most_bytes = most_bytes
        self._bytes = 0
        self._asked: deque[tuple[Step[T], list[Future[Buffer | None]]]] = deque()
        self._next: Step[T] | Future[Any] | None = None

    def submit(self, work: Callable[..., R], *arguments: Any) -> Future[R]:
        """Something else to do among the requests, which the plan needs."""
        return self._pool.submit(work, *arguments)

    def taken(self, plan: Plan[T]) -> Generator[T, None, None]:
        """Results of the steps, in order. An error is raised in the place of its step: all
        before it was given."""
        try:
            self._next = next(plan, None)
            while self._ask(plan, patient=True):
                yield from self._made(plan)
        finally:
            # Requests under way end by their own time limits; no caller waits for them.
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, plan: Plan[T], *, patient: bool) -> bool:
        """Ask for as much as there is room for; whether anything was asked for. `patient`: there
        is nothing else to do than to wait until the plan goes on."""
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

    def _made(self, plan: Plan[T]) -> Iterator[T]:
        """Return the result of the first step; its slot is freed before the caller processes it."""
        step, coming = self._asked.popleft()
        found = [each.result() for each in coming]
        self._bytes -= step.size_bytes
        self._ask(plan, patient=False)
        return step.made(found)


def _read(wanted: FileRange) -> Buffer | None:
    try:
        return wanted.place.get_range(*wanted[1:])
    except FileNotFoundError:
        return None
