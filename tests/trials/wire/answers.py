"""One request and its outcome: a response that can be decoded, or a closed connection."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass

from kafkawire.codec.compile import DecodeError, decode
from kafkawire.handlers.table import OWN_ROWS, ROWS
from kafkawire.messages.registry import response_class, spec_of
from tests.trials.link import LOST

API_VERSIONS = 18
MAX_DECODED_BYTES = 1 << 20
"""Of a longer response only the correlation id is checked: decoding it would take too much time."""
PIECE_BYTES = 1 << 20
HEAD_BYTES = 12
"""Bytes of a request up to and including its correlation id."""
VERSIONS = {row.key: (row.min_version, row.max_version) for row in (*ROWS, *OWN_ROWS)}


@dataclass(frozen=True, slots=True)
class Answer:
    """`size` bytes arrived, of which `head` are the first; `closed`: the connection was closed
    before the response was complete. Neither: nothing arrived in time."""

    size: int = 0
    head: bytes = b""
    closed: bool = False

    @property
    def complete(self) -> bool:
        """Whether the whole response arrived."""
        return self.size > 0


async def exchange(port: int, raw: bytes, within_s: float) -> Answer:
    """Send bytes and read one response; no step takes longer than `within_s`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(raw)
        await asyncio.wait_for(writer.drain(), within_s)
        (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), within_s))
        head, left = bytearray(), size
        while left > 0:
            piece = await asyncio.wait_for(reader.read(min(left, PIECE_BYTES)), within_s)
            if not piece:
                return Answer(closed=True)
            if len(head) <= MAX_DECODED_BYTES:
                head += piece
            left -= len(piece)
        return Answer(size, bytes(head))
    except TimeoutError:
        return Answer()
    except LOST:
        return Answer(closed=True)
    finally:
        writer.close()
        with contextlib.suppress(*LOST):
            await writer.wait_closed()


def fault(request: bytes, answer: Answer) -> str:
    """The defect of a complete response to a frame; empty where there is none."""
    if len(request) < HEAD_BYTES:
        return f"{len(request)} bytes are no request, and were answered"
    key, version, correlation_id = struct.unpack_from(">hhi", request, 4)
    if len(answer.head) < 4:
        return f"the answer of {answer.size} bytes has no correlation id"
    (found,) = struct.unpack_from(">i", answer.head)
    if found != correlation_id:
        return f"the answer has correlation id {found}, the request {correlation_id}"
    if key not in VERSIONS:
        return f"API {key} is not served, and was answered"
    least, most = VERSIONS[key]
    if not least <= version <= most:
        if key != API_VERSIONS:
            return f"version {version} of API {key} is not served, and was answered"
        version = 0  # KIP-511
    if answer.size > MAX_DECODED_BYTES:
        return ""
    flexible_from = spec_of(key).flexible_from
    tagged = key != API_VERSIONS and flexible_from is not None and version >= flexible_from
    try:
        decode(response_class(key), version, answer.head[5 if tagged else 4 :])
    except DecodeError as why:
        return f"the answer of {answer.size} bytes cannot be decoded: {why}"
    return ""
