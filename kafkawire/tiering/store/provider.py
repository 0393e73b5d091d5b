"""What is behind a tier's URL, as blocking calls: what the storage process runs in its threads.

`kafkawire.tiering.store.s3` and `kafkawire.tiering.store.folder` are the two. Promises are those of
kafkawire.tiering.store.port.ObjectStore; here stands only what is said differently. All methods may
be called from many threads at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Protocol

from kafkawire.tiering.store.port import Listed, Refused, Stored, StoreError

MAX_GET_BYTES = 192 << 20
"""What `get` brings through a pipe as one message; a snapshot of a million objects is smaller."""
MAX_DELETE = 1000
MAX_LIST = 1000
"""S3's bounds on one request."""


class Cancelled(StoreError):
    """Whoever asked has given up. Nobody sees this."""

    def __init__(self) -> None:
        super().__init__("Cancelled", "whoever asked has given up")


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


class Reading(Protocol):
    """An open object."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to so many bytes; none at the end. StoreError if it ends too early."""
        ...


class Provider(Protocol):
    """Object storage, blocking."""

    seen: bool
    """The bucket or folder was there, so it is not made again if it goes: what it held is lost,
    and an empty one in its place would hide that."""

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """See ObjectStore.upload."""
        ...

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        """Stores exactly so many bytes of a stream; StoreError if there are fewer or more."""
        ...

    def put(
        self, key: str, data: bytes, if_match: str | None, if_absent: bool, call: Call
    ) -> Stored:
        """See ObjectStore.put."""
        ...

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        """See ObjectStore.get."""
        ...

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        """Fills the views, one after the other, with what begins at `start`."""
        ...

    def download(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """See ObjectStore.download."""
        ...

    def reading(self, key: str, call: Call) -> AbstractContextManager[Reading]:
        """The object as a stream."""
        ...

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """Copies within the storage; None where that cannot be done for these two."""
        ...

    def head(self, key: str, call: Call) -> Stored:
        """See ObjectStore.head."""
        ...

    def delete(self, keys: Sequence[str], call: Call) -> int:
        """See ObjectStore.delete."""
        ...

    def clear_up(self, keys: Sequence[str]) -> None:
        """Removes what is half stored under these keys, which nobody stores any more."""
        ...

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """See ObjectStore.list."""
        ...


def expect_size(what: str, size_bytes: int, expected: int) -> None:
    """StoreError unless as many bytes are stored as were sent."""
    if size_bytes != expected:
        raise StoreError("Truncated", f"{what} has {size_bytes} bytes, not {expected}")


def too_large(key: str, size_bytes: int) -> Refused:
    """The failure of a `get` that should have been a `read` or a download."""
    return Refused(
        "EntityTooLarge",
        f"{key} has {size_bytes} bytes: {MAX_GET_BYTES} can be asked for at once",
    )
