"""Write many buffers at one position of a file, whole or not at all.

It is one call of pwritev if that takes all of them, else several.
"""

from __future__ import annotations

import errno
from typing import Final

from kafkawire.log.io.ports import Buffer, File

MAX_IOV: Final = 1000
"""Buffers per pwritev: Linux takes 1024 (IOV_MAX)."""
MAX_WRITE_BYTES: Final = 1 << 30
"""Bytes per pwritev: Linux takes 2 GiB less a page and writes less if asked for more."""


def write_whole(file: File, buffers: list[Buffer], position: int, length: int) -> None:
    """Write all buffers at `position`, or raise OSError (then some may have been written)."""
    if len(buffers) <= MAX_IOV and length <= MAX_WRITE_BYTES:
        written = file.pwritev(buffers, position)
    else:
        written = _write_chunks(file, buffers, position)
    if written != length:
        raise OSError(errno.ENOSPC, f"short write: {written} of {length} bytes")


def _write_chunks(file: File, buffers: list[Buffer], position: int) -> int:
    written = 0
    start = 0
    while start < len(buffers):
        stop, size = start, 0
        while stop < len(buffers) and stop - start < MAX_IOV:
            more = len(buffers[stop])
            # At least one buffer, even a larger one: pwritev then writes less, which is an error.
            if size + more > MAX_WRITE_BYTES and stop > start:
                break
            size += more
            stop += 1
        done = file.pwritev(buffers[start:stop], position + written)
        written += done
        # A short write: what follows would leave a gap.
        if done != size:
            break
        start = stop
    return written
