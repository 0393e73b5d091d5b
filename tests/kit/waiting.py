"""Waiting for conditions in tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
WITHIN_S = 120
"""Far longer than needed: no condition takes a second on an idle machine."""


async def until(true: Callable[[], bool], what: str = "what was waited for") -> None:
    """Let the loop run until a condition holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WITHIN_S
    while not true():
        assert loop.time() < end, f"not in {WITHIN_S} s: {what}"
        await asyncio.sleep(0.001)


def wait_until(true: Callable[[], T], what: str | Callable[[], str]) -> T:
    """Wait until a condition holds, in tests without a loop; return its value, which is true.
    `what`: a description for the failure, or a function that returns it."""
    end = time.monotonic() + WITHIN_S
    while not (found := true()):
        waited = what if isinstance(what, str) else what()
        assert time.monotonic() < end, f"not in {WITHIN_S} s: {waited}"
        time.sleep(0.1)
    return found


async def ticks(count: int = 8) -> None:
    """Run this many event-loop iterations."""
    for _ in range(count):
        await asyncio.sleep(0)


async def no_wait() -> None:
    """Give way to nothing: a sliced computation then runs in one step."""


async def settle() -> None:
    """Run ready callbacks, those they make ready, and so on: enough for files in memory."""
    await ticks(50)
