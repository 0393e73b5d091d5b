"""A folder as object storage: another disk, a network file system.

A key is a path below the folder. An object is written under a temporary name, synced, and renamed
into place (kafkawire.objectstore.staging), so that it appears atomically. Names that begin with a
dot are not objects. An ETag consists of inode, time and size, which change with each write.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, Protocol

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import NoSuchObject, StoreError
from kafkawire.objectstore.file_ranges import pread_all
from kafkawire.objectstore.port import (
    MAX_GET_BYTES,
    Listed,
    Provider,
    Reading,
    Stored,
    expect_size,
    too_large,
)
from kafkawire.objectstore.staging import Staging, StoreCondition, etag_of, translate_os_errors
from kafkawire.objectstore.url import check_key
from kafkawire.own_files import open_own
from kafkawire.rate_limit import RateLimit, SharedRateLimit

CHUNK_BYTES = 1 << 20
FOLDER = "EISDIR"
"""Code of the NoSuchObject for a key that is a folder with objects."""


class FolderProvider:
    """A folder as a Provider (kafkawire.objectstore.port). `staging`: of this folder."""

    def __init__(self, folder: str, staging: Staging, max_get_bytes: int = MAX_GET_BYTES) -> None:
        self._folder = folder
        self._staging = staging
        self._max_get_bytes = max_get_bytes
        self._write_limit = SharedRateLimit(time.monotonic, time.sleep)
        self._read_limit = SharedRateLimit(time.monotonic, time.sleep)

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        limit = self._write_limit.at(bytes_per_second)
        with open(path, "rb", opener=open_own) as source:
            size = os.fstat(source.fileno()).st_size
            return self._write(
                key, lambda out: _copy(source, out, limit, call), size, StoreCondition()
            )

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        limit = RateLimit(-1, time.monotonic, time.sleep)
        return self._write(
            key, lambda out: _copy(source, out, limit, call), size_bytes, StoreCondition()
        )

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        if_match: str | None,
        if_absent: bool,
        call: Call,
    ) -> Stored:
        """Store a small object atomically, if the condition is met."""
        condition = StoreCondition(if_match, if_absent)
        return self._write(key, lambda out: out.write(data), len(data), condition)

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        with self._open(key) as file, translate_os_errors(key):
            stat = os.fstat(file.fileno())
            start = max(0, stat.st_size + start) if start < 0 else start
            length = max(0, min(stat.st_size - start, stat.st_size if length is None else length))
            if length > self._max_get_bytes:
                raise too_large(key, length, self._max_get_bytes)
            data = pread_all(file.fileno(), length, start)
        expect_size(f"what could be read of {key} from {start} on", len(data), length)
        return data, etag_of(stat)

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        with self._open(key) as file, translate_os_errors(key):
            call.ends_by(_nothing, writing=True)
            for view in into:
                while view:
                    call.check()
                    count = os.preadv(file.fileno(), [view[:CHUNK_BYTES]], start)
                    if not count:
                        raise StoreError("Truncated", f"{key} ends at {start}")
                    view = view[count:]
                    start += count

    def download(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        limit = self._read_limit.at(bytes_per_second)
        with self._open(key) as file, new_file(path) as out:
            stat = os.fstat(file.fileno())
            _copy(_Translated(file, key), out, limit, call)
            expect_size(key, out.tell(), stat.st_size)
        return Stored(etag_of(stat), stat.st_size)

    @contextlib.contextmanager
    def reading(self, key: str, call: Call) -> Iterator[Reading]:
        with self._open(key) as file:
            yield _Translated(file, key)

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """Copy within the storage: a folder is copied as a stream."""
        return None

    def head(self, key: str, call: Call) -> Stored:
        with self._open(key) as file:
            stat = os.fstat(file.fileno())
        return Stored(etag_of(stat), stat.st_size)

    def delete(self, keys: Sequence[str], call: Call) -> int:
        paths = [self._path(key) for key in keys]
        self._staging.check()
        with translate_os_errors(", ".join(keys[:3])):
            for path in paths:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.remove(path)
            self._staging.sync_removals({os.path.dirname(path) for path in paths})
        return 1 if paths else 0

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """Return a page of the objects with this prefix, by key."""
        self._staging.check()
        with translate_os_errors(prefix):
            return list(islice(_walk(*self._above(prefix), prefix, after), limit))

    def scan(self, prefix: str, call: Call) -> Iterator[Listed]:
        self._staging.check()
        with translate_os_errors(prefix):
            yield from _walk(*self._above(prefix), prefix, "")

    def clear_up(self, keys: Sequence[str]) -> None:
        self._staging.clear_up(keys)

    def _path(self, key: str) -> str:
        check_key(key)
        return os.path.join(self._folder, key)

    def _above(self, prefix: str) -> tuple[str, str]:
        """Return the folder that holds all keys with this prefix, and its part of the key."""
        above = prefix.rpartition("/")[0]
        if not above or any(part[:1] in ("", ".") for part in above.split("/")):
            return self._folder, ""  # the root: such names are not keys and must not lead out of it
        return os.path.join(self._folder, above), f"{above}/"

    def _open(self, key: str) -> BinaryIO:
        path = self._path(key)
        with translate_os_errors(key):
            try:
                return open(path, "rb", buffering=0, opener=open_own)
            except (FileNotFoundError, NotADirectoryError):
                self._staging.check()  # to distinguish which of the two is missing
                raise NoSuchObject("NoSuchKey", f"there is no {key}") from None
            except IsADirectoryError as failure:
                raise NoSuchObject(FOLDER, f"{key}: {failure.strerror}") from None

    def _write(
        self,
        key: str,
        fill: Callable[[Writing], object],
        size_bytes: int,
        condition: StoreCondition,
    ) -> Stored:
        path = self._path(key)
        temporary = self._staging.create_temporary(key, path)
        try:
            # Here and in `fill` only errors of the tier's files are translated: a local file's
            # OSError is raised unchanged.
            with translate_os_errors(key), new_file(temporary) as out:
                try:
                    fill(_Translated(out, key))
                except OSError as failure:
                    raise _Local(failure) from None
                expect_size(key, out.tell(), size_bytes)
            stat = self._staging.settle(key, temporary, path, condition)
        except _Local as local:
            raise local.failure from None
        return Stored(etag_of(stat), stat.st_size)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """A new file that is synced at the end, or removed after a failure."""
    try:
        with open(path, "xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
    except FileExistsError:
        raise
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(path)
        raise


class Writing(Protocol):
    """A target for bytes."""

    def write(self, data: bytes | memoryview, /) -> int:
        """Write all of the bytes."""


class _Translated:
    """A file of the tier: its OSErrors become StoreErrors."""

    __slots__ = ("_file", "_key")

    def __init__(self, file: BinaryIO, key: str) -> None:
        self._file = file
        self._key = key

    def read(self, size: int = -1, /) -> bytes:
        with translate_os_errors(self._key):
            return self._file.read(size)

    def write(self, data: bytes | memoryview, /) -> int:
        with translate_os_errors(self._key):
            return self._file.write(data)


class _Local(Exception):
    """Passes a local file's OSError through the translation of the tier's."""

    def __init__(self, failure: OSError) -> None:
        super().__init__(str(failure))
        self.failure = failure


def _copy(source: Reading, out: Writing, limit: RateLimit, call: Call) -> None:
    while chunk := source.read(CHUNK_BYTES):
        out.write(chunk)
        limit.wait_for_rate(len(chunk), call.check)


def _walk(folder: str, key: str, prefix: str, after: str) -> Iterator[Listed]:
    """Yield objects in key order, which is name order if folders end with "/"."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return
    named = sorted((key + entry.name + ("/" if entry.is_dir() else ""), entry) for entry in entries)
    for name, entry in named:
        if name.endswith("/"):
            # Only folders that can have keys with the prefix, above `after`.
            if name.startswith(prefix[: len(name)]) and name + "\U0010ffff" > after:
                yield from _walk(entry.path, name, prefix, after)
        elif name.startswith(prefix) and name > after:
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                modified = stat.st_mtime_ns // 1_000_000
                yield Listed(name, stat.st_size, modified, etag_of(stat))


def _nothing() -> None:
    """Do nothing: a read of a file can only be cancelled between two pieces."""
