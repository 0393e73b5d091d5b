"""Requests about many partitions of one group, asked of its coordinator a portion at a time.

A coordinator decides a request in one go and stores what it decides as one batch. A request of
ten thousand partitions would hold the event loop for 200 ms, so its handler divides it: each
portion is decided, appended and committed by itself, in the order of the request. A change of
the group between two portions refuses the later ones, with the code that the request would have
been refused with had it come then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from kafkawire.handlers.context import RequestContext

MAX_ENTRIES = 128
"""Partitions that are decided at once: two milliseconds where each becomes a record."""

MAX_UNDECIDED = 32
"""Portions whose answers are waited for together: while one commit covers many of them, none
waits for a commit of its own, and what they hold stays small."""

Entry = TypeVar("Entry")
Answer = TypeVar("Answer")


class Portions(Generic[Entry, Answer]):
    """Entries of one request on their way to the coordinator.

    `ask` sends a list of entries, `answered` is called with each list and its answer, in order.
    Once `answered` returns False nothing more is asked.
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
        """Take one entry; may ask, and wait for earlier answers."""
        if self.refused:
            await self._ctx.give_way()
            return
        self._open.append(entry)
        if len(self._open) >= MAX_ENTRIES:
            await self._send()
        else:
            await self._ctx.give_way()

    async def _send(self) -> None:
        entries, self._open = self._open, []
        self._asked.append((entries, self._ask(entries)))
        await self._ctx.broker.env.slices.pause()  # what is asked in one iteration is stored in one
        if len(self._asked) >= MAX_UNDECIDED:
            await self._wait()

    async def end(self, *, always: bool) -> None:
        """Ask for the rest and wait for all answers. `always`: ask even if there was no entry."""
        if not self.refused and (self._open or (always and not self._asked)):
            self._asked.append((self._open, self._ask(self._open)))
        if any(not answer.done() for _, answer in self._asked):
            self._ctx.park()  # all is applied: what follows on this connection may start
        await self._wait()

    async def _wait(self) -> None:
        asked, self._asked = self._asked, []
        for entries, answer in asked:
            found = await answer
            if not self.refused:
                self.refused = not self._answered(entries, found)
            await self._ctx.give_way()
