"""A call to object storage that another thread can cancel."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from kafkawire.objectstore.errors import StoreError


class Cancelled(StoreError):
    """The call was cancelled; the caller has given up and does not get this."""

    def __init__(self) -> None:
        super().__init__("Cancelled", "the caller has given up")


class Call:
    """One call in progress, and its cancellation. Thread-safe."""

    __slots__ = ("_lock", "_stop", "_writing", "cancelled")

    def __init__(self) -> None:
        self._lock = Lock()
        self._stop: Callable[[], object] | None = None
        self._writing = False
        self.cancelled = False

    def check(self) -> None:
        """Raise Cancelled if it is cancelled; called between pieces of work."""
        if self.cancelled:
            raise Cancelled

    def ends_by(self, stop: Callable[[], object], writing: bool = False) -> None:
        """Register `stop()` to interrupt it. `writing`: from now on it also writes into shared
        memory. Raises Cancelled if it is already cancelled; then nothing may be written."""
        with self._lock:
            self.check()
            self._stop = stop
            self._writing = self._writing or writing

    def cancel(self) -> bool:
        """Cancel it. Return True if it has not written into shared memory and never will."""
        with self._lock:
            self.cancelled = True
            stop, writing = self._stop, self._writing
        if stop is not None:
            stop()
        return not writing
