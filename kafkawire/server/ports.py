"""Ports of a connection: its socket (Wire) and the state all connections share (ConnectionHost).

Protocols only. `server.listener` and `server.host` are the real ones, tests have their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kafkawire.codec.counts import Counts
from kafkawire.codec.types import Buffer

if TYPE_CHECKING:
    from kafkawire.broker.answer_memory import AnswerMemory
    from kafkawire.handlers.exchange import Exchange
    from kafkawire.handlers.table import Api
    from kafkawire.server.connection import Connection
    from kafkawire.server.memory import Block, Memory


class Wire(Protocol):
    """The socket as a connection sees it."""

    def write(self, parts: list[Buffer]) -> None: ...
    def unsent_bytes(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str | None) -> None: ...


class ConnectionHost(Protocol):
    """State and bounds that all connections of a server share.

    `frame_bytes_max` is the largest request; `applying_bytes_max` the Produces of one connection
    that are not written yet, and the bytes of its answers that have not left.
    """

    memory: Memory
    answers: AnswerMemory
    apis: dict[int, Api]
    frame_bytes_max: int
    applying_bytes_max: int
    tick: int
    counts: Counts

    def serve(
        self, connection: Connection, exchange: Exchange, api: Api, block: Block, body: Buffer
    ) -> None: ...
    def unsupported(self, exchange: Exchange, key: int, version: int) -> bool: ...
    def log_defect(self, connection: Connection, what: str) -> None: ...
    def flush_soon(self, connection: Connection) -> None: ...
    def flush_all(self) -> None: ...
    def call_soon(self, fn: Callable[[], None], /) -> object: ...
