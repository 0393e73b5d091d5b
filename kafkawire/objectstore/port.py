"""The port to object storage: blocking calls, divided into small roles.

`kafkawire.objectstore.s3` and `kafkawire.objectstore.folder` are the providers; a new one is added
in `kafkawire.objectstore.open` and to the contract suite (tests/objectstore). All methods may be
called from many threads at a time. A call is tried once: `kafkawire.objectstore.retrying` is the
wrapper that repeats it. All methods raise StoreError and its kinds (kafkawire.objectstore.errors),
and ValueError for a key that none can have (kafkawire.objectstore.keys).

The broker's event loop uses the same providers through a child process
(kafkawire.tiering.store.port), Spark's tasks directly (kafkawire.spark.source.files.locations).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import Refused, StoreError

MAX_GET_BYTES = 192 << 20
"""What `get` of the storage process brings through a pipe as one message; a snapshot of a million
objects is smaller."""
TOO_LARGE = "EntityTooLarge"
"""Code of the Refused for an object that is larger than a `get` may be."""
MAX_DELETE = 1000
MAX_LIST = 1000
"""S3's bounds on one request."""


class Stored(NamedTuple):
    """An object as it is stored. `requests`: how many the call took (multipart takes several)."""

    etag: str
    size_bytes: int
    requests: int = 1


class Listed(NamedTuple):
    """One object of a listing."""

    key: str
    size_bytes: int
    modified_ms: int
    etag: str = ""


class Reader(Protocol):
    """Read small objects, and parts of large ones."""

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        """Return (bytes, ETag) of a small object or of a part of one (negative start: from the
        end; a range that goes beyond the end is cut there). NoSuchObject."""

    def head(self, key: str, call: Call) -> Stored:
        """Return ETag and size. NoSuchObject if there is none."""


class Lister(Protocol):
    """List objects."""

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """Return up to `limit` objects (at most MAX_LIST) with this prefix, by key, above
        `after`."""

    def scan(self, prefix: str, call: Call) -> Iterator[Listed]:
        """Yield all objects with this prefix, by key."""


class Writer(Protocol):
    """Store small objects, each whole or not at all."""

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        if_match: str | None,
        if_absent: bool,
        call: Call,
    ) -> Stored:
        """Store an object. `if_match`: only over an object with this ETag; `if_absent`: only where
        there is none. ConditionFailed otherwise."""


class Deleter(Protocol):
    """Remove objects."""

    def delete(self, keys: Sequence[str], call: Call) -> int:
        """Remove up to MAX_DELETE objects, absent ones too. How many requests it took."""


class Objects(Reader, Lister, Writer, Deleter, Protocol):
    """All that can be repeated after a failure; what Spark uses."""


class Reading(Protocol):
    """An open object."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes; none at the end. StoreError if it ends too early."""


class Transfers(Protocol):
    """Move whole objects, and fill memory that the caller shares with others."""

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        """Fill the views, one after the other, with what begins at `start`. StoreError if the
        object ends before the last one is full."""

    def reading(self, key: str, call: Call) -> AbstractContextManager[Reading]:
        """Open the object as a stream."""

    def download(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """Copy an object into a new local file, synced; the file is removed if that fails."""

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """Store a local file, in parts if it is large. OSError for the local file."""

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        """Store exactly so many bytes of a stream; StoreError if there are fewer or more."""

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """Copy within the storage; None where that cannot be done for these two."""

    def clear_up(self, keys: Sequence[str]) -> None:
        """Remove what is half stored under these keys, which no process stores any more."""


class Provider(Objects, Transfers, Protocol):
    """All roles: what the storage process opens by a URL."""


def expect_size(what: str, size_bytes: int, expected: int) -> None:
    """StoreError unless as many bytes are stored as were sent."""
    if size_bytes != expected:
        raise StoreError("Truncated", f"{what} has {size_bytes} bytes, not {expected}")


def pages(lister: Lister, prefix: str, call: Call) -> Iterator[Listed]:
    """Yield all objects with this prefix, by key, page by page: `Lister.scan` by `Lister.list`."""
    after = ""
    while True:
        page = lister.list(prefix, after, MAX_LIST, call)
        yield from page
        if len(page) < MAX_LIST:
            return
        after = page[-1].key


def too_large(key: str, size_bytes: int, max_bytes: int) -> Refused:
    """The failure of a `get` that should have been a `read` or a download."""
    return Refused(TOO_LARGE, f"{key} has {size_bytes} bytes: at most {max_bytes} are read at once")
