"""The port to object storage as the event loop sees it.

`ObjectStore` is kafkawire.objectstore.port without blocking. The implementation
`kafkawire.tiering.store.process` uses a child process, so that boto3 never runs in the broker's
process; the simulation uses tests/kit/tier/fake_store.py. One contract suite tests the providers
and both implementations.

Keys are relative to the bucket and prefix of the tier and never contain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kafkawire.log.objects.port import LogObjectStore
from kafkawire.objectstore.port import Stored


@dataclass(frozen=True, slots=True)
class ObjectPart:
    """A range of an object and its position in `ObjectStore.memory`."""

    start: int
    length: int
    at: int


class ObjectStore(LogObjectStore, Protocol):
    """All calls to a store. Methods raise OSError only for local files (`upload`, `put_ranges`,
    `download`). A cancelled `read` raises only after its last write into memory.

    `bytes_per_second` (-1: no limit) is shared by all uploads, or all downloads, with the same
    value.
    """

    memory: memoryview
    """The memory `read` reads into, shared with the storage process. Its size is set when the store
    is opened."""

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored: ...

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        """Read contiguous parts of an object with one request into `memory`. Raises StoreError if
        the object ends before the last part. Urgent: uses threads of its own, which uploads never
        use."""

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored: ...

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        """Copy an object of `size_bytes` from another tier, given by its URL, into this one.
        `source_key`: its key there, if different. Raises StoreError if its size differs."""

    async def head(self, key: str) -> Stored: ...

    async def close(self) -> None:
        """Cancel all calls in progress. Another call has no effect."""
