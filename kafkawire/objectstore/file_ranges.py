"""Objects that consist of ranges of local files: frames of journals that become a log object."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import ExitStack
from os import pread
from typing import BinaryIO

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.port import MAX_GET_BYTES, FileRange, Stored, Writer
from kafkawire.own_files import open_own

ALIGNMENT = 8
"""Ranges are padded to a multiple of this, as frames of journals are."""
MAX_RANGES = 10_000
"""Maximum number of ranges of an object: their message to the storage process takes 3 ms of the
event loop."""


def check_ranges(head: bytes, ranges: Sequence[FileRange]) -> int:
    """Return the size of the object of these ranges. Raises ValueError if a range is invalid, or
    there are too many or too large ones to be read back at once."""
    if len(ranges) > MAX_RANGES:
        raise ValueError(f"an object of {len(ranges)} ranges: at most {MAX_RANGES} are allowed")
    size = len(head)
    for path, start, length in ranges:
        if start < 0 or length <= 0:
            raise ValueError(f"{length} bytes from {start} on are no range of {path}")
        size += length + -length % ALIGNMENT
    if size > MAX_GET_BYTES:
        raise ValueError(f"an object of {size} bytes: at most {MAX_GET_BYTES} are allowed")
    return size


def put_ranges(
    writer: Writer, key: str, head: bytes, ranges: Sequence[FileRange], call: Call
) -> Stored:
    """Store `head` and the ranges as one object, if there is none; see
    kafkawire.tiering.store.port."""
    return writer.put(key, read_ranges(head, ranges, call), None, True, call)


def read_ranges(head: bytes, ranges: Sequence[FileRange], call: Call) -> bytes:
    """Return `head` and the ranges, each padded. Raises OSError, also if a file is shorter than its
    range, and ValueError as `check_ranges`."""
    check_ranges(head, ranges)
    parts = [head]
    files: dict[str, BinaryIO] = {}
    with ExitStack() as opened:
        for path, start, length in ranges:
            call.check()
            file = files.get(path)
            if file is None:
                file = files[path] = opened.enter_context(
                    open(path, "rb", buffering=0, opener=open_own)
                )
            data = pread_all(file.fileno(), length, start)
            if len(data) < length:
                text = f"the file ends at {start + len(data)}, before byte {start + length}"
                raise OSError(errno.EIO, text, path)
            parts += (data, bytes(-length % ALIGNMENT))
    return b"".join(parts)


def pread_all(descriptor: int, length: int, start: int) -> bytes:
    """Read this many bytes; fewer at the end of the file. One system call reads up to 2 GiB."""
    data = pread(descriptor, length, start)
    while data and len(data) < length:
        more = pread(descriptor, length - len(data), start + len(data))
        if not more:
            break
        data += more
    return data
