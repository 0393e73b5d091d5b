"""A handler whose responses have spans of a file."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from kafkawire.codec.types import Part
from kafkawire.handlers.exchange import Exchange, Pinned
from kafkawire.log.io.file_span import FileSpan, unpin
from tests.kit.memfs import MemFileSystem

DATA = random.Random(3).randbytes(50_000)


class FromFile:
    """A hot handler: the body of a request is the seed of a response with spans; `hold` keeps
    requests unanswered."""

    def __init__(self, seed: int = 0, *, hold: bool = False) -> None:
        fs = MemFileSystem()
        fs.makedirs("/d")
        self.file = fs.open("/d/f", create=True)
        self.file.pwritev([DATA], 0)
        self.rng = random.Random(seed)
        self.hold = hold
        self.held: list[Exchange] = []
        self.made = self.released = 0
        self.expected: dict[int, bytes] = {}

    def start(
        self,
        peer: Any,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        exchange = Exchange(peer, version, correlation_id, False)
        peer.exchanges.append(exchange)
        if self.hold:
            self.held.append(exchange)
        else:
            self.answer(exchange)
        return True

    def answer(self, exchange: Exchange) -> None:
        """Answer with heads and spans in any order."""
        parts: list[Part] = []
        spans: list[FileSpan] = []
        body = b""
        for _ in range(self.rng.randrange(1, 5)):
            if self.rng.random() < 0.5:
                head = self.rng.randbytes(self.rng.randrange(1, 300))
                parts.append(head)
                body += head
            else:
                start = self.rng.randrange(len(DATA))
                size = self.rng.randrange(1, len(DATA) - start + 1)
                spans.append(FileSpan(self.file, [(start, size)], self.release, self.release))
                parts.append(spans[-1])
                body += DATA[start : start + size]
        self.made += len(spans)
        self.expected[exchange.correlation_id] = body
        if spans:
            exchange.answer_parts(parts, partial(unpin, spans), len(spans))
        else:
            exchange.answer_parts(parts)

    def release(self) -> None:
        self.released += 1

    def close(self) -> None:
        pass
