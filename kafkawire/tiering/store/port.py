"""The port to object storage as the event loop sees it.

`ObjectStore` is what tiering knows of S3 or of a folder. Its failures are those of
`kafkawire.objectstore.errors`. The real one
(`kafkawire.tiering.store.process`) speaks to a child process, so that boto3 never runs next
to the event loop; the simulation's is tests/kit/tier/fake_store.py. One contract suite holds
the providers and both of these to what is promised here.

Keys are relative to the bucket and prefix of the tier and never contain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kafkawire.objectstore.port import Listed, Stored


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of an object and where they are to lie in `ObjectStore.memory`."""

    start: int
    length: int
    at: int


class ObjectStore(Protocol):
    """Each call is tried once: the caller decides about repeating it.

    Raises StoreError and its kinds; OSError only for local files (`upload`, `download`).
    A cancelled call may have been done; a cancelled `read` raises only when nothing is going to be
    written into its memory any more.

    `bytes_per_second` (-1: no limit) is shared by all uploads, or downloads, that give the same.
    """

    memory: memoryview
    """What `read` reads into; shared with the process that does it. Its size is given at open."""

    async def upload(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        """Store a local file, in parts if it is large; all of it is there when this returns."""
        ...

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        """Store a small object whole. `if_match`: only over an object with this ETag;
        `if_absent`: only where there is none. ConditionFailed otherwise."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        """(bytes, ETag) of a small object or of a part of one (negative start: from the end; a
        range that goes beyond the end is cut there). NoSuchObject."""
        ...

    async def read(self, key: str, parts: Sequence[Part]) -> None:
        """Read contiguous parts of an object (each begins where the one before ends) by one
        request into `memory`. StoreError if the object ends before the last one does.
        Urgent: has threads of its own, which uploads never take."""
        ...

    async def download(self, key: str, path: str, bytes_per_second: int = -1) -> Stored:
        """Copy an object into a new local file, synced; removes the file if it fails."""
        ...

    async def copy_from(
        self, source_url: str, key: str, size_bytes: int, source_key: str = ""
    ) -> Stored:
        """Copy an object of so many bytes from another tier, by that tier's URL, into this one.
        `source_key`: its key there, where that is another one. StoreError if its size differs."""
        ...

    async def head(self, key: str) -> Stored:
        """NoSuchObject if there is none."""
        ...

    async def delete(self, keys: Sequence[str]) -> int:
        """Remove up to 1,000 objects, absent ones too. How many requests it took."""
        ...

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        """Up to `limit` (at most 1,000) objects with this prefix, by key, above `after`."""
        ...

    async def close(self) -> None:
        """End all calls in progress. Calling it again does nothing."""
        ...
