"""Files as jobs read them: in large pieces first, then through a mapping.

A job reads through a mapping, so nothing is copied and its own memory stays small. But a page that
the disk cannot give would end the process, and single pages are slow: so it first reads each range
with plain calls. Under memory pressure bytes may be read twice; that costs time only.
"""

from __future__ import annotations

import errno

from kafkawire.log.io.ports import FileSystem
from kafkawire.log.io.worker_jobs import Pace

PIECE_BYTES = 1 << 20
"""Bytes read in one call: enough for the full speed of a disk, and little memory."""
SMALL_PIECE_BYTES = 1 << 16
"""Bytes of one call after a read that failed, to find the unreadable range."""


class MappedFile:
    """A file whose first `size_bytes` (None: all) can be read through `view`.

    OSError if it is shorter. Call `read_ahead` before using `view`: the docstring of the module
    says why.
    """

    __slots__ = ("_file", "path", "view")

    def __init__(self, fs: FileSystem, path: str, size_bytes: int | None = None) -> None:
        self.path = path
        self._file = fs.open(path)
        size = self._file.size()
        # Reading a mapping beyond the end of the file would end the process.
        if size_bytes is not None and size < size_bytes:
            self._file.close()
            raise OSError(errno.EIO, f"it has {size} bytes and should have {size_bytes}", path)
        self.view = self._file.map(size if size_bytes is None else size_bytes)

    def read_ahead(self, start: int, stop: int, pace: Pace) -> list[tuple[int, int]]:
        """Read the bytes [start, stop) into the page cache; return the ranges that cannot be
        read."""
        bad: list[tuple[int, int]] = []
        for at in range(start, stop, PIECE_BYTES):
            end = min(at + PIECE_BYTES, stop)
            try:
                # Raises an error for what cannot be read, and leaves the rest in the page cache.
                self._file.pread(end - at, at)
            except OSError:
                bad += self._bad_ranges(at, end)
            pace(end - at)
        return bad

    def _bad_ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        bad = []
        # Again in small pieces, so that few bytes are given up.
        for at in range(start, stop, SMALL_PIECE_BYTES):
            end = min(at + SMALL_PIECE_BYTES, stop)
            try:
                self._file.pread(end - at, at)
            except OSError:
                bad.append((at, end))
        return bad

    def need(self, start: int, stop: int, pace: Pace) -> memoryview:
        """Return the bytes [start, stop), read ahead. Raises OSError that names the first byte that
        cannot be read."""
        for at, _ in self.read_ahead(start, stop, pace):
            raise OSError(errno.EIO, f"cannot read at byte {at}", self.path)
        return self.view[start:stop]

    def close(self) -> None:
        self._file.close()
