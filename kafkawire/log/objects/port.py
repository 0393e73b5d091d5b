"""The part of an object storage that logs of objects use, and the places of their logs.

The remote tier's store (kafkawire.tiering.store.port) has it; it is declared here, so that the log
does not depend on the tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kafkawire.objectstore.port import FileRange, Listed, Stored


class LogObjectStore(Protocol):
    """Calls of the event loop. They do what the methods of the same names of
    kafkawire.objectstore.port do, raise the same errors, and make one attempt, too: the caller
    decides about retries. A cancelled call may have taken effect."""

    async def put(
        self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Stored: ...

    async def put_ranges(self, key: str, head: bytes, ranges: Sequence[FileRange]) -> Stored:
        """Store an object of `head` and these ranges of local files, each padded with zeros to a
        multiple of 8, only if there is none. It is complete when this returns, or not there.

        Uses threads of its own, which no other call uses; ranges may be of files that grow. Raises
        ConditionFailed, after which the key may still be free (S3 answers concurrent requests so):
        read it. Raises OSError for a local file, also if it is shorter than its range; ValueError
        beyond the limits of kafkawire.objectstore.file_ranges."""

    async def get(
        self, key: str, start: int = 0, length: int | None = None
    ) -> tuple[bytes, str]: ...

    async def delete(self, keys: Sequence[str]) -> int: ...

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]: ...


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
