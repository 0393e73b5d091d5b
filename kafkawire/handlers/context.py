"""The context of one request: its header fields, its connection and its broker.

The server makes one RequestContext per request and hands it to the handler with the decoded
message. It holds no request state: what a handler learns on the way stays in the handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kafkawire.log.io import slices

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


T = TypeVar("T")


class ClientGone(Exception):
    """The connection of a request was closed: its answer cannot be sent."""


def _nothing() -> None:
    """For requests that come from no connection (tests, the broker itself)."""


def _never() -> bool:
    """As `_nothing`."""
    return False


@dataclass(slots=True)
class RequestContext:
    """One request: its broker, header fields and the connection it came by.

    `listener` is the name of the listener, a key of `broker.listeners`; `client_host` the
    peer's address without port; `client_id` is null for clients that send none.
    """

    broker: Broker
    version: int
    client_id: str | None
    client_host: str
    listener: str
    correlation_id: int
    on_park: Callable[[], None] = field(default=_nothing, repr=False)
    is_gone: Callable[[], bool] = field(default=_never, repr=False)

    def park(self) -> None:
        """Say that this request has been applied and only waits: the next request of its
        connection may start although this one is not answered yet. May be called again."""
        self.on_park()

    async def give_way(self) -> None:
        """Let others run if this request's slice of the event loop is used up
        (kafkawire.log.io.slices).

        To be awaited between any two elements of a request or answer whose number a client
        decides. Raises ClientGone if the connection was closed meanwhile.
        """
        computing = self.broker.env.slices
        if computing.over():
            await computing.pause()
            if self.is_gone():
                raise ClientGone

    async def duplicates(self, keys: Iterable[T]) -> set[T]:
        """Return the keys that occur more than once. To be freed with `emptied`. Raises as
        `give_way`."""
        return await slices.duplicates(keys, self.give_way)

    async def counted(self, keys: Iterable[T]) -> dict[T, int]:
        """Return how often each key occurs, in the order of first occurrence. To be freed with
        `emptied`. Raises as `give_way`."""
        return await slices.counted(keys, self.give_way)

    async def emptied(self, *collections: list[Any] | set[Any] | dict[Any, Any]) -> None:
        """Remove all elements of the collections, in slices. Never raises ClientGone."""
        for collection in collections:
            await slices.emptied(collection, self.broker.env.slices.give_way)

    async def collect(self, items: Iterable[T]) -> list[T]:
        """Return the items as a list, each made in a slice. Raises as `give_way`."""
        return await slices.collect(items, self.give_way)
