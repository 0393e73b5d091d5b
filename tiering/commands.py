"""The commands of `kafkawire tier` that ask or order a running broker, by name.

Arguments and answers are JSON's plain values. Questions are answered at once; scrub and move go on
in the background, one of each at a time, and are asked how far they are. Called by the handler of
the Tier API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from tiering import rates, status
from tiering.store import StoreError

if TYPE_CHECKING:
    from tiering.service import Tiering

Arguments = Mapping[str, Any]
Answer = dict[str, Any]


class CommandError(Exception):
    """It was asked wrongly, or cannot be done: one sentence."""


class Commands:
    """See the module."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering
        self._commands: dict[str, Callable[[Arguments], Awaitable[Answer]]] = {
            "status": self._status,
            "why": self._why,
            "cost": self._cost,
            "estimate": self._estimate,
        }

    async def run(self, name: str, arguments: Arguments) -> Answer:
        """The answer of a command. CommandError."""
        command = self._commands.get(name)
        if command is None:
            known = ", ".join(sorted(self._commands))
            raise CommandError(f"{name!r} is no command of the remote tier: {known} are")
        try:
            return await command(arguments)
        except StoreError as failure:
            raise CommandError(f"the remote tier answered {failure}") from None

    async def _status(self, arguments: Arguments) -> Answer:
        return await status.status(self._tiering, self._topic(arguments), _after(arguments))

    async def _why(self, arguments: Arguments) -> Answer:
        topic, every = self._topic(arguments), arguments.get("all") is True
        return await status.why(self._tiering, topic, _after(arguments), every)

    async def _cost(self, _: Arguments) -> Answer:
        return await self._tiering.spending.report()

    async def _estimate(self, arguments: Arguments) -> Answer:
        changes, reads = arguments.get("set") or {}, arguments.get("reads")
        if not isinstance(changes, dict) or not all(isinstance(v, str) for v in changes.values()):
            raise CommandError("set: it must be settings by name, as texts")
        if reads is not None and not isinstance(reads, int | float):
            raise CommandError(f"reads={reads!r}: it must be bytes a second")
        try:
            now, then, currency = await rates.estimates(
                self._tiering, self._topic(arguments), changes, reads
            )
        except ValueError as wrong:
            raise CommandError(str(wrong)) from None
        values = {"now": rates.as_values(now), "then": rates.as_values(then)}
        return {**values, "currency": currency}

    def _topic(self, arguments: Arguments) -> str | None:
        topic = arguments.get("topic")
        if topic is None:
            return None
        if not isinstance(topic, str) or topic not in self._tiering.catalog.by_name:
            raise CommandError(f"there is no topic {topic!r}")
        return topic


def _after(arguments: Arguments) -> tuple[str, int] | None:
    """Behind which partition a page begins."""
    match arguments.get("after"):
        case None:
            return None
        case [str(topic), int(index)]:
            return topic, index
        case wrong:
            raise CommandError(f"after={wrong!r}: it must be a topic and a partition of it")


__all__ = ["CommandError", "Commands"]
