"""Requests for many partitions of one group, sent to its coordinator in portions.

A coordinator decides a request at once and writes one batch for it. A request of ten thousand
partitions would block the event loop for 200 ms, so its handler divides it: each portion is
decided, appended and committed separately, in request order. If the group changes between two
portions, the later ones may be rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from kafkawire.handlers.context import RequestContext

MAX_ENTRIES = 128
"""Partitions decided at once: two milliseconds if each becomes a record."""

MAX_UNDECIDED = 32
"""Portions whose responses are awaited together, so that one commit covers many of them, and their
memory is bounded."""

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")


class Portions(Generic[Entry, Answer]):
    """Sends the entries of one request to the coordinator.

    `ask` sends a list of entries, `answered` is called with each list and its response, in order.
    After `answered` returns False nothing more is sent.
    """

    def __init__(
        self,
        ctx: RequestContext,
        ask: Callable[[list[Entry]], asyncio.Future[Answer]],
        answered: Callable[[list[Entry], Answer], bool],
    ) -> None:
        self._ctx = ctx
        self._ask = ask
        self._answered = answered
        self._open: list[Entry] = []
        self._asked: list[tuple[list[Entry], asyncio.Future[Answer]]] = []
        self.refused = False

    async def add(self, entry: Entry) -> None:
        """Add an entry; may send a portion and wait for earlier responses."""
        if self.refused:
            await self._ctx.give_way()
            return
        self._open.append(entry)
        # Without a pause before: adding so many takes some tenths of a millisecond.
        if len(self._open) >= MAX_ENTRIES:
            entries, self._open = self._open, []
            self._asked.append((entries, self._ask(entries)))
            await self._ctx.broker.env.slices.pause()  # requests of one iteration share a batch
            if len(self._asked) >= MAX_UNDECIDED:
                await self._wait()

    async def send_rest(self, *, always: bool) -> None:
        """Send the rest and wait for all responses. `always`: send even without an entry."""
        if not self.refused and (self._open or (always and not self._asked)):
            self._asked.append((self._open, self._ask(self._open)))
        for _, answer in self._asked:
            if not answer.done():
                self._ctx.park()  # all is applied: the connection's next request may start
                break
        await self._wait()

    async def _wait(self) -> None:
        asked, self._asked = self._asked, []
        for entries, answer in asked:
            found = await answer
            if not self.refused:
                self.refused = not self._answered(entries, found)
            if len(entries) >= MAX_ENTRIES:  # others may follow
                await self._ctx.give_way()
