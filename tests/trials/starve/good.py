"""The well-behaved client of a starve trial: small requests, one after the other, all answered."""

from __future__ import annotations

import asyncio
import time

from tests.trials.context import Context
from tests.trials.flip.base import produce
from tests.trials.kill.world import Topic
from tests.trials.link import LOST, Link, Unanswered, fetch, link
from tests.trials.records import Outgoing, read

PATIENCE_S = 30.0
"""Limit for one small response on a loaded machine: without its bounds a broker needs minutes, or
runs out of memory."""
PAUSE_S = 0.02


class Good:
    """Produces to `new` and reads it back, and reads old records of `old`, until stopped."""

    def __init__(self, context: Context, port: int, new: Topic, old: Topic) -> None:
        self.context, self.port, self.new, self.old = context, port, new, old
        self.stop = asyncio.Event()
        self.served = 0
        self.slowest_s = 0.0
        self._uid = 1 << 40

    async def run(self) -> None:
        """Serve one connection over the whole round; losing it is a finding, and a new one is
        opened."""
        while not self.stop.is_set():
            try:
                async with link(self.port, "good") as client:
                    await self._exchanges(client)
            except (Unanswered, *LOST) as why:
                if not self.stop.is_set():
                    self.context.broken(f"the well-behaved client is not served: {why!r}")
                    await asyncio.sleep(1.0)

    async def _exchanges(self, client: Link) -> None:
        while not self.stop.is_set():
            begun = time.monotonic()
            await self._exchange(client)
            took = time.monotonic() - begun
            self.slowest_s = max(self.slowest_s, took)
            self.context.check(
                took < PATIENCE_S,
                "exchanges of the well-behaved client",
                f"the well-behaved client waited {took:.0f} s for three small answers",
            )
            self.served += 1
            await asyncio.sleep(PAUSE_S)

    async def _exchange(self, client: Link) -> None:
        """Produce, read it back, and read an old record."""
        self._uid += 1
        row = Outgoing(self._uid, b"k", b"v" * 100)
        offset = await produce(client, self.new, 0, [row])
        if offset < 0:
            self.context.broken(f"a small produce is refused with {-1 - offset}")
            return
        found = await fetch(client, self.new.id, 0, offset, max_bytes=4096)
        uids = [record.uid for record in read(bytes(found.records or b""))]
        if self._uid not in uids:
            self.context.broken(f"what was produced is not read back: error {found.error_code}")
        old = await fetch(client, self.old.id, 0, self.served % 10, max_bytes=4096)
        if old.error_code or not old.records:
            self.context.broken(f"an old record is not served: error {old.error_code}")
