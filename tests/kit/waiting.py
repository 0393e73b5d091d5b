"""Waiting in tests for what no message tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WITHIN_S = 60
"""For ever: nothing that is waited for takes a second, on a machine that does nothing else."""


async def until(true: Callable[[], bool], what: str = "what was waited for") -> None:
    """Let the loop run until something is so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WITHIN_S
    while not true():
        assert loop.time() < end, f"not in {WITHIN_S} s: {what}"
        await asyncio.sleep(0.001)


async def ticks(count: int = 8) -> None:
    """So many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle() -> None:
    """Let run what is ready, and what that makes ready, and so on: files in memory need no more."""
    await ticks(50)
