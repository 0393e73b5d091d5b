"""The calls of the operating system that a follower makes: files, folders, locks, the clock.

A device: no other module of this package opens or syncs a file. Tests replace `Files` with files in
memory, to end a process or a machine at each call. Paths are absolute or relative to the working
directory; file descriptors are plain integers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from kafkawire.own_files import open_own
from kafkawire.replication.failures import DiskFailed
from kafkawire.replication.messages import Buffer

monotonic = time.monotonic
"""The clock of time limits, in seconds."""


class Files:
    """The files of this machine. Methods raise OSError, but `sync` and `sync_folder` DiskFailed."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing. `create`: it must not exist."""
        return open_own(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def read(self, fd: int, length: int, position: int) -> bytes:
        """Return the bytes at a position, fewer at the end of the file."""
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(fd, length, position)):
            parts.append(part)
            length -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, fd: int, data: Buffer, position: int) -> None:
        """Write all bytes at a position. After an OSError a part of them may have been written."""
        view = memoryview(data)
        while view:
            written = os.pwrite(fd, view, position)
            view = view[written:]
            position += written

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def sync(self, fd: int, path: str) -> None:
        """Make the content of a file durable. Raises DiskFailed."""
        try:
            # macOS: fsync leaves bytes in the drive's cache.
            if hasattr(fcntl, "F_FULLFSYNC"):
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            # It syncs the size of a file, too; times of changes do not matter.
            elif hasattr(os, "fdatasync"):
                os.fdatasync(fd)
            else:
                os.fsync(fd)
        except OSError as failure:
            raise failed_sync(path, failure) from failure

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable. Raises DiskFailed."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as failure:
            raise failed_sync(path, failure) from failure

    def free_bytes(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_frsize * found.f_bavail

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing one of the new name, or a folder."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Remove a file; no effect if there is none."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_folder(self, path: str) -> None:
        """Create a folder durably, and those above it; no effect if it exists."""
        if os.path.isdir(path):
            return
        above = os.path.dirname(os.path.abspath(path))
        self.make_folder(above)
        os.mkdir(path, 0o700)
        self.sync_folder(above)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def lock(self, path: str) -> int:
        """Return the descriptor of a file that is locked until it is closed or the process ends.
        Raises BlockingIOError if another process has locked it."""
        fd = open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd


def failed_sync(path: str, failure: OSError) -> DiskFailed:
    return DiskFailed(
        f"fsync of {path} failed ({failure.strerror}), so it is not known which bytes are on the "
        "disk: this follower acknowledges nothing more and ends. The broker sends bytes that were "
        "not acknowledged again after its next start; check the disk"
    )
