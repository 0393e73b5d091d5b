"""Requests of a place, counted: how many are under way, of how many bytes; and no thread left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

Asked = tuple[str, int, int]
"""Key, position, length."""
WITHIN_S = 30.0
"""For ever, on a machine that does nothing else."""


def eventually(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + WITHIN_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Meter:
    """How many requests are under way, how many bytes they ask for, and the most there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked: list[Asked] = []
        self.now = self.most = self.size = self.most_size = 0

    @contextmanager
    def request(self, asked: Asked) -> Iterator[None]:
        """One is under way."""
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
    """Threads that wait for answers."""
    return [each for each in threading.enumerate() if each.name.startswith("kafkawire-ahead")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """At the end of every test of a module that imports it."""
    yield
    eventually(lambda: not ours())
