"""A folder as a tier: another disk, a network file system. A device.

A key is a path below the folder. An object is written under a temporary name, synced, and renamed
into place while the folder's lock is held, so that it is there whole or not at all and conditions
hold between processes. Names that begin with a dot are the folder's own: the lock, what is being
written. An ETag is made of inode, time and size, all new at each write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import BinaryIO, Protocol

from kafkawire.objectstore.calls import Call
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.objectstore.keys import check_key
from kafkawire.objectstore.port import (
    MAX_GET_BYTES,
    Listed,
    Provider,
    Reading,
    Stored,
    expect_size,
    too_large,
)
from kafkawire.objectstore.rate_limit import Pace, Paces

CHUNK_BYTES = 1 << 20
UNFINISHED = ".unfinished"
"""What is being written; older than a day it was left by a process that died."""
UNFINISHED_S = 86_400.0
LOCK = ".lock"
_MENDS_ITSELF = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT,
                 errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
                 errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EBUSY)  # fmt: skip


class FolderProvider:
    """See the module and kafkawire.objectstore.port.Provider. `create`: the folder may be
    made."""

    def __init__(self, folder: str, create: bool = True) -> None:
        self.seen = False
        self._folder = folder
        self._create = create
        self._ready = False
        self._opening = Lock()
        self._paces = Paces(time.monotonic, time.sleep), Paces(time.monotonic, time.sleep)

    def upload(self, key: str, path: str, bytes_per_second: int, call: Call) -> Stored:
        """See Provider."""
        pace = self._paces[0].at(bytes_per_second)
        with open(path, "rb") as source:
            size = os.fstat(source.fileno()).st_size
            return self._write(key, lambda out: _copy(source, out, pace, call), size)

    def upload_from(self, key: str, source: Reading, size_bytes: int, call: Call) -> Stored:
        """See Provider."""
        return self._write(key, lambda out: _copy(source, out, None, call), size_bytes)

    def put(
        self, key: str, data: bytes, if_match: str | None, if_absent: bool, call: Call
    ) -> Stored:
        """See Provider."""

        def allowed(found: os.stat_result | None) -> None:
            if if_absent and found is not None:
                raise ConditionFailed("PreconditionFailed", f"{key} is there already")
            if if_match is not None and (found is None or _etag(found) != if_match):
                raise ConditionFailed("PreconditionFailed", f"{key} is not the one expected")

        return self._write(key, lambda out: out.write(data), len(data), allowed)

    def get(self, key: str, start: int, length: int | None, call: Call) -> tuple[bytes, str]:
        """See Provider."""
        with self._open(key) as file, _translated(key):
            stat = os.fstat(file.fileno())
            start = max(0, stat.st_size + start) if start < 0 else start
            length = max(0, min(stat.st_size - start, stat.st_size if length is None else length))
            if length > MAX_GET_BYTES:
                raise too_large(key, length)
            file.seek(start)
            data = file.read(length)
        expect_size(f"what could be read of {key} from {start} on", len(data), length)
        return data, _etag(stat)

    def read(self, key: str, start: int, into: Sequence[memoryview], call: Call) -> None:
        """See Provider."""
        with self._open(key) as file, _translated(key):
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
        """See Provider."""
        pace = self._paces[1].at(bytes_per_second)
        with self._open(key) as file, new_file(path) as out:
            stat = os.fstat(file.fileno())
            _copy(_Translated(file, key), out, pace, call)
            expect_size(key, out.tell(), stat.st_size)
        return Stored(_etag(stat), stat.st_size)

    @contextlib.contextmanager
    def reading(self, key: str, call: Call) -> Iterator[Reading]:
        """See Provider."""
        with self._open(key) as file:
            yield _Translated(file, key)

    def copy(self, source: Provider, source_key: str, key: str, call: Call) -> Stored | None:
        """See Provider: a folder is copied as a stream."""
        return None

    def head(self, key: str, call: Call) -> Stored:
        """See Provider."""
        with self._open(key) as file:
            stat = os.fstat(file.fileno())
        return Stored(_etag(stat), stat.st_size)

    def delete(self, keys: Sequence[str], call: Call) -> int:
        """See Provider."""
        paths = [self._path(key) for key in keys]
        self._make_ready()
        with _translated(", ".join(keys[:3])):
            for path in paths:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.remove(path)
            for folder in {os.path.dirname(path) for path in paths}:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    _sync_folder(folder)
        return 1 if paths else 0

    def list(self, prefix: str, after: str, limit: int, call: Call) -> list[Listed]:
        """See Provider."""
        self._make_ready()
        with _translated(prefix):
            return list(islice(_walk(self._folder, "", prefix, after), limit))

    def clear_up(self, keys: Sequence[str]) -> None:
        """See Provider."""
        self._make_ready()
        unfinished = os.path.join(self._folder, UNFINISHED)
        begun = tuple(_begun_name(key) for key in keys)
        with _translated(UNFINISHED):
            for name in os.listdir(unfinished):
                if name.startswith(begun):
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(os.path.join(unfinished, name))

    # What they share

    def _path(self, key: str) -> str:
        check_key(key)
        return os.path.join(self._folder, key)

    def _make_ready(self) -> None:
        """The folder, made if it is missing and may be; Refused otherwise."""
        with self._opening, _translated(self._folder):
            if os.path.isdir(self._folder):
                self.seen = True
            elif self.seen or not self._create:
                why = "is gone" if self.seen else "does not exist, and create=false forbids it"
                raise Refused("NoSuchBucket", f"the folder {self._folder} {why}")
            unfinished = os.path.join(self._folder, UNFINISHED)
            if not self._ready or not os.path.isdir(unfinished):
                _make_folders(unfinished)
                self.seen = self._ready = True
                self._forget(unfinished)

    def _forget(self, unfinished: str) -> None:
        for name in os.listdir(unfinished):
            path = os.path.join(unfinished, name)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_mtime < time.time() - UNFINISHED_S:
                    os.remove(path)

    def _open(self, key: str) -> BinaryIO:
        path = self._path(key)
        with _translated(key):
            try:
                return open(path, "rb")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                self._make_ready()  # because it makes a difference which of the two is missing
                raise NoSuchObject("NoSuchKey", f"there is no {key}") from None

    def _write(
        self,
        key: str,
        fill: Callable[[Writing], object],
        size_bytes: int,
        allowed: Callable[[os.stat_result | None], None] = lambda found: None,
    ) -> Stored:
        path = self._path(key)
        self._make_ready()
        name = f"{_begun_name(key)}{os.urandom(6).hex()}"
        temporary = os.path.join(self._folder, UNFINISHED, name)
        try:
            # Here and in fill only what concerns the tier is translated: a local file's OSError is
            # the caller's.
            with _translated(key), new_file(temporary) as out:
                try:
                    fill(_Translated(out, key))
                except OSError as failure:
                    raise _Local(failure) from None
                expect_size(key, out.tell(), size_bytes)
            return self._settle(key, temporary, path, allowed)
        except _Local as local:
            raise local.failure from None

    def _settle(
        self,
        key: str,
        temporary: str,
        path: str,
        allowed: Callable[[os.stat_result | None], None],
    ) -> Stored:
        """From the temporary name to its own."""
        with _translated(key):
            try:
                _make_folders(os.path.dirname(path))
                with self._locked():
                    allowed(_stat(path))
                    if os.path.isdir(path):
                        raise Refused("EISDIR", f"{key} is a folder that holds other objects")
                    os.replace(temporary, path)
                    stat = os.stat(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.remove(temporary)
                raise
            _sync_folder(os.path.dirname(path))
        return Stored(_etag(stat), stat.st_size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Held for a rename; the kernel lets go of it when a process dies."""
        with open(os.path.join(self._folder, LOCK), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@contextlib.contextmanager
def new_file(path: str) -> Iterator[BinaryIO]:
    """A file that is synced at the end, and removed if that is not reached."""
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
    """Where bytes go."""

    def write(self, data: bytes, /) -> int:
        """All of them."""
        ...


class _Translated:
    """A file of the tier: its OSErrors are StoreErrors."""

    __slots__ = ("_file", "_key")

    def __init__(self, file: BinaryIO, key: str) -> None:
        self._file = file
        self._key = key

    def read(self, size: int = -1, /) -> bytes:
        with _translated(self._key):
            return self._file.read(size)

    def write(self, data: bytes, /) -> int:
        with _translated(self._key):
            return self._file.write(data)


class _Local(Exception):
    """Carries a local file's OSError past the translation of the tier's."""

    def __init__(self, failure: OSError) -> None:
        super().__init__(str(failure))
        self.failure = failure


def _copy(source: Reading, out: Writing, pace: Pace | None, call: Call) -> None:
    while chunk := source.read(CHUNK_BYTES):
        out.write(chunk)
        call.check()
        if pace is not None:
            pace.take(len(chunk), call)


def _walk(folder: str, key: str, prefix: str, after: str) -> Iterator[Listed]:
    """Objects in the order of their keys, which is that of names if folders end with "/"."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except FileNotFoundError:
        return
    named = sorted((key + entry.name + ("/" if entry.is_dir() else ""), entry) for entry in entries)
    for name, entry in named:
        if name.endswith("/"):
            # Only a folder that can hold keys with the prefix, above `after`.
            if name.startswith(prefix[: len(name)]) and name + "\U0010ffff" > after:
                yield from _walk(entry.path, name, prefix, after)
        elif name.startswith(prefix) and name > after:
            with contextlib.suppress(FileNotFoundError):
                stat = entry.stat()
                modified = stat.st_mtime_ns // 1_000_000
                yield Listed(name, stat.st_size, modified, _etag(stat))


def _begun_name(key: str) -> str:
    """What names of files begin with that are written for this key."""
    return key.encode().hex()[-128:] + "."


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def _nothing() -> None:
    """A read of a file cannot be ended, but by looking between two pieces."""


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """The tier's own OSErrors as StoreErrors."""
    try:
        yield
    except OSError as failure:
        raise kind_of(failure)(_name(failure), f"{what}: {failure.strerror or failure}") from None


def kind_of(failure: OSError) -> type[StoreError]:
    """Whether a later try may mend it."""
    return StoreError if failure.errno in _MENDS_ITSELF else Refused


def _name(failure: OSError) -> str:
    return errno.errorcode.get(failure.errno or 0, type(failure).__name__)


def _make_folders(path: str) -> None:
    """Make a folder and those above it, durably; existing ones are fine."""
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        _sync_folder(os.path.dirname(folder))


def _sync_folder(path: str) -> None:
    """Make new and removed names of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
