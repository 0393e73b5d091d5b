"""The port to object storage as the event loop sees it.

`ObjectStore` is the interface to S3 or to a folder. It raises the errors of
`kafkawire.objectstore.errors`. The implementation `kafkawire.tiering.store.process` uses a child
process, so that boto3 never runs in the broker's process; the simulation uses
tests/kit/tier/fake_store.py. One contract suite tests the providers and both implementations.

Keys are relative to the bucket and prefix of the tier and never contain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kafkawire.objectstore.port import FileRange, Listed, Stored


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A range of an object and its position in `ObjectStore.memory`."""

    start: int
    length: int
    at: int


class ObjectStore(Protocol):
    """Every method makes one attempt; the caller decides about retries.

    Methods raise StoreError and its subclasses, and OSError only for local files (`upload`,
    `put_ranges`, `download`). A cancelled call may have taken effect. A cancelled `read` raises
    only after its last write into memory.

    `bytes_per_second` (-1: no limit) is shared by all uploads, or all downloads, with the same
    value.
    """

    memory: memoryview
    """The memory `read` reads into, shared with the storage process. Its size is set when the store
    is opened."""

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        """Store a local file, in parts if it is large; it is complete when this returns."""

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        """Store a small object. `if_match`: only over an object with this ETag; `if_absent`: only
        if there is none. Raises ConditionFailed otherwise."""

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        """Store an object of `head` and these ranges of local files, each padded with zeros to a
        multiple of 8, only if there is none. It is complete when this returns, or not there.

        Uses threads of its own, which no other call uses; ranges may be of files that grow. Raises
        ConditionFailed, after which the key may still be free (S3 answers concurrent requests so):
        read it. Raises OSError for a local file, also if it is shorter than its range; ValueError
        beyond the limits of kafkawire.objectstore.file_ranges."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        """Return (bytes, ETag) of a small object or a range of it. A negative start counts from the
        end; a range is cut at the end. Raises NoSuchObject."""

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        """Read contiguous parts of an object with one request into `memory`. Raises StoreError if
        the object ends before the last part. Urgent: uses threads of its own, which uploads never
        use."""

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        """Copy an object into a new local file, synced; removes the file if it fails."""

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        """Copy an object of `size_bytes` from another tier, given by its URL, into this one.
        `source_key`: its key there, if different. Raises StoreError if its size differs."""

    async def head(self, key: str) -> Stored:
        """Return the size and ETag of an object. Raises NoSuchObject."""

    async def delete(self, keys: Sequence[str]) -> int:
        """Delete up to 1,000 objects, absent ones too; return the number of requests."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        """Return up to `limit` (at most 1,000) objects with this prefix, by key, above `after`."""

    async def close(self) -> None:
        """Cancel all calls in progress. Another call has no effect."""
