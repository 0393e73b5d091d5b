"""Atomic creation of files in a folder, under temporary names.

`OwnStaging` is for a folder that belongs to one tier: it creates the folder, with a lock and
unfinished files under names that begin with a dot. `SharedStaging` is for a folder that other
programs also use (a table, the data folder of a broker): reading creates nothing, and an unfinished
file is next to its target.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple, Protocol

from kafkawire.objectstore.errors import ConditionFailed, Refused, StoreError
from kafkawire.own_files import SymbolicLink, open_own

# Errors of files, as errors of the port.


_PASSING = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT,
            errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM,
            errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EBUSY)  # fmt: skip
"""Temporary errors."""


@contextlib.contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Raise OSErrors of the folder's own files as StoreErrors about `what`, a key or a folder."""
    try:
        yield
    except OSError as failure:
        kind = StoreError if failure.errno in _PASSING else Refused
        name = errno.errorcode.get(failure.errno or 0, type(failure).__name__)
        where = failure.filename if isinstance(failure, SymbolicLink) else what
        raise kind(name, f"{where}: {failure.strerror or failure}") from None


UNFINISHED = ".unfinished"
"""In a tier's own folder, the folder of unfinished files; in a shared one, the suffix of their
names, which also begin with a dot."""
UNFINISHED_S = 86_400.0
"""Older unfinished files were left by a process that died."""
LOCK = ".lock"


class StoreCondition(NamedTuple):
    """Condition on a key before an object is stored; see Writer.put."""

    if_match: str | None = None
    if_absent: bool = False


class Staging(Protocol):
    """The operations that differ between a tier's own folder and a shared one."""

    def check(self) -> None:
        """Raise Refused unless the folder can be used."""

    def create_temporary(self, key: str, path: str) -> str:
        """Return the path of a new temporary file, whose folder exists."""

    def settle(
        self, key: str, temporary: str, path: str, condition: StoreCondition
    ) -> os.stat_result:
        """Rename a synced file to its target, durably. Raises ConditionFailed after deleting the
        temporary file."""

    def sync_removals(self, folders: Iterable[str]) -> None:
        """Make deletions in these folders durable, if required."""

    def clear_up(self, keys: Sequence[str]) -> None:
        """Remove incomplete uploads of these keys."""


class OwnStaging:
    """Staging in a folder of one tier. `create`: the folder may be created; `seen`: it existed
    before, so it is not created again if it disappears, because an empty one would hide the
    loss."""

    def __init__(self, folder: str, create: bool, seen: bool) -> None:
        self._folder = folder
        self._unfinished = os.path.join(folder, UNFINISHED)
        self._create = create
        self._seen = seen
        self._ready = False
        self._opening = Lock()

    def check(self) -> None:
        """Create the folder if missing and allowed; raise Refused unless it can be used."""
        with self._opening, translate_os_errors(self._folder):
            if os.path.isdir(self._folder):
                self._seen = True
            elif self._seen or not self._create:
                why = "is gone" if self._seen else "does not exist, and create=false forbids it"
                raise Refused("NoSuchBucket", f"the folder {self._folder} {why}")
            if not self._ready or not os.path.isdir(self._unfinished):
                _make_folders(self._unfinished)
                self._seen = self._ready = True
                self._remove_old()

    def _remove_old(self) -> None:
        for name in os.listdir(self._unfinished):
            path = os.path.join(self._unfinished, name)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_mtime < time.time() - UNFINISHED_S:
                    os.remove(path)

    def create_temporary(self, key: str, path: str) -> str:
        self.check()
        return os.path.join(self._unfinished, f"{_begun_name(key)}{os.urandom(6).hex()}")

    def settle(
        self, key: str, temporary: str, path: str, condition: StoreCondition
    ) -> os.stat_result:
        """Rename a synced file to its target, durably; the condition is checked under the lock."""
        with translate_os_errors(key):
            try:
                _make_folders(os.path.dirname(path))
                with self._lock_renames():
                    _check_condition(key, path, condition)
                    if os.path.isdir(path):
                        raise Refused("EISDIR", f"{key} is a folder that holds other objects")
                    os.replace(temporary, path)
                    stat = os.stat(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.remove(temporary)
                raise
            sync_folder(os.path.dirname(path))
        return stat

    @contextlib.contextmanager
    def _lock_renames(self) -> Iterator[None]:
        """Held during a rename; the kernel releases it when a process dies."""
        with open(os.path.join(self._folder, LOCK), "ab", opener=open_own) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def sync_removals(self, folders: Iterable[str]) -> None:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                sync_folder(folder)

    def clear_up(self, keys: Sequence[str]) -> None:
        self.check()
        begun = tuple(_begun_name(key) for key in keys)
        with translate_os_errors(UNFINISHED):
            for name in os.listdir(self._unfinished):
                if name.startswith(begun):
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(os.path.join(self._unfinished, name))


class SharedStaging:
    """Staging in a shared folder. It takes no lock, because not every network file system has them:
    of concurrent conditional writers the one that creates the hard link succeeds."""

    def check(self) -> None:
        """Do nothing: a missing folder counts as empty."""

    def create_temporary(self, key: str, path: str) -> str:
        folder, name = os.path.split(path)
        with translate_os_errors(key):
            os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, f".{name[:100]}.{os.urandom(8).hex()}{UNFINISHED}")

    def settle(
        self, key: str, temporary: str, path: str, condition: StoreCondition
    ) -> os.stat_result:
        with translate_os_errors(key):
            try:
                if condition.if_match is not None:
                    raise Refused("NotImplemented", f"{key}: a shared folder compares no ETags")
                if condition.if_absent:
                    os.link(temporary, path)
                else:
                    os.replace(temporary, path)
                stat = os.stat(path)
            except FileExistsError:
                raise ConditionFailed("PreconditionFailed", f"{key} is there already") from None
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            with contextlib.suppress(OSError):  # not supported by every file system
                sync_folder(os.path.dirname(path))
        return stat

    def sync_removals(self, folders: Iterable[str]) -> None:
        """Do nothing: durability of deletions is not required."""

    def clear_up(self, keys: Sequence[str]) -> None:
        """Do nothing: others may be writing."""


def etag_of(stat: os.stat_result) -> str:
    """Return the ETag of a file: inode, time and size, which change with each write."""
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def sync_folder(path: str) -> None:
    """Make created and deleted names of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_condition(key: str, path: str, condition: StoreCondition) -> None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = None
    if condition.if_absent and found is not None:
        raise ConditionFailed("PreconditionFailed", f"{key} is there already")
    expected = condition.if_match
    if expected is not None and (found is None or etag_of(found) != expected):
        raise ConditionFailed("PreconditionFailed", f"{key} is not the one expected")


def _make_folders(path: str) -> None:
    """Create a folder and its parents, durably; existing ones are ignored."""
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        sync_folder(os.path.dirname(folder))


def _begun_name(key: str) -> str:
    """Return the prefix of the names of unfinished files for this key."""
    return key.encode().hex()[-128:] + "."
