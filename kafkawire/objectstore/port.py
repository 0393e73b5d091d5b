"""The port to object storage: blocking calls, divided into small roles.

`kafkawire.objectstore.s3` and `kafkawire.objectstore.folder` are the providers; others are plug-ins
(`StorePlugin`), which `kafkawire.testing.contracts` checks, as `kafkawire.objectstore.azure` is.
All methods are thread-safe. A call makes one attempt; `kafkawire.objectstore.retrying` is a wrapper
with retries. All methods raise StoreError and its subclasses (kafkawire.objectstore.errors), and
ValueError for an invalid key (kafkawire.objectstore.url).

The broker's event loop uses the same providers through a child process
(kafkawire.tiering.store.port), Spark's tasks directly (kafkawire.reading.files.locations).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import Refused, StoreError

if TYPE_CHECKING:
    from kafkawire.objectstore.url import TierUrl

MAX_GET_BYTES = 192 << 20
"""Maximum size for `get`, which the storage process sends through a pipe as one message; a snapshot
of a million objects is smaller."""
TOO_LARGE = "EntityTooLarge"
"""Code of the Refused for an object that exceeds the limit of `get`."""
MAX_DELETE = 1000
MAX_LIST = 1000
"""S3's limits on one request."""


class Stored(NamedTuple):
    """A stored object. `requests`: number of requests of the call (multipart takes several)."""

    etag: str
    size_bytes: int
    requests: int = 1


class FileRange(NamedTuple):
    """Bytes of a local file that become part of an object."""

    path: str
    start: int
    length: int


class Listed(NamedTuple):
    """One object of a listing."""

    key: str
    size_bytes: int
    modified_ms: int
    etag: str = ""


class Reader(Protocol):
    """Read small objects, and ranges of large ones."""

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        """Return (bytes, ETag) of a small object or a range of it. A negative start counts from the
        end; a range is cut at the end. Raises NoSuchObject."""

    def head(self, key: str, call: Call) -> Stored:
        """Return ETag and size. Raises NoSuchObject."""


class Lister(Protocol):
    """List objects."""

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """Return up to `limit` objects (at most MAX_LIST) with this prefix, by key, above
        `after`."""

    def scan(self, prefix: str, call: Call) -> Iterator[Listed]:
        """Yield all objects with this prefix, by key."""


class Writer(Protocol):
    """Store small objects atomically."""

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        if_match: str | None,
        if_absent: bool,
        call: Call,
    ) -> Stored:
        """Store an object. `if_match`: only over an object with this ETag; `if_absent`: only if
        there is none. Raises ConditionFailed otherwise."""


class Deleter(Protocol):
    """Remove objects."""

    def delete(self, keys: Sequence[str], call: Call) -> int:
        """Delete up to MAX_DELETE objects, absent ones too. Return the number of requests."""


class Objects(Reader, Lister, Writer, Deleter, Protocol):
    """All roles that can be retried; used by Spark."""


class Reading(Protocol):
    """An open object."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to this many bytes; none at the end. Raises StoreError if the object is
        truncated."""


class Transfers(Protocol):
    """Transfer whole objects, and read into shared memory."""

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        """Fill the views, one after another, from `start` on. Raises StoreError if the object ends
        before the last one is full."""

    def reading(self, key: str, call: Call) -> AbstractContextManager[Reading]:
        """Open the object as a stream."""

    def download(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """Download an object to a new local file, synced; the file is removed after a failure."""

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """Store a local file, in parts if it is large. Raises OSError for the local file."""

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        """Store exactly this many bytes of a stream. Raises StoreError if there are fewer or
        more."""

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """Copy within the storage; return None if that is not possible for these two."""

    def clear_up(self, keys: Sequence[str]) -> None:
        """Remove incomplete uploads of these keys, which no process writes any more."""


class Provider(Objects, Transfers, Protocol):
    """All roles: what the storage process opens by a URL."""


class Opening(NamedTuple):
    """How a store is opened. `part_bytes`: size of the parts of large uploads; `calls`: concurrent
    calls, of which `transfers` may move whole objects; `seen`: the bucket existed before, so it is
    not created again; `max_get_bytes`: limit of `get`, above it raises `too_large`."""

    part_bytes: int
    calls: int
    transfers: int
    seen: bool
    max_get_bytes: int = MAX_GET_BYTES


class StorePlugin(Protocol):
    """Opens the stores of a URL scheme: the object and the name of an entry point of the group
    `kafkawire.stores`."""

    def check(self, tier: TierUrl) -> None:
        """Raise ValueError with one sentence if bucket, prefix or an option is invalid. No I/O."""

    def open(self, tier: TierUrl, opening: Opening) -> Provider:
        """Return the store of a valid URL, without a request. Raises StoreError. Called in the
        storage process of a broker, and in readers of the bucket."""


def expect_size(what: str, size_bytes: int, expected: int) -> None:
    """Raise StoreError unless as many bytes are stored as were sent."""
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


async def list_pages(
    list_objects: Callable[[str, str, int], Awaitable[list[Listed]]], prefix: str
) -> AsyncIterator[list[Listed]]:
    """Yield all objects with this prefix, by key, one page at a time."""
    after = ""
    while True:
        page = await list_objects(prefix, after, MAX_LIST)
        yield page
        if len(page) < MAX_LIST:
            return
        after = page[-1].key


def too_large(key: str, size_bytes: int, max_bytes: int) -> Refused:
    """Return the error of a `get` of a too large object."""
    return Refused(TOO_LARGE, f"{key} has {size_bytes} bytes: at most {max_bytes} are read at once")
