"""A file system that reads and changes nothing, for a trial run of recovery.

Changes succeed without effect. Only for `recover`, which never reads again what it has just
written. Implements kafkawire.log.io.ports.FileSystem over another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkawire.log.io.ports import Buffer, File, FileSystem, Lock


class ReadOnlyFile:
    """A `File` (kafkawire.log.io.ports) that is never changed."""

    def __init__(self, file: File) -> None:
        self._file = file

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Return how many bytes would have been written."""
        return sum(len(buffer) for buffer in buffers)

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def is_cached(self, length: int, position: int) -> bool:
        return self._file.is_cached(length, position)

    def send(self, socket_fd: int, length: int, position: int) -> int:
        return self._file.send(socket_fd, length, position)

    def drop_cached(self) -> bool:
        """Do nothing: the file is not going to be overwritten."""
        return True

    def sync(self) -> None:
        """Do nothing."""

    def allocate(self, size_bytes: int) -> None:
        """Do nothing."""

    def truncate(self, size_bytes: int) -> None:
        """Do nothing."""

    def size(self) -> int:
        return self._file.size()

    def map(self, size_bytes: int) -> memoryview:
        return self._file.map(size_bytes)

    def close(self) -> None:
        self._file.close()


class ReadOnlyFileSystem:
    """A `FileSystem` that refuses all changes."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file read-only; never creates one."""
        return ReadOnlyFile(self._fs.open(path))

    def rename(self, old: str, new: str) -> None:
        """Do nothing."""

    def remove(self, path: str) -> None:
        """Do nothing."""

    def listdir(self, path: str) -> list[str]:
        return self._fs.listdir(path)

    def makedirs(self, path: str) -> None:
        """Do nothing."""

    def remove_folder(self, path: str) -> None:
        """Do nothing."""

    def sync_dir(self, path: str) -> None:
        """Do nothing."""

    def lock(self, path: str) -> Lock:
        return self._fs.lock(path)

    def native(self, path: str) -> str | None:
        return self._fs.native(path)

    def identity(self, path: str) -> str:
        return self._fs.identity(path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        return self._fs.free_bytes(path)
