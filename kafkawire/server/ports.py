"""Ports of the receiving half of a connection: its socket and the state all connections share.

Protocols only. `server.listener` and `server.host` are the real ones, tests have their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.counts import Counts
from kafkawire.codec.types import Buffer

if TYPE_CHECKING:
    from kafkawire.server.memory import Memory


class Wire(Protocol):
    """The socket as a connection sees it."""

    def write(self, parts: list[Buffer]) -> None: ...
    def unsent_bytes(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str | None) -> None: ...


class ReceivingHost(Protocol):
    """State that the receiving half of a connection shares with those of others; `tick` counts
    seconds."""

    memory: Memory
    tick: int
    counts: Counts
