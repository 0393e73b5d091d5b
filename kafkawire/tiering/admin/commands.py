"""The commands of `kafkawire tier` that a running broker executes, by name.

Arguments and results are plain JSON values. Queries return immediately. A scrub and a move run in
the background, at most one of each, and report their progress on request. Created by the broker,
called by the handler of the Tier API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kafkawire.log.io.ports import WorkerError
from kafkawire.objectstore.errors import StoreError
from kafkawire.tiering.admin import status
from kafkawire.tiering.cost import traffic
from kafkawire.tiering.migrate import MoveError
from kafkawire.tiering.scrub.plan import ScrubReport

if TYPE_CHECKING:
    from kafkawire.tiering.service import Tiering

Arguments = Mapping[str, Any]
Answer = dict[str, Any]


class CommandError(Exception):
    """The request is invalid or cannot be executed; the message is one sentence."""


class TierCommands:
    """The commands of `kafkawire tier` that a running broker executes."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering
        self._scrubbing: asyncio.Task[None] | None = None
        self._scrubbed: dict[str, Any] = {"state": "idle"}
        self._commands: dict[str, Callable[[Arguments], Awaitable[Answer]]] = {
            "status": self._status,
            "why": self._why,
            "cost": self._cost,
            "estimate": self._estimate,
            "move": self._move,
            "scrub": self._scrub,
        }

    async def run(self, name: str, arguments: Arguments) -> Answer:
        """Return the result of a command. Raises CommandError."""
        command = self._commands.get(name)
        if command is None:
            known = ", ".join(sorted(self._commands))
            raise CommandError(f"{name!r} is not a command of the remote tier: use one of {known}")
        try:
            return await command(arguments)
        except StoreError as failure:
            raise CommandError(f"the remote tier answered {failure}") from None

    async def _status(self, arguments: Arguments) -> Answer:
        topic, every = self._topic(arguments), arguments.get("all") is True
        return await status.status(self._tiering, topic, _after(arguments), every)

    async def _why(self, arguments: Arguments) -> Answer:
        topic, every = self._topic(arguments), arguments.get("all") is True
        return await status.why(self._tiering, topic, _after(arguments), every)

    async def _cost(self, _: Arguments) -> Answer:
        return await self._tiering.spending.report()

    async def _estimate(self, arguments: Arguments) -> Answer:
        changes, reads = arguments.get("set") or {}, arguments.get("reads")
        if not isinstance(changes, dict) or not all(isinstance(v, str) for v in changes.values()):
            raise CommandError("set: it must map setting names to text values")
        if reads is not None and not isinstance(reads, int | float):
            raise CommandError(f"reads={reads!r}: it must be a number of bytes per second")
        try:
            found = await traffic.estimates(self._tiering, self._topic(arguments), changes, reads)
        except ValueError as wrong:
            raise CommandError(str(wrong)) from None
        return {
            "now": traffic.as_values(found.now),
            "then": traffic.as_values(found.then),
            "assumed": traffic.describe_traffic(found.traffic, found.read_bytes_per_s),
            "currency": found.currency,
        }

    async def _move(self, arguments: Arguments) -> Answer:
        """Start a move to the URL `to` (empty: into the current tier) and return its progress;
        `watch`: only return the progress."""
        mover, to = self._tiering.mover, arguments.get("to") or ""
        if not isinstance(to, str):
            raise CommandError(f"to={to!r}: it must be a tier URL")
        if arguments.get("watch") is not True:
            try:
                await mover.start_move(to, arguments.get("skip_lost") is True)
            except MoveError as wrong:
                raise CommandError(str(wrong)) from None
        return mover.report_progress()

    async def _scrub(self, arguments: Arguments) -> Answer:
        """Start a scrub unless one is running; return its progress. `watch`: only that."""
        if arguments.get("watch") is not True:
            if self._scrubbing is not None and not self._scrubbing.done():
                raise CommandError("a scrub is already running")
            repair, deep = arguments.get("repair") is True, arguments.get("deep") is True
            skip_lost = arguments.get("skip_lost") is True
            if skip_lost and not repair:
                raise CommandError("skip_lost: allowed only with repair")
            self._scrubbed = {"state": "scrubbing", "what": "", "done": 0, "of": 0}
            work = self._run_scrub(repair, deep, skip_lost)
            self._scrubbing = self._tiering.env.spawn(work, "scrub the tier")
        return self._scrubbed

    async def _run_scrub(self, repair: bool, deep: bool, skip_lost: bool) -> None:
        try:
            async for reported in self._tiering.scrub(repair, deep, skip_lost):
                if isinstance(reported, ScrubReport):
                    self._scrubbed = {"state": "done", **asdict(reported)}
                else:
                    self._scrubbed = {"state": "scrubbing", **asdict(reported)}
        except (StoreError, OSError, WorkerError) as failure:
            self._scrubbed = {"state": "failed", "error": str(failure)}
        except BaseException:
            self._scrubbed = {"state": "failed", "error": "it was ended, see the broker's log"}
            raise

    async def close(self) -> None:
        if self._scrubbing is not None:
            self._scrubbing.cancel()
            await asyncio.gather(self._scrubbing, return_exceptions=True)

    def _topic(self, arguments: Arguments) -> str | None:
        topic = arguments.get("topic")
        if topic is None:
            return None
        if not isinstance(topic, str) or topic not in self._tiering.catalog.by_name:
            raise CommandError(f"topic {topic!r} does not exist")
        return topic


def _after(arguments: Arguments) -> tuple[str, int] | None:
    match arguments.get("after"):
        case None:
            return None
        case [str(topic), int(index)]:
            return topic, index
        case wrong:
            raise CommandError(f"after={wrong!r}: it must be a topic and a partition number")


__all__ = ["CommandError", "TierCommands"]
