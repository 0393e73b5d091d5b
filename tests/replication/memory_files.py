"""Files in memory that end a process at any call, and lose what was not synced in a power failure.

The test double of kafkawire.replication.machine. After `power_failure`, of the changes of a file
since its last sync each 512-byte sector, and each truncation, may have reached the disk or not; of
the changes of names in a folder since its last sync a prefix has. `kill` ends the process only.
"""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field

from kafkawire.replication.machine import Files, failed_sync
from kafkawire.replication.messages import Buffer

SECTOR_BYTES = 512


class Crashed(BaseException):
    """The process ends here."""


@dataclass(eq=False)
class MemoryFile:
    """The bytes that programs see, those on the disk, and the changes between them: (position,
    bytes), or (size, None) for a truncation."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changes: list[tuple[int, bytes | None]] = field(default_factory=list)

    def change(self, position: int, data: bytes | None) -> None:
        _apply(self.data, position, data)
        self.changes.append((position, data))

    def sync(self) -> None:
        self.changes.clear()
        self.durable[:] = self.data

    def power_failure(self, rng: random.Random) -> None:
        chance = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for position, data in self.changes:
            if data is None:
                if rng.random() < chance:
                    _apply(self.durable, position, None)
                continue
            start, end = position, position + len(data)
            while start < end:
                stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
                if rng.random() < chance:
                    _apply(self.durable, start, data[start - position : stop - position])
                start = stop
        self.changes.clear()
        self.data = bytearray(self.durable)


@dataclass(eq=False)
class MemoryFolder:
    """The names that programs see, those on the disk, and the changes between them."""

    names: dict[str, MemoryFile | MemoryFolder] = field(default_factory=dict)
    durable: dict[str, MemoryFile | MemoryFolder] = field(default_factory=dict)
    changes: list[dict[str, MemoryFile | MemoryFolder | None]] = field(default_factory=list)

    def change(self, change: dict[str, MemoryFile | MemoryFolder | None]) -> None:
        _rename(self.names, change)
        self.changes.append(change)

    def sync(self) -> None:
        self.changes.clear()
        self.durable = dict(self.names)

    def power_failure(self, rng: random.Random) -> None:
        for change in self.changes[: rng.randrange(len(self.changes) + 1)]:
            _rename(self.durable, change)
        self.changes.clear()
        self.names = dict(self.durable)
        for node in self.names.values():
            node.power_failure(rng)


def _apply(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del target[position:]
        return
    if len(target) < position + len(data):
        target.extend(bytes(position + len(data) - len(target)))
    target[position : position + len(data)] = data


def _rename(
    names: dict[str, MemoryFile | MemoryFolder],
    change: dict[str, MemoryFile | MemoryFolder | None],
) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class MemoryFiles(Files):
    """Files in memory. `crash_at`: the number of the call that ends the process; `calls`: calls so
    far; `failing_syncs`: syncs that fail, as on Linux: the bytes look written, and are not;
    `room_bytes`: space left, if that is limited; `free`: what `free_bytes` returns."""

    def __init__(self) -> None:
        self.root = MemoryFolder()
        self.calls = 0
        self.crash_at: int | None = None
        self.failing_syncs = 0
        self.room_bytes: int | None = None
        self.free = 1 << 40
        self.opened: dict[int, MemoryFile] = {}
        self.locked: dict[int, str] = {}
        self.next_fd = 100

    def kill(self) -> None:
        """End the process; the page cache stays."""
        self.opened.clear()
        self.locked.clear()

    def power_failure(self, rng: random.Random) -> None:
        """End the machine."""
        self.kill()
        self.root.power_failure(rng)

    def open(self, path: str, *, create: bool = False) -> int:
        self._call()
        folder, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        if create:
            if name in folder.names:
                raise FileExistsError(errno.EEXIST, "exists", path)
            folder.change({name: MemoryFile()})
        node = folder.names.get(name)
        if not isinstance(node, MemoryFile):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._descriptor(node)

    def close(self, fd: int) -> None:
        self._call()
        self.opened.pop(fd)
        self.locked.pop(fd, None)

    def read(self, fd: int, length: int, position: int) -> bytes:
        self._call()
        return bytes(self.opened[fd].data[position : position + length])

    def write(self, fd: int, data: Buffer, position: int) -> None:
        file, content = self.opened[fd], bytes(data)
        try:
            self._call()
        except Crashed:
            file.change(position, content[: len(content) // 2])
            raise
        if self.room_bytes is not None:
            if len(content) > self.room_bytes:
                file.change(position, content[: self.room_bytes])
                self.room_bytes = 0
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room_bytes -= len(content)
        file.change(position, content)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._call()
        assert size_bytes <= len(self.opened[fd].data), "a copy is never extended by zeros"
        self.opened[fd].change(size_bytes, None)

    def size(self, path: str) -> int:
        self._call()
        return len(self.file(path).data)

    def free_bytes(self, path: str) -> int:
        return self.free

    def sync(self, fd: int, path: str) -> None:
        self._call()
        if self.failing_syncs:
            self.failing_syncs -= 1
            self.opened[fd].changes.clear()
            raise failed_sync(path, OSError(errno.EIO, "Input/output error"))
        self.opened[fd].sync()

    def sync_folder(self, path: str) -> None:
        self._call()
        self._folder(path).sync()

    def rename(self, old: str, new: str) -> None:
        self._call()
        parent = os.path.dirname(old)
        assert parent == os.path.dirname(new)
        folder = self._folder(parent)
        before, after = os.path.basename(old), os.path.basename(new)
        if isinstance(folder.names.get(after), MemoryFolder):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        folder.change({before: None, after: folder.names[before]})

    def remove(self, path: str) -> None:
        self._call()
        folder, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        if name in folder.names:
            folder.change({name: None})

    def names(self, path: str) -> list[str]:
        self._call()
        return sorted(self._folder(path).names)

    def make_folder(self, path: str) -> None:
        self._call()
        above, name = self._folder(os.path.dirname(path)), os.path.basename(path)
        if name not in above.names:
            above.change({name: MemoryFolder()})
            self._call()
            above.sync()

    def remove_folder(self, path: str) -> None:
        self._call()
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._folder(os.path.dirname(path)).change({os.path.basename(path): None})

    def lock(self, path: str) -> int:
        self._call()
        if path in self.locked.values():
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        fd = self._descriptor(MemoryFile())
        self.locked[fd] = path
        return fd

    def file(self, path: str) -> MemoryFile:
        """Return a file."""
        node = self._folder(os.path.dirname(path)).names.get(os.path.basename(path))
        if not isinstance(node, MemoryFile):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.crash_at:
            raise Crashed

    def _folder(self, path: str) -> MemoryFolder:
        node: MemoryFile | MemoryFolder | None = self.root
        for name in path.strip("/").split("/") if path.strip("/") else ():
            node = node.names.get(name) if isinstance(node, MemoryFolder) else None
        if not isinstance(node, MemoryFolder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return node

    def _descriptor(self, node: MemoryFile) -> int:
        self.next_fd += 1
        self.opened[self.next_fd] = node
        return self.next_fd
