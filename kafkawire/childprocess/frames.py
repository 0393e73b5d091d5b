"""Messages between a process and its child: length-prefixed pickles.

Both processes run the same installation, so pickle is safe and no version is needed.
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
"""Maximum size: an object read by `get` and a little more. Larger jobs (ten thousand partitions
with a thousand idempotent producers each) are split. A larger length means a malformed frame."""
JOINED_BYTES = 1 << 16
"""Bodies below this are written together with their length in one call."""


class FrameError(ValueError):
    """A message is too large, or a frame is malformed."""


def pack(message: object) -> tuple[bytes, bytes]:
    """Return length and body of a frame. Raises FrameError if it is too large."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a message of {len(body)} bytes to a child process is too large: {MAX_FRAME_BYTES} "
            "are allowed"
        )
    return LENGTH.pack(len(body)), body


async def receive(stream: StreamReader) -> bytes:
    """Return the body of the next frame. Raises IncompleteReadError at the end, FrameError."""
    (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"one of {length} bytes")
    return await stream.readexactly(length)


def read_frame(fd: int) -> bytes | None:
    """Return the body of the next frame of a pipe; None at its end or if it is malformed."""
    head = _read_exactly(fd, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    return _read_exactly(fd, length) if length <= MAX_FRAME_BYTES else None


def write_frame(fd: int, head: bytes, body: bytes) -> None:
    """Write a whole frame to a pipe."""
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
