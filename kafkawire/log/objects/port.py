"""The part of an object storage that logs of objects use; a subset of the remote tier's store
(kafkawire.tiering.store.port), so that the log does not depend on the tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kafkawire.objectstore.port import FileRange, Listed, Stored


class LogObjectStore(Protocol):
    """Every method makes one attempt. Raises StoreError and its subclasses."""

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        """Store an object of `head` and ranges of local files, each padded with zeros to a multiple
        of 8 bytes, if there is none. Raises ConditionFailed otherwise, OSError of a file."""

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored:
        """Store a small object. `if_absent`: only if there is none; raises ConditionFailed
        otherwise."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> tuple[bytes, str]:
        """Return (bytes, ETag) of an object or a range of it, which is cut at its end. Raises
        NoSuchObject."""

    async def delete(self, keys: Sequence[str]) -> int:
        """Delete up to 1,000 objects, absent ones too; return the number of requests."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        """Return up to `limit` objects with this prefix, by key, above `after`."""


class LogObjectStores(Protocol):
    """The places of the logs of one broker. `url`: the place of the log of this life, in its
    tier; earlier logs may be in tiers that it was started with before."""

    url: str

    def at(self, url: str) -> LogObjectStore:
        """Return the store of a place; it is opened without a request. Raises ValueError if the
        URL is invalid."""

    async def check(self) -> str:
        """Check whether the storage at `url` obeys conditional PUTs; return a sentence if it does
        not, otherwise an empty string. Raises StoreError if that could not be checked."""

    async def close(self) -> None:
        """Close the stores of other tiers; the tier of this broker stays open."""
