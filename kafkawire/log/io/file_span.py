"""A part of a response that is stored in a file, and sent from there without being read.

The kernel sends the pages of the file's cache themselves: until the client has read them, changing
the file changes what the client gets.

Next to buffers it stands for `len(span)` bytes. It keeps its file usable until its last holder has
released it: the response, and while it is being sent, the sender.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from kafkawire.codec.types import Part
from kafkawire.log.io.ports import File

NEAR_BYTES = 64 << 10
"""Ranges closer than this are checked for being in the page cache as one stretch: the kernel reads
ahead, and reclaims, in longer runs."""


class FileSpan:
    """`ranges` of `file`, (position, bytes), sent one after the other. `release` is called once, by
    the last `unpin`: the creator holds one pin. `failed` is called when the file cannot be read.
    All but `send` and `read` must run on the event loop."""

    __slots__ = ("_ends", "_failed", "_file", "_pins", "_ranges", "_release")

    def __init__(
        self,
        file: File,
        ranges: Sequence[tuple[int, int]],
        release: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self._file = file
        self._failed = failed
        self._ranges = ranges
        # Where each range ends in the span.
        self._ends = [*accumulate(length for _, length in ranges)]
        self._release = release
        self._pins = 1

    def __len__(self) -> int:
        return self._ends[-1]

    def pin(self) -> None:
        """Keep the file usable until one more `unpin`."""
        assert self._pins > 0, "a released span was pinned"
        self._pins += 1

    def unpin(self) -> None:
        """Release it once; the last call releases the file."""
        assert self._pins > 0, "a span was released more often than pinned"
        self._pins -= 1
        if not self._pins:
            self._release()

    def is_cached(self, start: int, length: int) -> bool:
        """Return whether sending these bytes would probably not wait for the disk."""
        first = last = -1
        for position, size in self._pieces(start, length):
            if first < 0:
                first = position
            elif not last <= position <= last + NEAR_BYTES:
                if not self._file.is_cached(last - first, first):
                    return False
                first = position
            last = position + size
        return self._file.is_cached(last - first, first)

    def send(self, socket_fd: int, start: int, length: int) -> int:
        """Send up to `length` bytes from `start` on; return how many the socket took.

        BlockingIOError if it takes none now, OSError from the socket or the disk.
        """
        sent = 0
        for position, size in self._pieces(start, length):
            try:
                taken = self._file.send(socket_fd, size, position)
                # 0 without an error is the end of the file, which must not look like a slow socket.
                if not taken:
                    raise self._report_end(position)
            # Of the socket, not of the file.
            except (BlockingIOError, ConnectionError, TimeoutError):
                if sent:
                    break  # the next call reports it
                raise
            except OSError:
                # A repeated request checks the file.
                self._failed()
                raise
            sent += taken
            if taken < size:
                break
        return sent

    def read(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start` on, for a connection that needs them in memory.
        OSError."""
        parts: list[bytes] = []
        for position, size in self._pieces(start, length):
            data = self._file.pread(size, position)
            if len(data) < size:
                self._failed()
                raise self._report_end(position + size)
            parts.append(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pieces(self, start: int, length: int) -> Iterator[tuple[int, int]]:
        """Yield (position, bytes) in the file of at most `length` bytes of the span."""
        at = bisect_right(self._ends, start)
        while length > 0 and at < len(self._ranges):
            position, size = self._ranges[at]
            left = self._ends[at] - start
            piece = min(left, length)
            yield position + size - left, piece
            start += piece
            length -= piece
            at += 1

    def _report_end(self, position: int) -> OSError:
        return OSError(errno.EIO, f"the file ends before byte {position}")


def unpin(parts: Sequence[Part]) -> None:
    """Release the spans among parts of a response that will not be sent."""
    for part in parts:
        if isinstance(part, FileSpan):
            part.unpin()
