"""What one request knows about itself and its broker.

The server makes one RequestContext per request and hands it to the handler with the decoded
message. It holds no request state: what a handler learns on the way stays in the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker


def _nothing() -> None:
    """For requests that come from no connection (tests, the broker itself)."""


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

    def park(self) -> None:
        """Say that this request has been applied and only waits: the next request of its
        connection may start although this one is not answered yet. May be called again."""
        self.on_park()
