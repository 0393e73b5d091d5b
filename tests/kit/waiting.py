"""Waiting in tests for what no message tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
WITHIN_S = 60
"""For ever: nothing that is waited for takes a second, on a machine that does nothing else."""


async def until(true: Callable[[], bool], what: str = "what was waited for") -> None:
    """Let the loop run until something is so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WITHIN_S
    while not true():
        assert loop.time() < end, f"not in {WITHIN_S} s: {what}"
        await asyncio.sleep(0.001)


def wait_until(true: Callable[[], T], what: str) -> T:
    """The same for tests without a loop; what it was, which is true."""
    end = time.monotonic() + WITHIN_S
    while not (found := true()):
        assert time.monotonic() < end, f"not in {WITHIN_S} s: {what}"
        time.sleep(0.1)
    return found


async def ticks(count: int = 8) -> None:
    """So many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle() -> None:
    """Let run what is ready, and what that makes ready, and so on: files in memory need no more."""
    await ticks(50)
