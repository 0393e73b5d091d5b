"""Warm memory: released to the kernel while a cell writes, so that new page cache is not cold.

A virtual machine may return free pages to its host (free page reporting, every two seconds) and
gets each again only at its next touch, for microseconds a page. Then new page cache is written at a
few hundred MB/s whatever the broker, and a bulk row measures the hypervisor. A Room is memory that
this process has touched and holds. While a cell runs, a thread releases it just ahead of use, and
takes back at once what becomes free: two seconds later that would be cold. It does so for every
broker alike, and on a machine whose memory is its own it has no effect. Called by the runner;
`page_cache` measures its effect.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
PAGE_BYTES = mmap.PAGESIZE
HUGE_ORDER = 9  # a huge page is 2^9 pages
HUGE_BYTES = PAGE_BYTES << HUGE_ORDER
# Bytes that the most write-intensive cell writes in its window, and a margin.
ROOM_BYTES = 2304 * MIB
# Never more than these shares of what is available: the data of cells must fit as well.
ROOM_SHARE, REMNANTS_SHARE = 0.25, 0.3
# Kept free ahead of the writer, up to twice this: more than it uses in a tick.
AHEAD_BYTES = 256 * MIB
TICK_S = 0.005
STEP_BYTES = 16 * MIB
REMNANTS_LEFT_BYTES = 256 * MIB  # about what the kernel keeps for its own use
# Steps without success: a core may keep an eighth of all memory in lists of its own.
IN_VAIN_MAX = 128
TRIAL_BYTES = 400 * MIB

Report = Callable[[str], None]
"""Called with a description of the current step."""


def free_bytes() -> int:
    """Memory that is not used at all, not even as page cache."""
    with open("/proc/vmstat", "rb", buffering=0) as file:
        name, value = file.read(64).split()[:2]
    if name != b"nr_free_pages":
        raise OSError(f"/proc/vmstat begins with {name.decode()}, not nr_free_pages")
    return int(value) * PAGE_BYTES


def remnants(rows: Sequence[str]) -> int:
    """Free bytes in pieces smaller than a huge page, from the rows of /proc/buddyinfo."""
    counts = [row.split()[4 : 4 + HUGE_ORDER] for row in rows]
    return sum(int(n) * PAGE_BYTES << order for row in counts for order, n in enumerate(row))


def remnants_now() -> int:
    """The remnants of this machine."""
    return remnants(Path("/proc/buddyinfo").read_text().splitlines())


def available_bytes() -> int:
    """The kernel's estimate of what can be allocated without swapping."""
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("MemAvailable:"):
            return int(row.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def whole(size: float) -> int:
    """Rounded to whole huge pages, at least one."""
    return max(int(size) // HUGE_BYTES, 1) * HUGE_BYTES


def anonymous(size: int, advice: int) -> mmap.mmap:
    """Memory that is not backed by a file."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return memory


def touch(memory: mmap.mmap, begin: int, end: int) -> None:
    """Write a byte of every page."""
    with memoryview(memory) as view:
        view[begin:end:PAGE_BYTES] = bytes((end - begin) // PAGE_BYTES)


class Remnants:
    """Holds free memory in small pieces, in small pages.

    The kernel serves a request from the smallest piece that is large enough: as long as there are
    small ones, cold, a writer gets those and not the huge ones that have just been released.
    """

    def __init__(self, size: int, now: Callable[[], int] = remnants_now) -> None:
        self.size = size
        self.held = 0
        self.enough = REMNANTS_LEFT_BYTES
        self._now = now
        self._memory = anonymous(size, mmap.MADV_NOHUGEPAGE)

    def take(self) -> None:
        """Take all remnants that can be had: some are kept for the kernel's own use."""
        left, in_vain = self._now(), 0
        while left > self.enough and in_vain < IN_VAIN_MAX and self.held < self.size:
            end = min(self.held + STEP_BYTES, self.size)
            touch(self._memory, self.held, end)
            self.held, before, left = end, left, self._now()
            in_vain = in_vain + 1 if before - left < STEP_BYTES // 2 else 0
        self.enough = max(self.enough, left + STEP_BYTES)  # the rest cannot be had

    def close(self) -> None:
        """Release them."""
        self._memory.close()


class Room:
    """Touched memory: a part is released while a cell writes, and taken back."""

    def __init__(
        self, available: int, core: int | None = None, free: Callable[[], int] = free_bytes
    ) -> None:
        self.size = whole(min(ROOM_BYTES, available * ROOM_SHARE))
        self.core = core
        self.given = self.size  # this many bytes from the beginning are not held: at first all
        self.remnants = Remnants(whole(available * REMNANTS_SHARE))
        self._free = free
        self._rests = threading.Event()
        self._memory = anonymous(self.size, mmap.MADV_HUGEPAGE)

    def take(self, report: Report | None = None) -> None:
        """Take back everything that was released, and the remnants of the cell."""
        while self.given:
            self._take(STEP_BYTES)
            if report:
                report(f"touch memory: {self.given // MIB:,} of {self.size // MIB:,} MiB to go")
        self.remnants.take()

    @contextmanager
    def giving(self) -> Iterator[None]:
        """Keep AHEAD_BYTES more free than at the beginning, as long as the room lasts.

        Leave the context when the data has been deleted.
        """
        wanted = self._free() + AHEAD_BYTES
        self._give(AHEAD_BYTES)
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(wanted, over), name="bench-warm")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        self.take()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Neither release nor take back in this context: the thread shares the core of the load
        client, whose latencies it would delay."""
        self._rests.set()
        try:
            yield
        finally:
            self._rests.clear()

    def close(self) -> None:
        """Release all of it."""
        self._memory.close()
        self.remnants.close()

    def _follow(self, wanted: int, over: threading.Event) -> None:
        if self.core is not None:
            os.sched_setaffinity(0, {self.core})  # this thread's: off the server's core
        while not over.wait(TICK_S):
            if self._rests.is_set():
                continue
            lack = wanted - self._free()
            if lack > 0:
                self._give(lack)
            elif -lack > AHEAD_BYTES:
                self._take(STEP_BYTES)

    def _take(self, count: int) -> None:
        begin = max(self.given - count, 0)
        touch(self._memory, begin, self.given)
        self.given = begin

    def _give(self, count: int) -> None:
        count = min(whole(count + HUGE_BYTES - 1), self.size - self.given)
        if count:
            self._memory.madvise(mmap.MADV_DONTNEED, self.given, count)
            self.given += count


def giving(room: Room | None) -> AbstractContextManager[None]:
    """The same for a room that may not exist."""
    return room.giving() if room else nullcontext()


def resting(room: Room | None) -> AbstractContextManager[None]:
    """The same for a room that may not exist."""
    return room.resting() if room else nullcontext()


def write_mb_s(path: Path, size: int) -> float:
    """The rate of writing a new file, in pieces of 1 MiB; it is removed again."""
    piece = os.urandom(MIB)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        began = time.monotonic()
        for at in range(0, size, MIB):
            os.pwrite(descriptor, piece, at)
        return size / 1e6 / (time.monotonic() - began)
    finally:
        os.close(descriptor)
        path.unlink()


@dataclass(frozen=True, slots=True)
class PageCache:
    """MB/s of writing new page cache: to memory that was free, and to a room's."""

    cold_mb_s: float
    warm_mb_s: float


def page_cache(folder: Path, room: Room, report: Report | None = None) -> PageCache:
    """Measure, which fills the room, too. `cold` is correct if nothing has released memory in the
    last two seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "page-cache.bin"
    cold = write_mb_s(path, TRIAL_BYTES)
    room.take(report)
    with room.giving():
        warm = write_mb_s(path, TRIAL_BYTES)
    return PageCache(cold, warm)
