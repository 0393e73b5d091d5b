"""The network of one transactional client of a trial: sockets, and the clock of the machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from tests.kit.exactly_once.producer import Lost
from tests.trials.link import LOST, Link

RECONNECT_S = 0.1


class RealNet:
    """A Net over sockets. `port`: of the broker that runs now, 0 while none does. `now` is the
    monotonic clock, which all processes of a machine share."""

    def __init__(self, port: Callable[[], int], rng: Random) -> None:
        self.rng = rng
        self._port = port
        self._link: Link | None = None

    def now(self) -> float:
        return time.monotonic()

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, request: Any, version: int) -> Any:
        """Send a request; raises Lost, and Unanswered of tests.trials.link."""
        link = self._link
        try:
            if link is None:
                link = self._link = await Link.connect(self._port(), "transactions")
            return await link.call(request, version)
        except LOST as why:
            self._link = None
            if link is not None:
                with suppress(*LOST):
                    link.writer.close()
            await asyncio.sleep(RECONNECT_S)
            raise Lost(str(why)) from None

    async def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(*LOST):
                await link.close()
