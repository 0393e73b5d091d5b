"""Bodies of S3 responses, read incrementally."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import StoreError

if TYPE_CHECKING:
    from botocore.response import StreamingBody

READ_CHUNK_BYTES = 256 << 10
"""Bytes read of a body at a time: small enough for the allocator's pool."""


class Stream:
    """An open body with `read`, independent of boto3."""

    __slots__ = ("_body", "_call")

    def __init__(self, body: Any, call: Call) -> None:
        self._body = body
        self._call = call

    def read(self, size: int = -1, /) -> bytes:
        self._call.check()
        data: bytes = self._body.read(size if size >= 0 else None)
        return data


def fill(body: StreamingBody, view: memoryview, call: Call) -> None:
    while view:
        call.check()
        count = body.readinto(view[:READ_CHUNK_BYTES])  # type: ignore[arg-type]
        if not count:
            raise StoreError("IncompleteRead", f"the answer ended {len(view)} bytes too early")
        view = view[count:]


def ender(body: StreamingBody) -> Callable[[], None]:
    """Interrupts a blocked read: no more bytes will arrive."""
    shutdown = getattr(getattr(body, "_raw_stream", None), "shutdown", None)

    def end() -> None:
        if shutdown is not None:
            with contextlib.suppress(Exception):  # already done
                shutdown()

    return end


def range_of(start: int, length: int | None) -> dict[str, str]:
    if start < 0:
        return {"Range": f"bytes={start}"}
    if length is None:
        return {"Range": f"bytes={start}-"} if start else {}
    return {"Range": f"bytes={start}-{start + length - 1}"}
