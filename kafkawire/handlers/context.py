"""The context of one request: its header fields, its connection and its broker.

The server creates one RequestContext per request and passes it to the handler with the decoded
message. It has no request state; that is local to the handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kafkawire.log.io import slices
from kafkawire.log_lines import shown
from kafkawire.security.principals import ANONYMOUS, Principal

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


T = TypeVar("T")


class ClientGone(Exception):
    """The connection of a request was closed, so its response cannot be sent."""


def _nothing() -> None:
    """Do nothing; for requests without a connection (tests, the broker itself)."""


def _never() -> bool:
    """Return False; for requests without a connection."""
    return False


@dataclass(slots=True)
class RequestContext:
    """One request: its broker, header fields and connection.

    `listener` is the name of the listener, a key of `broker.listeners`; `client_host` the
    peer's address without port; `client_id` is null for clients that send none; `principal` is
    the client as it was identified when the request was received.
    """

    broker: Broker
    version: int
    client_id: str | None
    client_host: str
    listener: str
    correlation_id: int
    on_park: Callable[[], None] = field(default=_nothing, repr=False)
    is_gone: Callable[[], bool] = field(default=_never, repr=False)
    principal: Principal = ANONYMOUS

    @property
    def sender(self) -> str:
        """The client and its address, for log lines."""
        client = "a client" if self.client_id is None else f"client {shown(self.client_id)}"
        return f"{client} at {self.client_host}"

    def park(self) -> None:
        """Mark this request as applied and only waiting: the next request of its connection may
        start before this one is answered. May be called again."""
        self.on_park()

    async def give_way(self) -> None:
        """Yield to other tasks if this request's time slice is used up (kafkawire.log.io.slices).

        Awaited between any two elements of a request or response whose number depends on the
        client. Raises ClientGone if the connection was closed meanwhile.
        """
        computing = self.broker.env.slices
        if computing.over():
            await computing.pause()
            if self.is_gone():
                raise ClientGone

    async def duplicates(self, keys: Iterable[T]) -> set[T]:
        """Return the keys that occur more than once. Free the result with `emptied`. Raises like
        `give_way`."""
        return await slices.duplicates(keys, self.give_way)

    async def counted(self, keys: Iterable[T]) -> dict[T, int]:
        """Return how often each key occurs, in the order of first occurrence. Free the result with
        `emptied`. Raises like `give_way`."""
        return await slices.counted(keys, self.give_way)

    async def emptied(self, *collections: list[Any] | set[Any] | dict[Any, Any]) -> None:
        """Remove all elements of the collections, in slices. Never raises ClientGone."""
        for collection in collections:
            await slices.emptied(collection, self.broker.env.slices.give_way)

    async def collect(self, items: Iterable[T]) -> list[T]:
        """Return the items as a list, created in slices. Raises like `give_way`."""
        return await slices.collect(items, self.give_way)
