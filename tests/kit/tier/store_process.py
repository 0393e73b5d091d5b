"""A storage process over a folder: stop and continue it, and begin many calls at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kafkawire.objectstore.url import parse_tier
from kafkawire.tiering.store.process import StoreProcess

MEMORY_BYTES = 1 << 20


@pytest.fixture(name="store")
async def folder_process(tmp_path: Path) -> AsyncIterator[StoreProcess]:
    made = StoreProcess(parse_tier(f"{tmp_path}/tier"), MEMORY_BYTES)
    yield made
    await made.close()


async def stopped(store: StoreProcess) -> int:
    """Stop the child process; yield its process id, with which a test continues it."""
    await store.put("k", bytes(range(100)))
    pid = store.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def begun(*coroutines: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(coroutine) for coroutine in coroutines]


async def short_pause() -> None:
    """Wait long enough for everything that needs no further event."""
    for _ in range(20):
        await asyncio.sleep(0.001)
