"""A part of a response that is stored in a file, and sent from there without being read.

Next to buffers it stands for `len(span)` bytes. It keeps its file usable until its last holder has
released it: the response, and while it is being sent, the sender.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from kafkawire.codec.types import Part
from kafkawire.log.io.ports import File


class FileSpan:
    """`size_bytes` bytes of `file` at `position`. `release` is called once, by the last `unpin`:
    the creator holds one pin. `failed` is called when the file cannot be read. All but `send` and
    `read` must run on the event loop."""

    __slots__ = ("_failed", "_file", "_pins", "_release", "_size_bytes", "position")

    def __init__(
        self,
        file: File,
        position: int,
        size_bytes: int,
        release: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self._file = file
        self._failed = failed
        self._size_bytes = size_bytes
        self._release = release
        self._pins = 1
        self.position = position

    def __len__(self) -> int:
        return self._size_bytes

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
        return self._file.is_cached(min(length, self._size_bytes - start), self.position + start)

    def send(self, socket_fd: int, start: int, length: int) -> int:
        """Send up to `length` bytes from `start` on; return how many the socket took.

        BlockingIOError if it takes none now, OSError from the socket or the disk.
        """
        length = min(length, self._size_bytes - start)
        try:
            sent = self._file.send(socket_fd, length, self.position + start)
            # 0 without an error is the end of the file, which must not look like a slow socket.
            if not sent and length:
                raise OSError(errno.EIO, f"the file ends before byte {self.position + start}")
        # Of the socket, not of the file.
        except (BlockingIOError, ConnectionError, TimeoutError):
            raise
        except OSError:
            # A repeated request checks the file.
            self._failed()
            raise
        return sent

    def read(self, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start` on, for a connection that needs them in memory.
        OSError."""
        length = min(length, self._size_bytes - start)
        data = self._file.pread(length, self.position + start)
        if len(data) < length:
            self._failed()
            raise OSError(errno.EIO, f"the file ends before byte {self.position + start + length}")
        return data


def unpin(parts: Sequence[Part]) -> None:
    """Release the spans among parts of a response that will not be sent."""
    for part in parts:
        if isinstance(part, FileSpan):
            part.unpin()
