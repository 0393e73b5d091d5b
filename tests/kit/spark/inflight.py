"""Count the requests to a store: how many are in flight, for how many bytes; check that no thread
is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Asked = tuple[str, int, int]
"""Key, position, length."""
WITHIN_S = 60.0
"""Far longer than needed on an idle machine."""


def eventually(true: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Meter:
    """Counts the requests in flight and the bytes they ask for, and the maximum of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.now = self.most = self.size = self.most_size = 0

    @contextmanager
    def request(self, asked: Asked) -> Iterator[None]:
        """Count one request while it is in flight."""
        with self._lock:
            self.asked.append(asked)
        self._count(1, asked[2])
        try:
            yield
        finally:
            self._count(-1, -asked[2])

    def _count(self, one: int, size: int) -> None:
        with self._lock:
            self.now += one
            self.size += size
            self.most, self.most_size = max(self.most, self.now), max(self.most_size, self.size)


def ours() -> list[threading.Thread]:
    """Threads that wait for responses."""
    return [each for each in threading.enumerate() if each.name.startswith("kafkawire-ahead")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Check at the end of every test of a module that imports it that no thread is left."""
    yield
    eventually(lambda: not ours())
