"""The disk, the clocks and the threads: the real implementations of kafkawire.log.io.ports's ports.

A device: of the modules of the log, this and kafkawire.log.io.worker_process use the operating
system. Not portable beyond POSIX (pwritev, fcntl locks); fdatasync and fallocate are used where the
platform has them. `kafkawire serve` calls `real_env()`; so do tests that want real files.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from kafkawire.log.io.ports import Buffer, Done, Env
from kafkawire.log.io.watchdog import Watchdog
from kafkawire.log.io.worker_process import WorkerProcess
from kafkawire.own_files import open_own

# Threads for calls that block: named pools, which implement the port `Offload`.
#
# A commit is one call, so a call has to be cheap: the thread passes the outcome to the event loop
# itself. `run_in_executor` takes twice the CPU time: it makes a second future with a lock and a
# condition of its own, and wakes threads that have nothing to do.

T = TypeVar("T")

POOL_THREADS = {
    "commit": 1, "write": 1, "read": 4, "warm": 4, "send": 4, "files": 1, "brokers": 4,
    "passwords": 2, "issuer": 1,
}  # fmt: skip
"""Threads per pool. One for commits and one for writes, because both are ordered; four for reads of
journals, four for reads of segments and four for sending from files that are not in the page cache,
which keep a disk busy without letting consumers of old data use every core; one for creating,
renaming and deleting files; four for requests to other brokers, of which few are slow at the same
time; two for the derivation of keys from passwords, so that log-ins leave cores free; one for
reading the keys of an issuer of tokens."""

Future = asyncio.Future[Any]
Report = Callable[[Any, Any, BaseException | None], None]
"""Passes an outcome or failure to the first argument, on the event loop."""
Job = tuple[asyncio.AbstractEventLoop, Report, Future | Done[Any], Callable[..., Any], Any]
Jobs = SimpleQueue[Job | None]


class ThreadPool:
    """Threads that run calls in the order of submission, each started when the others are busy.

    All methods are called on the event loop.
    """

    __slots__ = ("__weakref__", "_jobs", "_max_threads", "_name", "_threads", "_unfinished")

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._jobs: Jobs = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        # A pool that is garbage collected ends its threads, not only one that is closed.
        weakref.finalize(self, _end, self._jobs, self._threads).atexit = False

    def submit(self, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run fn(*args) in a thread, unless the returned future is cancelled before that.

        Raises RuntimeError if no thread can be started.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put((loop, self._settle, future, fn, args))
        return future

    def submit_then(self, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        """Run fn(*args) in a thread, then `done` on the event loop.

        Raises RuntimeError if no thread can be started.
        """
        self._put((asyncio.get_running_loop(), self._report, done, fn, args))

    def close(self) -> None:
        """Run what was submitted, and end the threads."""
        _end(self._jobs, self._threads)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _put(self, job: Job) -> None:
        if self._unfinished >= len(self._threads) < self._max_threads:
            self._start_thread()
        self._unfinished += 1
        self._jobs.put(job)

    def _start_thread(self) -> None:
        # A daemon: a process that ends after an error does not wait for a disk that hangs.
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _report(self, done: Done[Any], outcome: Any, failure: BaseException | None) -> None:
        self._unfinished -= 1
        done(outcome, failure)

    def _settle(self, future: Future, outcome: Any, failure: BaseException | None) -> None:
        self._unfinished -= 1
        if future.done():
            return  # cancelled
        if failure is None:
            future.set_result(outcome)
        else:
            future.set_exception(failure)


class ThreadOffload:
    """Named thread pools as an `Offload`."""

    def __init__(self) -> None:
        self._pools = {
            name: ThreadPool(f"kafkawire-{name}", threads) for name, threads in POOL_THREADS.items()
        }

    def submit(self, pool: str, fn: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return self._pools[pool].submit(fn, *args)

    def submit_then(self, pool: str, done: Done[T], fn: Callable[..., T], *args: Any) -> None:
        self._pools[pool].submit_then(done, fn, *args)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _end(jobs: Jobs, threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)


def _run(jobs: Jobs) -> None:
    """Run calls until there is a None instead of one. The program of each thread."""
    while (job := jobs.get()) is not None:
        loop, report, target, fn, args = job
        outcome: Any = None
        failure: BaseException | None = None
        # Cancelled before it began: the caller does not expect it to run.
        if not (isinstance(target, asyncio.Future) and target.cancelled()):
            try:
                outcome = fn(*args)
            except BaseException as caught:  # any failure is the caller's
                failure = caught
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(report, target, outcome, failure)
        del job, report, target, fn, args, outcome, failure  # free them before the next wait


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

RESIDENT = 1
"""The bit of mincore(2) for a page that is in memory."""

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
        # pread may return less than asked for, such as at 2 GiB.
        while length > 0:
            part = os.pread(self._fd, length, position)
            if not part:
                break
            parts.append(part)
            length -= len(part)
            position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_cached(self, length: int, position: int) -> bool:
        """Return whether these bytes are in the page cache; see kafkawire.log.io.ports.File."""
        # Unknown, such as on macOS.
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        fd, preadv, nowait = self._fd, os.preadv, os.RWF_NOWAIT
        try:
            # Single bytes, with a flag that forbids the kernel to wait for the disk.
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
            # A file system that cannot: copy instead.
            if failure.errno not in _NO_SENDFILE:
                raise
        data = os.pread(self._fd, min(length, COPIED_BYTES), position)
        return os.write(socket_fd, data) if data else 0

    def drop_cached(self) -> bool:
        if not hasattr(os, "posix_fadvise"):  # such as on macOS
            return False
        # Only clean pages can be dropped. The kernel keeps those that something refers to.
        self.sync()
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return not _has_cached_pages(self._fd, self.size())

    def sync(self) -> None:
        if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves bytes in the drive's cache
            fcntl.fcntl(self._fd, fcntl.F_FULLFSYNC)
        # Without the times of the file, which would cost another write.
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
        # A file with holes: it has the length, and a later write may fail for lack of space.
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


def _has_cached_pages(fd: int, size_bytes: int) -> bool:
    """Return whether any page of a file is in the page cache. True where that is unknown."""
    import ctypes  # imported here, since a start does not need it

    if not size_bytes:
        return False
    mapped = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    pages = (ctypes.c_ubyte * -(-size_bytes // mmap.PAGESIZE))()
    start = ctypes.c_ubyte.from_buffer(mapped)
    try:
        mincore = ctypes.CDLL(None).mincore
        failed = mincore(ctypes.byref(start), ctypes.c_size_t(size_bytes), pages)
    except (AttributeError, OSError):
        return True
    finally:
        del start
        mapped.close()
    # The lowest bit; the others are reserved.
    return bool(failed) or any(map(RESIDENT.__and__, bytes(pages)))


class DiskLock:
    """A lock on an open file; the kernel drops it when the process dies. `shared`: others may have
    it shared, too, but not exclusively. BlockingIOError."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, *, shared: bool = False) -> None:
        self._fd = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
            # Another process may have removed the file and made a new one, on which it has the
            # lock.
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
            # Each level, from the top: durable at once.
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

    Elsewhere this does nothing.
    """
    import ctypes  # imported here, since a start does not need it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    # By default glibc maps a megabyte for each read and unmaps it after the answer: 256 page
    # faults, more than half of the CPU time of a cold read of a megabyte.
    mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def real_env() -> Env:
    clock, fs, offload = SystemClock(), DiskFileSystem(), ThreadOffload()
    watchdog = Watchdog(time.perf_counter, time.thread_time)
    return Env(clock, random.SystemRandom(), fs, offload, {}, WorkerProcess(), watchdog)
