"""A call to object storage that can be ended from another thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from kafkawire.objectstore.errors import StoreError


class Cancelled(StoreError):
    """The caller has given up; it does not see this."""

    def __init__(self) -> None:
        super().__init__("Cancelled", "the caller has given up")


class Call:
    """One call under way, and how it is ended from outside. For threads."""

    __slots__ = ("_lock", "_stop", "_writing", "cancelled")

    def __init__(self) -> None:
        self._lock = Lock()
        self._stop: Callable[[], object] | None = None
        self._writing = False
        self.cancelled = False

    def check(self) -> None:
        """Cancelled if it is; to be called between pieces of work."""
        if self.cancelled:
            raise Cancelled

    def ends_by(self, stop: Callable[[], object], writing: bool = False) -> None:
        """From now on `stop()` ends it. `writing`: and from now on it writes into memory that is
        shared. Cancelled if that came before, and then nothing may be written."""
        with self._lock:
            self.check()
            self._stop = stop
            self._writing = self._writing or writing

    def cancel(self) -> bool:
        """End it. True: it has written nothing into shared memory, nor will it."""
        with self._lock:
            self.cancelled = True
            stop, writing = self._stop, self._writing
        if stop is not None:
            stop()
        return not writing
