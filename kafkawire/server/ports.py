"""Ports of the receiving part of a connection: its socket and the shared state.

Protocols only, implemented by `server.listener`, `server.host` and tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.types import Buffer
from kafkawire.log.io.file_span import FileSpan
from kafkawire.metric_counters import Counts

if TYPE_CHECKING:
    from kafkawire.server.memory import Memory


class Wire(Protocol):
    """The socket as used by a connection.

    `send_file` is called when everything before has left. It returns whether the whole span has
    left; otherwise `Connection.resume_writing` is called when it has, or the socket is closed.
    """

    def send_file(self, span: FileSpan) -> bool: ...
    def write(self, parts: list[Buffer]) -> None: ...
    def unsent_bytes(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str | None) -> None: ...


class ReceivingHost(Protocol):
    """The shared state that the receiving part of a connection uses; `tick` counts seconds.
    `received_much` is called after a read if the arena has many bytes in use."""

    memory: Memory
    tick: int
    counts: Counts

    def received_much(self) -> None: ...
