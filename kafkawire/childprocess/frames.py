"""Messages between a process and its child: pickles, each in a frame with its length before it.

Both ends are the same program of the same installation, so pickle is no danger and no version is
needed.
"""

from __future__ import annotations

import os
import pickle
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import StreamReader

LENGTH = Struct(">I")
MAX_FRAME_BYTES = 256 << 20
"""The largest `get` of an object and a little; a job of ten thousand partitions with a thousand
idempotent producers each would be larger, and can be asked for in parts. What claims to be larger
is no frame."""
JOINED_BYTES = 1 << 16
"""Bodies below this are written together with their length, by one call."""


class FrameError(ValueError):
    """A message is too large, or what came is no frame."""


def pack(message: object) -> tuple[bytes, bytes]:
    """Return length and body of a frame. FrameError if it is too large."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a message of {len(body)} bytes to a child process is too large: {MAX_FRAME_BYTES} "
            "are allowed"
        )
    return LENGTH.pack(len(body)), body


async def receive(stream: StreamReader) -> bytes:
    """Return the body of the next frame. IncompleteReadError at the end, FrameError."""
    (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"one of {length} bytes")
    return await stream.readexactly(length)


def read_frame(fd: int) -> bytes | None:
    """Return the body of the next frame of a pipe; None at its end, or where there is none."""
    head = _read_exactly(fd, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    return _read_exactly(fd, length) if length <= MAX_FRAME_BYTES else None


def write_frame(fd: int, head: bytes, body: bytes) -> None:
    """Write a frame into a pipe, all of it."""
    if len(body) < JOINED_BYTES:
        _write_all(fd, head + body)
    else:
        _write_all(fd, head)
        _write_all(fd, body)


def _read_exactly(fd: int, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        part = os.read(fd, min(length - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
