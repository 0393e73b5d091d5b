"""The disk and the clocks: the real implementations of kafkawire.log.io.ports's ports.

A device: of the modules of the log, this and kafkawire.log.io.worker_process use the operating
system. Not portable beyond POSIX (pwritev, fcntl locks); fdatasync and fallocate are used where the
platform has them. `kafkawire serve` calls `real_env()`; so do tests that want real files.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import time
from collections.abc import Sequence

from kafkawire.log.io.ports import Buffer, Env
from kafkawire.log.io.threads import ThreadOffload
from kafkawire.log.io.watchdog import Watchdog
from kafkawire.log.io.worker_process import WorkerProcess
from kafkawire.own_files import open_own

COPIED_BYTES = 256 << 10
"""Bytes that `DiskFile.send` reads at once where the kernel cannot send from the file."""

KEPT_BYTES = 64 << 20
"""Freed memory that an allocator arena keeps: as much as cold reads may have in flight."""
MAPPED_FROM_BYTES = 32 << 20
"""Larger blocks are mapped separately: the most that glibc allows."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

SAMPLED_EVERY_BYTES = 256 << 10
"""Distance between checked pages of the page cache: the kernel reads ahead, and reclaims, in runs
of about this size. Checks of 64 KiB took a twelfth of the CPU time of a response."""

_SAMPLE = [bytearray(1)]  # the bytes read to find out whether they are cached; never used

_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class SystemClock:
    """Clock of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class DiskFile:
    """A file descriptor as a `File` (kafkawire.log.io.ports)."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._fd, buffers, position)

    def pread(self, length: int, position: int) -> bytes:
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(self._fd, length, position)
            if not part:
                break
            parts.append(part)
            length -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cached(self, length: int, position: int) -> bool:
        """Return whether these bytes are in the page cache; see kafkawire.log.io.ports.File. Reads
        single bytes with a flag that forbids the kernel to wait for the disk."""
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        fd, preadv, nowait = self._fd, os.preadv, os.RWF_NOWAIT
        try:
            for at in range(position, position + length, SAMPLED_EVERY_BYTES):
                if not preadv(fd, _SAMPLE, at, nowait):
                    return False
            return bool(preadv(fd, _SAMPLE, position + length - 1, nowait))
        except BlockingIOError:
            return False
        except OSError:  # a file system without this flag; a read will report other errors
            return True

    def send(self, socket_fd: int, length: int, position: int) -> int:
        try:
            return os.sendfile(socket_fd, self._fd, position, length)
        except OSError as failure:
            if failure.errno not in _NO_SENDFILE:
                raise
        data = os.pread(self._fd, min(length, COPIED_BYTES), position)
        return os.write(socket_fd, data) if data else 0

    def sync(self) -> None:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves bytes in the drive's cache
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(self._fd)
        else:
            os.fsync(self._fd)

    def allocate(self, size_bytes: int) -> None:
        before = self.size()
        if size_bytes <= before:
            return
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._fd, before, size_bytes - before)
                return
            except OSError as failure:
                if failure.errno == errno.ENOSPC:
                    os.ftruncate(self._fd, before)  # free what was allocated
                elif failure.errno not in _NO_FALLOCATE:
                    raise
        os.ftruncate(self._fd, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def map(self, size_bytes: int) -> memoryview:
        if size_bytes == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(self._fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskLock:
    """A lock on an open file; the kernel drops it when the process dies. `shared`: others may have
    it shared, too, but not exclusively. BlockingIOError."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self._fd = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
            if not os.path.exists(path) or not os.path.samestat(os.fstat(self._fd), os.stat(path)):
                raise BlockingIOError(errno.EAGAIN, "the file was removed meanwhile", path)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskFileSystem:
    """The folders of this machine as a `FileSystem`."""

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        return DiskFile(open_own(path, os.O_RDWR | (os.O_CREAT if create else 0)))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            return

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> None:
        assert os.path.isabs(path), f"{path} is not absolute"  # else the loop would not end
        missing: list[str] = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.makedirs(folder, exist_ok=True)
            self.sync_dir(os.path.dirname(folder))

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> DiskLock:
        return DiskLock(path)

    def native(self, path: str) -> str | None:
        return path

    def free_bytes(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail

    def identity(self, path: str) -> str:
        found = os.stat(path)
        return f"{_machine()}:{found.st_dev}:{found.st_ino}"


def _machine() -> str:
    """Return a text for this machine, and for all containers on it: on Linux another one after each
    start of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


def untouched_memory(size_bytes: int) -> memoryview:
    """Zeroed memory of which the kernel gives each page when it is first written to."""
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def keep_freed_memory() -> None:
    """Let glibc keep the buffers of cold reads instead of returning each to the kernel.

    It otherwise maps a megabyte for each read and unmaps it after the answer: 256 page faults,
    more than half of the CPU time of a cold read of a megabyte. Elsewhere this does nothing.
    """
    import ctypes  # imported here, since a start does not need it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def real_env() -> Env:
    """Return the Env of a real broker."""
    clock, fs, offload = SystemClock(), DiskFileSystem(), ThreadOffload()
    watchdog = Watchdog(time.perf_counter, time.thread_time)
    return Env(clock, random.SystemRandom(), fs, offload, {}, WorkerProcess(), watchdog)
