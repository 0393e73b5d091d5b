"""Locations of files: a folder, or a bucket with a prefix, with one interface.

The URL is that of a tier (kafkawire.objectstore.url). A place is small, can be pickled, and opens
its store (kafkawire.objectstore) on first use in a process. Keys are relative, with slashes. Every
failure is a PlaceError with one sentence, the key and the URL, except for a missing key
(FileNotFoundError) and an unexpected one (FileExistsError).
"""

from __future__ import annotations

import contextlib
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from kafkawire.manifest.keys import FILTERS
from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, StoreError
from kafkawire.objectstore.folder import FOLDER
from kafkawire.objectstore.open import shared_folder, shared_plugged
from kafkawire.objectstore.port import MAX_DELETE, TOO_LARGE, Objects
from kafkawire.objectstore.retrying import RetryingObjects
from kafkawire.objectstore.staging import UNFINISHED
from kafkawire.objectstore.url import TierUrl, check_key
from kafkawire.reading.files import traffic
from kafkawire.reading.model.source import MAX_REQUESTS, SourceError, Unreachable

if TYPE_CHECKING:
    from kafkawire.objectstore.s3 import Access

__all__ = ["MAX_GET_BYTES", "UNFINISHED", "FolderPlace", "Place", "PlaceError"]

MAX_GET_BYTES = 1 << 30
"""Maximum size for `get`: a snapshot of ten million entries is smaller."""


class PlaceError(SourceError):
    """A folder or bucket cannot be used; the text names the missing permission."""


class UnreachablePlace(PlaceError, Unreachable):
    """A folder or bucket cannot be used now: time-outs, refused connections, 5xx."""


@dataclass(frozen=True)
class Place(ABC):
    """Files by key. `tier`: location and options."""

    tier: TierUrl
    at_once: ClassVar[int] = 2
    """Useful number of concurrent requests: one is being read, and one waits."""

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self.tier.url

    def where(self, key: str) -> str:
        """Return a key in full, for messages."""
        return f"{self.url.partition('?')[0]}/{key}"

    def get(self, key: str) -> bytes:
        """Return a whole file. FileNotFoundError."""
        return self._read(key, 0, None)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return so many bytes from `start` on; fewer where the file ends before.
        FileNotFoundError."""
        if length <= 0:
            return b""
        return self._read(key, start, length)

    def size(self, key: str) -> int:
        """Return the size of a file in bytes. FileNotFoundError."""
        traffic.count(self.url, 0)
        with self._translate_errors(key, "look at"):
            return self._objects().head(self._check_key(key), Call()).size_bytes

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Store a file atomically and durably; creates folders on the path.

        `if_absent`: raises FileExistsError if there is one; of concurrent writers one succeeds.
        """
        with self._translate_errors(key, "write"):
            self._objects().put(self._check_key(key), data, None, if_absent, Call())

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield all keys that begin with `prefix`, in the order of their bytes."""
        traffic.count(self.url, 0)
        with self._translate_errors(prefix, "list"):
            for found in self._objects().scan(prefix, Call()):
                yield found.key

    def first_key(self, prefix: str, after: str) -> str | None:
        """Return the first key above `after` that begins with `prefix`; None if there is none."""
        traffic.count(self.url, 0)
        with self._translate_errors(prefix, "list"):
            found = self._objects().list(prefix, after, 1, Call())
        return found[0].key if found else None

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        left = iter(keys)
        while some := [self._check_key(key) for key in islice(left, MAX_DELETE)]:
            what = some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} others"
            with self._translate_errors(what, "delete"):
                self._objects().delete(some, Call())

    @abstractmethod
    def arrow(self) -> tuple[Any, str]:
        """Return a pyarrow.fs.FileSystem and the path of this place in it. Where folders are
        needed the caller makes them."""

    @abstractmethod
    def access(self) -> Access | None:
        """Return what other libraries need to use this bucket; None for a folder. PlaceError."""

    @abstractmethod
    def _objects(self) -> Objects:
        """Return the store of this process."""

    def _read(self, key: str, start: int, length: int | None) -> bytes:
        data = b""
        try:
            with self._translate_errors(key, "read"):
                data = self._objects().get(self._check_key(key), start, length, Call())[0]
        finally:
            packs = key.startswith(FILTERS)
            traffic.count(f"{self.url} (filter packs)" if packs else self.url, len(data))
        return data

    def _check_key(self, key: str) -> str:
        """Return the key. Raises PlaceError for one outside of the place."""
        try:
            check_key(key)
        except ValueError as problem:
            raise PlaceError(f"{self.url}: {problem}") from None
        return key

    @contextlib.contextmanager
    def _translate_errors(self, key: str, what: str) -> Iterator[None]:
        try:
            yield
        except ConditionFailed:
            raise FileExistsError(f"{self.where(key)} is there already") from None
        except StoreError as failure:
            if isinstance(failure, NoSuchObject) and failure.code != FOLDER:
                raise FileNotFoundError(f"{self.where(key)} is not there") from None
            if failure.code == TOO_LARGE:
                raise PlaceError(self.where(failure.text)) from None
            reason = self._reason(key, failure)
            kind = UnreachablePlace if failure.retryable else PlaceError
            raise kind(f"cannot {what} {self.where(key)}: {reason}") from None

    def _reason(self, key: str, failure: StoreError) -> str:
        """Return why a call failed, without the key, which the sentence has already."""
        return failure.text.removeprefix(f"{key}: ").rstrip(".")


class FolderPlace(Place):
    """A folder of this machine, or a shared one."""

    def arrow(self) -> tuple[Any, str]:
        """Return a pyarrow.fs.FileSystem and the path of this place in it."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), self.tier.folder

    def access(self) -> None:
        """Return None: a folder is used by its path."""
        return None

    def _objects(self) -> Objects:
        return shared_folder(self.tier, MAX_GET_BYTES)


class PluggedPlace(Place):
    """A bucket in the store of a plug-in. Kafkawire reads and writes it; other libraries do not."""

    at_once: ClassVar[int] = 8

    def arrow(self) -> tuple[Any, str]:
        """Raise PlaceError: pyarrow has no file system for it."""
        raise PlaceError(f"{self.url}: tables and Parquet files need a folder or s3://")

    def access(self) -> Access:
        """Raise PlaceError, as `arrow` does."""
        raise PlaceError(f"{self.url}: tables and Parquet files need a folder or s3://")

    def _objects(self) -> Objects:
        try:
            inner = shared_plugged(self.tier, MAX_REQUESTS + 8, MAX_GET_BYTES)
        except StoreError as failure:
            raise PlaceError(f"{self.tier.url} cannot be opened: {failure.text}") from None
        return RetryingObjects(inner, time.sleep, random.random)
