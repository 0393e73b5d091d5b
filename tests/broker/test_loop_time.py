"""The measuring event loop: the CPU time that it counts and that it excludes."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from tests.kit.loop_time import MeasuredLoop, MeasuredSelector

SIZE = 50_000_000


def burn(cpu_s: float) -> None:
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


@pytest.mark.slow
def test_work_is_counted_without_copies_of_transport() -> None:
    async def write(computed_s: float) -> float:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with near, far:
            near.setblocking(False)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            await asyncio.sleep(0)
            selector.longest_s = 0.0
            transport.writelines([bytes(SIZE // 10)] * 10)
            burn(computed_s)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            transport.abort()
            await asyncio.sleep(0)
        return selector.longest_s

    selector = MeasuredSelector()
    loop = MeasuredLoop(selector)
    try:
        idle, busy = loop.run_until_complete(write(0)), loop.run_until_complete(write(0.05))
    finally:
        loop.close()
    assert busy >= 0.05
    assert idle < busy / 2
