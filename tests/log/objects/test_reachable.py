"""A start that waits for the storage."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kafkawire.log.objects.port import wait_until_reachable
from kafkawire.objectstore.errors import Refused, StoreError
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem


class Store:
    """Answers with the failures, one after another, then with an empty list."""

    def __init__(self, *failures: StoreError) -> None:
        self.failures = list(failures)
        self.calls = 0

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Any]:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return []


def wait_for(store: Any) -> float:
    """Return how long the wait took."""
    loop = simloop.SimLoop()
    env = sim_env(loop, random.Random(1), MemFileSystem())
    simloop.run(loop, wait_until_reachable(env, store))
    return loop.now


def test_start_waits_until_the_storage_answers() -> None:
    store = Store(*[StoreError("Timeout", "no answer")] * 20)
    assert 40 < wait_for(store) < 120
    assert store.calls == 21


def test_refusal_is_not_waited_for() -> None:
    store = Store(Refused("AccessDenied", "wrong key"))
    with pytest.raises(Refused):
        wait_for(store)
    assert store.calls == 1
