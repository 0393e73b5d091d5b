"""A storage process over a folder: stopped and gone on with, many calls begun at once."""

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
    """The child's process id; it does nothing until it is told to go on."""
    await store.put("k", bytes(range(100)))
    pid = store.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


def begun(*coroutines: Any) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(coroutine) for coroutine in coroutines]


async def turns() -> None:
    """Time enough for whatever can happen by itself."""
    for _ in range(20):
        await asyncio.sleep(0.001)
