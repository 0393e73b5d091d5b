"""The memory of responses, from its reservation until the last byte has left the process.

A client that fetches old records and does not read the response costs the memory of these records.
So a read reserves its bytes here before it begins; they are released when the transport has passed
them to the kernel, or the client has disconnected. The less memory is free, the less is granted: a
Fetch may return fewer bytes than requested, so that many clients share the memory. Pure: no
sockets, no clock. `server.slow` closes connections that hold memory while others wait.
"""

from __future__ import annotations

from collections.abc import Callable

SHARE = 4
"""A response gets at most this share of the free memory: with the default bound the first is
granted a whole Fetch of 55 MiB, and after twenty that are never read a small one still gets its
bytes."""
SMALL_BYTES = 1 << 20
"""A read of at most this size, a partition's default, may use the reserve too."""
RESERVE = 8
"""Share of the bound reserved for small reads."""
LEAST_BYTES = 64 << 10
"""Minimum grant; less would cost more overhead than it returns. The read waits instead."""

Granted = Callable[[int], None]


class AnswerMemory:
    """The responses of a broker. `held_bytes` may exceed `bound_bytes` by bytes that were not
    reserved before: responses built in memory, and a batch larger than its grant."""

    __slots__ = ("_call_soon", "_large", "_scheduled", "_small", "bound_bytes", "held_bytes")

    def __init__(self, bound_bytes: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.bound_bytes = bound_bytes
        self.held_bytes = 0
        self._call_soon = call_soon
        self._small: dict[Granted, int] = {}  # in order of arrival
        self._large: dict[Granted, int] = {}
        self._scheduled = False

    @property
    def waiting(self) -> int:
        """Number of reads that wait for memory."""
        return len(self._small) + len(self._large)

    @property
    def short(self) -> bool:
        """Whether a read waits, or more is held than the bound."""
        return bool(self._small or self._large) or self.held_bytes > self.bound_bytes

    def add_bytes(self, size_bytes: int) -> None:
        """Count bytes that are already in memory."""
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release bytes that were sent, or whose client has disconnected."""
        self.held_bytes -= size_bytes
        if (self._small or self._large) and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._grant_waiting)

    def reserve(self, wanted_bytes: int) -> int:
        """Reserve up to `wanted_bytes`; return how many are granted. 0: none now, see
        `when_free`."""
        waiting = self._small if wanted_bytes <= SMALL_BYTES else self._large
        return 0 if waiting else self._grant(wanted_bytes)

    def when_free(self, wanted_bytes: int, granted: Granted) -> None:
        """Call `granted` with the reserved bytes once memory is free; first come, first served,
        separately for small and large reads."""
        waiting = self._small if wanted_bytes <= SMALL_BYTES else self._large
        waiting[granted] = wanted_bytes

    def cancel(self, granted: Granted) -> None:
        """Stop waiting."""
        self._small.pop(granted, None)
        self._large.pop(granted, None)

    def _grant(self, wanted_bytes: int) -> int:
        free = self.bound_bytes - self.held_bytes
        if wanted_bytes > SMALL_BYTES:
            free -= self.bound_bytes // RESERVE
        size_bytes = min(wanted_bytes, free // SHARE)
        if size_bytes < min(wanted_bytes, LEAST_BYTES):
            return 0
        self.held_bytes += size_bytes
        return size_bytes

    def _grant_waiting(self) -> None:
        self._scheduled = False
        for waiting in (self._small, self._large):
            while waiting:
                granted, wanted_bytes = next(iter(waiting.items()))
                size_bytes = self._grant(wanted_bytes)
                if not size_bytes:
                    break
                del waiting[granted]
                granted(size_bytes)
