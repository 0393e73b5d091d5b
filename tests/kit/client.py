"""An asyncio client over our own codec, for tests that run a broker in the same loop.

It speaks any version of any API, pipelines on request, and can send raw bytes: a broker must also
withstand what real clients never do.
"""

from __future__ import annotations

import asyncio
import ssl
from struct import pack, unpack
from typing import Any, Self

from kafkawire.codec.batches import build
from kafkawire.codec.compile import decode, encode
from kafkawire.messages.registry import APIS, response_class


class Client:
    """One connection. `await Client.connect(port)`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.client_id = client_id
        self.sent: list[tuple[int, int, int]] = []  # (correlation id, key, version)
        self.next_id = 1

    @classmethod
    async def connect(
        cls,
        port: int,
        client_id: str = "test",
        host: str = "",
        context: ssl.SSLContext | None = None,
    ) -> Self:
        """`host`: the address that the client has. `context`: of a client with TLS."""
        local = (host, 0) if host else None
        name = "localhost" if context else None
        opened = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=local, ssl=context, server_hostname=name
        )
        return cls(*opened, client_id)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    def send(self, request: Any, version: int, *, answered: bool = True) -> int:
        """Send without waiting; `receive` returns the responses in the same order."""
        key = _key(type(request))
        flexible_from = APIS[key].flexible_from
        flexible = flexible_from is not None and version >= flexible_from
        correlation, self.next_id = self.next_id, self.next_id + 1
        raw_id = self.client_id.encode()
        head = pack(">hhih", key, version, correlation, len(raw_id)) + raw_id
        if flexible:
            head += b"\0"
        body = head + encode(request, version)
        self.writer.write(pack(">i", len(body)) + body)
        if answered:
            self.sent.append((correlation, key, version))
        return correlation

    async def receive(self) -> Any:
        """The next response, decoded; correlation ids must be in order."""
        (size,) = unpack(">i", await self.reader.readexactly(4))
        raw = await self.reader.readexactly(size)
        correlation, key, version = self.sent.pop(0)
        assert unpack(">i", raw[:4])[0] == correlation
        flexible_from = APIS[key].flexible_from
        skip = 4
        if key != 18 and flexible_from is not None and version >= flexible_from:
            skip = 5
        return decode(response_class(key), version, raw[skip:])

    async def call(self, request: Any, version: int) -> Any:
        """Send one request and wait for its response."""
        self.send(request, version)
        await self.writer.drain()
        return await self.receive()


def _key(cls: type) -> int:
    for key, spec in APIS.items():
        if cls.__name__ == f"{spec.name}Request":
            return key
    raise AssertionError(f"{cls.__name__} is not a request")


def batch(*values: bytes, timestamp_ms: int = 1_000, **fields: Any) -> bytes:
    """A record batch of `values` without keys, as a client sends it."""
    return bytes(build([(None, value) for value in values], timestamp_ms=timestamp_ms, **fields))
