"""Loads that are shared by all callers that wait for them, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kafkawire.log.io.shared_load import SharedLoad
from tests.kit import simloop
from tests.kit.env import sim_env
from tests.kit.memfs import MemFileSystem

LOAD_S = 2.0


class Source:
    """Source of loads: when a load has ended, `known` has what was in `stored` at its beginning."""

    def __init__(self, interval_s: float = 0.0) -> None:
        self.loop = simloop.SimLoop()
        self.stored: set[str] = set()
        self.known: set[str] = set()
        self.begun: list[float] = []
        self.failure: Exception | None = None
        env = sim_env(self.loop, random.Random(1), MemFileSystem())
        self.shared = SharedLoad(env, "load", self._load, interval_s)

    async def _load(self) -> None:
        self.begun.append(self.loop.now)
        found = set(self.stored)
        await asyncio.sleep(LOAD_S)
        if self.failure is not None:
            raise self.failure
        self.known = found

    async def find(self, what: str) -> bool:
        """Store something, and return whether it is known after the next load."""
        self.stored.add(what)
        await self.shared.again()
        return what in self.known

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        simloop.run(self.loop, main())


def test_callers_do_not_pass_a_load_in_progress() -> None:
    source = Source(interval_s=1.0)

    async def main() -> None:
        source.stored.add("early")
        first = asyncio.ensure_future(source.shared.again())
        await asyncio.sleep(LOAD_S / 2)
        several = [source.find("early"), source.find("late"), source.find("later")]
        assert await asyncio.gather(*several) == [True] * 3
        assert first.done()

    source.run(main)
    assert source.begun == [0.0, LOAD_S]


def test_loads_have_an_interval() -> None:
    source = Source(interval_s=10.0)

    async def main() -> None:
        for _ in range(3):
            await source.shared.again()

    source.run(main)
    assert source.begun == [0.0, 10.0, 20.0]


def test_recent_load_is_enough_once_it_has_ended() -> None:
    source = Source(interval_s=10.0)

    async def main() -> None:
        source.stored.add("a")
        started = asyncio.ensure_future(source.shared.recent())
        await asyncio.sleep(LOAD_S / 2)
        await source.shared.recent()
        assert source.known == {"a"}
        await started
        await asyncio.sleep(5)
        await source.shared.recent()
        await asyncio.sleep(5)
        await source.shared.recent()

    source.run(main)
    assert source.begun == [0.0, LOAD_S + 10.0]


def test_failure_is_that_of_all_callers_and_not_remembered() -> None:
    source = Source()

    async def main() -> None:
        source.failure = OSError("away")
        both = await asyncio.gather(
            source.shared.again(), source.shared.again(), return_exceptions=True
        )
        assert [*both] == [source.failure] * 2
        source.failure = None
        assert await source.find("a")

    source.run(main)
    assert len(source.begun) == 2


def test_close_ends_what_is_in_progress() -> None:
    source = Source()

    async def main() -> None:
        waiting = [asyncio.ensure_future(source.shared.again())]
        await asyncio.sleep(LOAD_S / 2)
        waiting.append(asyncio.ensure_future(source.shared.again()))
        await asyncio.sleep(0)
        await source.shared.close()
        for each in waiting:
            with pytest.raises(asyncio.CancelledError):
                await each

    source.run(main)
    assert len(source.begun) == 1
