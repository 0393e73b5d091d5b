"""How a file of a folder is begun and gets its name, whole or not at all. A device.

`OwnStaging` is for a folder that belongs to one tier: it makes the folder, and keeps a lock and
unfinished files in it under names that begin with a dot. `SharedStaging` is for a folder that other
programs use as well (a table, the data folder of a broker): reading makes nothing, and an
unfinished file lies next to its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple, Protocol

from kafkawire.objectstore.errors import ConditionFailed, Refused
from kafkawire.objectstore.folder_errors import translated

UNFINISHED = ".unfinished"
"""In a folder of one tier the folder of what is being written, in a shared one how the names of
such files end; these begin with a dot too."""
UNFINISHED_S = 86_400.0
"""What is older was left by a process that died."""
LOCK = ".lock"


class Condition(NamedTuple):
    """Condition on a key before something is stored there; see Writer.put."""

    if_match: str | None = None
    if_absent: bool = False


class Staging(Protocol):
    """The part of a folder that differs between one of its own and a shared one."""

    def check(self) -> None:
        """Refused unless the folder may be used."""

    def begin(self, key: str, path: str) -> str:
        """Return the path of a new temporary file, whose folder exists."""

    def settle(self, key: str, temporary: str, path: str, condition: Condition) -> os.stat_result:
        """Give a synced file its own name, durably. ConditionFailed, and then the temporary file
        is gone."""

    def removed(self, folders: Iterable[str]) -> None:
        """Make removals in these folders durable, where that is promised."""

    def clear_up(self, keys: Sequence[str]) -> None:
        """Remove what is half stored under these keys."""


class OwnStaging:
    """Staging in a folder of one tier. `create`: the folder may be made; `seen`: it
    was there, so it is not made again if it goes: what it held is lost, and an empty one in its
    place would hide that."""

    def __init__(self, folder: str, create: bool, seen: bool) -> None:
        self._folder = folder
        self._unfinished = os.path.join(folder, UNFINISHED)
        self._create = create
        self._seen = seen
        self._ready = False
        self._opening = Lock()

    def check(self) -> None:
        """Refused unless the folder may be used; it is made if it is missing and may be."""
        with self._opening, translated(self._folder):
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

    def begin(self, key: str, path: str) -> str:
        self.check()
        return os.path.join(self._unfinished, f"{_begun_name(key)}{os.urandom(6).hex()}")

    def settle(self, key: str, temporary: str, path: str, condition: Condition) -> os.stat_result:
        """Give a synced file its own name, durably: checked and renamed while the lock is held."""
        with translated(key):
            try:
                _make_folders(os.path.dirname(path))
                with self._locked():
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
    def _locked(self) -> Iterator[None]:
        """Held for a rename; the kernel releases it when a process dies."""
        with open(os.path.join(self._folder, LOCK), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def removed(self, folders: Iterable[str]) -> None:
        for folder in folders:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                sync_folder(folder)

    def clear_up(self, keys: Sequence[str]) -> None:
        self.check()
        begun = tuple(_begun_name(key) for key in keys)
        with translated(UNFINISHED):
            for name in os.listdir(self._unfinished):
                if name.startswith(begun):
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(os.path.join(self._unfinished, name))


class SharedStaging:
    """Staging in a folder that others use too. It takes no lock, which not every file
    system of several machines has: of several that store what must be absent, the one whose link
    is made succeeds."""

    def check(self) -> None:
        """Do nothing: a missing folder is an empty one."""

    def begin(self, key: str, path: str) -> str:
        folder, name = os.path.split(path)
        with translated(key):
            os.makedirs(folder, exist_ok=True)
        return os.path.join(folder, f".{name[:100]}.{os.urandom(8).hex()}{UNFINISHED}")

    def settle(self, key: str, temporary: str, path: str, condition: Condition) -> os.stat_result:
        with translated(key):
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
            with contextlib.suppress(OSError):  # not every file system can
                sync_folder(os.path.dirname(path))
        return stat

    def removed(self, folders: Iterable[str]) -> None:
        """Do nothing: it is not promised."""

    def clear_up(self, keys: Sequence[str]) -> None:
        """Do nothing: others may be writing."""


def etag_of(stat: os.stat_result) -> str:
    """Return the ETag of a file: inode, time and size are all new at each write."""
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def sync_folder(path: str) -> None:
    """Make new and removed names of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_condition(key: str, path: str, condition: Condition) -> None:
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
    """Make a folder and those above it, durably; existing ones are fine."""
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.makedirs(folder, exist_ok=True)
        sync_folder(os.path.dirname(folder))


def _begun_name(key: str) -> str:
    """Return what names of unfinished files begin with that are written for this key."""
    return key.encode().hex()[-128:] + "."
