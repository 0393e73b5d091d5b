"""The memory of answers, from when it is taken until the last byte has left the process.

A client that asks for old records and reads no answer costs the memory of what was read for it.
So a read takes its bytes here before it begins and gives them back when the transport has handed
them to the kernel, or the client is gone. Little is granted while little is free: a Fetch may be
answered with fewer bytes than it asked for, so that many share what there is. Pure: no sockets, no
clock. `server.slow` closes who keeps memory that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable

SHARE = 4
"""One answer gets at most this part of what is free: with the default bound the first is granted
a whole Fetch of 55 MiB, and twenty that are never read leave a small one its bytes."""
SMALL_BYTES = 1 << 20
"""A read of at most so much, a partition's default, may use the reserve too."""
RESERVE = 8
"""This part of the bound is for small reads alone."""
LEAST_BYTES = 64 << 10
"""Less is not granted: the overhead of a read would exceed it. Who cannot have it waits."""

Granted = Callable[[int], None]


class AnswerMemory:
    """All answers of a broker. `held_bytes` may exceed `bound_bytes` by what was not asked for
    before: answers that are made in memory, a batch that is larger than what was granted."""

    __slots__ = ("_call_soon", "_large", "_scheduled", "_small", "bound_bytes", "held_bytes")

    def __init__(self, bound_bytes: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.bound_bytes = bound_bytes
        self.held_bytes = 0
        self._call_soon = call_soon
        self._small: dict[Granted, int] = {}  # in the order they came
        self._large: dict[Granted, int] = {}
        self._scheduled = False

    @property
    def waiting(self) -> int:
        """How many reads wait for memory."""
        return len(self._small) + len(self._large)

    @property
    def short(self) -> bool:
        """Whether a read waits, or more is held than the bound."""
        return bool(self._small or self._large) or self.held_bytes > self.bound_bytes

    def hold(self, size_bytes: int) -> None:
        """Count bytes that are there already."""
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """They have left, or their client is gone."""
        self.held_bytes -= size_bytes
        if (self._small or self._large) and not self._scheduled:
            self._scheduled = True
            self._call_soon(self._grant_waiting)

    def take(self, wanted_bytes: int) -> int:
        """Count up to `wanted_bytes`; how many are granted. 0: none now, see `when_free`."""
        waiting = self._small if wanted_bytes <= SMALL_BYTES else self._large
        return 0 if waiting else self._grant(wanted_bytes)

    def when_free(self, wanted_bytes: int, granted: Granted) -> None:
        """Call `granted` with the bytes that are counted for it; first come, first served, small
        and large reads apart."""
        waiting = self._small if wanted_bytes <= SMALL_BYTES else self._large
        waiting[granted] = wanted_bytes

    def cancel(self, granted: Granted) -> None:
        """Do not wait any more."""
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
