"""Where files lie: a folder, or a bucket with a prefix, behind one small class.

The URL is written as a tier's is (kafkawire.objectstore.url). A place is small, pickles, and opens
what it needs when it is first used in a process. Keys are relative, with slashes. Whatever goes
wrong is a PlaceError, one sentence with the key and the URL, but for a key that is not there
(FileNotFoundError) and one that must not be there (FileExistsError).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from kafkawire.objectstore.keys import check_key
from kafkawire.objectstore.url import TierUrl, parse_tier
from kafkawire.spark.source.model import SourceError

MAX_GET_BYTES = 1 << 30
"""What `get` brings into memory: a snapshot of ten million entries is smaller."""
UNFINISHED = ".unfinished"
"""How the names end of files that are being written; they begin with a dot, and are not listed."""


class PlaceError(SourceError):
    """A folder or bucket cannot be used as it should; who may do what is in the text."""


@dataclass(frozen=True)
class Place(ABC):
    """Files by key. `tier`: where, and with which options."""

    tier: TierUrl
    at_once: ClassVar[int] = 2
    """Ranges that are worth asking for at a time: one is read, and one waits."""

    @property
    def url(self) -> str:
        """The one way to write it."""
        return self.tier.url

    def where(self, key: str) -> str:
        """A key in full, for messages."""
        return f"{self.url.partition('?')[0]}/{key}"

    @abstractmethod
    def get(self, key: str) -> bytes:
        """A whole file. FileNotFoundError."""

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """So many bytes from `start` on; fewer where the file ends before. FileNotFoundError."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Of a file, in bytes. FileNotFoundError."""

    @abstractmethod
    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Store a file whole or not at all, durably; folders on the way are made.

        `if_absent`: FileExistsError if there is one; of several who try at once one succeeds.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[str]:
        """All keys that begin with `prefix`, in the order of their bytes."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove files; those that are not there are gone already."""

    @abstractmethod
    def arrow(self) -> tuple[Any, str]:
        """A pyarrow.fs.FileSystem and the path of this place in it. Where folders are needed
        whoever writes makes them."""


def open_place(url: str) -> Place:
    """The place of a URL; nothing is looked at yet. PlaceError for a URL that is none."""
    try:
        tier = parse_tier(url)
    except ValueError as problem:
        raise PlaceError(str(problem)) from None
    if tier.is_s3:
        from kafkawire.spark.source.files.bucket import (
            BucketPlace,  # boto3 takes a third of a second
        )

        return BucketPlace(tier)
    return FolderPlace(tier)


class FolderPlace(Place):
    """A folder of this machine, or one that all machines see."""

    def get(self, key: str) -> bytes:
        """See Place."""
        with self._translated(key, "read"), open(self.path(key), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_GET_BYTES:
                raise too_large(self, key, size)
            return file.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See Place."""
        with self._translated(key, "read"), open(self.path(key), "rb", buffering=0) as file:
            data = os.pread(file.fileno(), max(0, length), start)
            while data and len(data) < length:  # the file ended, or 2 GiB were asked for
                more = os.pread(file.fileno(), length - len(data), start + len(data))
                if not more:
                    break
                data += more
            return data

    def size(self, key: str) -> int:
        """See Place."""
        with self._translated(key, "read"):
            return os.stat(self.path(key)).st_size

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """See Place."""
        path = self.path(key)
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(8)}{UNFINISHED}")
        with self._translated(key, "write"):
            os.makedirs(folder, exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if if_absent:
                    os.link(temporary, path)
                else:
                    os.replace(temporary, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            _sync_folder(folder)

    def list(self, prefix: str = "") -> Iterator[str]:
        """See Place."""
        above, _, begin = prefix.rpartition("/")
        with self._translated(prefix, "list"):
            yield from _walk(self.tier.folder, f"{above}/" if above else "", begin)

    def delete(self, keys: Iterable[str]) -> None:
        """See Place."""
        for key in keys:
            with self._translated(key, "delete"), contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(key))

    def arrow(self) -> tuple[Any, str]:
        """See Place."""
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), self.tier.folder

    def path(self, key: str) -> str:
        """Of a file."""
        name_checked(self, key)
        return os.path.join(self.tier.folder, key)

    @contextlib.contextmanager
    def _translated(self, key: str, what: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as failure:
            if what == "write":  # the folder cannot be made, as in a file or in /proc
                raise PlaceError(f"cannot write {self.where(key)}: {failure.strerror}") from None
            raise FileNotFoundError(f"{self.where(key)} is not there") from None
        except FileExistsError:
            raise FileExistsError(f"{self.where(key)} is there already") from None
        except OSError as failure:
            reason = failure.strerror or str(failure)
            raise PlaceError(f"cannot {what} {self.where(key)}: {reason}") from None


def name_checked(place: Place, key: str) -> None:
    """PlaceError for a key that would leave the place."""
    try:
        check_key(key)
    except ValueError as problem:
        raise PlaceError(f"{place.url}: {problem}") from None


def too_large(place: Place, key: str, size: int) -> PlaceError:
    """What `get` says to a file that is to be read in ranges."""
    return PlaceError(
        f"{place.where(key)} has {size} bytes: at most {MAX_GET_BYTES} are read at once"
    )


def _walk(root: str, below: str, begin: str) -> Iterator[str]:
    """Keys in the folder `below` (with a slash at its end) whose rest begins with `begin`. A name
    sorts as the key would: a folder's with its slash."""
    try:
        with os.scandir(os.path.join(root, below)) as found:
            names = [
                each.name + "/" if each.is_dir() else each.name
                for each in found
                if each.name.startswith(begin) and not each.name.startswith(".")
            ]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in sorted(names, key=os.fsencode):
        if name.endswith("/"):
            yield from _walk(root, below + name, "")
        else:
            yield below + name


def _sync_folder(folder: str) -> None:
    """Make a new name durable; not every file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
