"""Moments at which a simulated process may end, and the file system of such a process.

`Points.hit` is called at every step that changes the world, and raises `Died` where a life is to
end: from then on no step of that process has an effect.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.kit.memfs import MemFile, MemFileSystem

T = TypeVar("T")


class Died(SystemExit):
    """The process is dead: no handler catches this on its way out of the loop."""


class Points:
    """Moments at which a life may end. `names`: those reached; the life ends at number `fatal`,
    counted from 0. Counting begins when `on` is set. After its death a process may still run
    cleanup code on its way out of the loop, which raises again."""

    def __init__(self, fatal: int = -1) -> None:
        self.fatal = fatal
        self.names: list[str] = []
        self.on = False
        self.dead = False
        self.buried = False

    def hit(self, name: str) -> None:
        """Called when the world is about to change, or has just changed."""
        if self.buried:
            raise OSError(errno.EIO, "this process has crashed")
        if self.dead:
            raise Died(name)
        if not self.on:
            return
        self.names.append(name)
        if len(self.names) - 1 == self.fatal:
            self.dead = True
            raise Died(name)


class PointFile:
    """A file of a process that may die. `kind`: "" if its changes are no points."""

    def __init__(self, file: MemFile, kind: str, points: Points) -> None:
        self._file, self._kind, self._points = file, kind, points

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._file, name)
        if name not in ("pwritev", "sync"):
            return method
        return lambda *args: _around(self._points, f"{name} {self._kind}", method, *args)


class PointFileSystem:
    """The file system of a process that may die: each change has a point before and after it, for
    paths to which `kind_of` gives a name."""

    def __init__(self, fs: MemFileSystem, points: Points, kind_of: Callable[[str], str]) -> None:
        self._fs, self._points, self._kind_of = fs, points, kind_of

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._fs, name)
        if name not in ("rename", "remove", "sync_dir"):
            return method
        return lambda path, *more: _around(
            self._points, f"{name} {self._kind_of(path)}", method, path, *more
        )

    def open(self, path: str, *, create: bool = False) -> Any:
        if self._points.dead:
            self._points.hit("open")
        kind = self._kind_of(path)
        if create and path not in self._fs.files:
            file = _around(
                self._points, f"create {kind}", partial(self._fs.open, create=True), path
            )
        else:
            file = self._fs.open(path, create=create)
        return PointFile(file, kind, self._points)


def kind_of(path: str) -> str:
    """The kind of a path, for the name of a point; "" for journals, which other tests cover."""
    return "segment" if "/segments" in path else ""


def _around(points: Points, name: str, method: Callable[..., T], *args: Any) -> T:
    counts = not name.endswith(" ")
    if counts or points.dead:
        points.hit("before " + name)
    result = method(*args)
    if counts:
        points.hit("after " + name)
    return result
