"""A file system in memory that loses what was not synced: the test double of kafkawire.log.io.disk.

`crash` discards unsynced bytes like a power failure: of the writes since a file's last sync each
512-byte sector may have reached the disk or not, in any order; of the renames and removals since a
folder's last sync a prefix has. Faults are data: `Faults` says how much space is left and which
syncs fail. tests/log/io/test_ports.py checks it against the contract of kafkawire.log.io.ports.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafkawire.log.io.ports import Buffer

SECTOR_BYTES = 512


@dataclass
class Faults:
    """Failures to inject. `room_bytes`: bytes that may be written until the disk is full (None: no
    limit); `failing_syncs`: how many of the next syncs fail; `failing_writes`: likewise."""

    room_bytes: int | None = None
    failing_syncs: int = 0
    failing_writes: int = 0
    short_writes: int = 0


class Node:
    """The bytes of one file: as programs see them, as the disk has them, and the difference."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.writes: list[tuple[int, bytes]] = []

    def resize(self, size_bytes: int) -> None:
        """Copy into a new buffer, because views refer to the old one."""
        kept = self.data[:size_bytes]
        self.data = bytearray(size_bytes)
        self.data[: len(kept)] = kept

    def sync(self) -> None:
        """Make the disk match what programs see."""
        _patch(self.durable, len(self.data), self.writes)
        self.writes.clear()

    def crash(self, rng: random.Random) -> None:
        """Keep any subset of the sectors written since the last sync."""
        kept: list[tuple[int, bytes]] = []
        chance = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for position, data in self.writes:
            start = position
            while start < position + len(data):
                stop = min(position + len(data), (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
                if rng.random() < chance:
                    kept.append((start, data[start - position : stop - position]))
                start = stop
        _patch(self.durable, len(self.data), kept)
        self.writes.clear()
        self.data = bytearray(self.durable)


def _patch(data: bytearray, size_bytes: int, writes: list[tuple[int, bytes]]) -> None:
    if len(data) < size_bytes:
        data.extend(bytes(size_bytes - len(data)))
    elif len(data) > size_bytes:
        del data[size_bytes:]
    for position, part in writes:
        part = part[: max(0, size_bytes - position)]
        data[position : position + len(part)] = part


class MemFile:
    """A file handle, unusable once it is closed, and after a crash of the file system it came
    from."""

    def __init__(self, fs: MemFileSystem, node: Node) -> None:
        self._fs = fs
        self._node = node
        self._life = fs.life
        self._closed = False

    def _check(self) -> Node:
        if self._closed:
            raise OSError(errno.EBADF, "bad file descriptor")
        if self._life != self._fs.life:
            raise OSError(errno.EIO, "this process has crashed")
        return self._node

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        node = self._check()
        assert len(buffers) <= 1000, "more buffers than one call takes"
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._fs.pause("write")
        faults = self._fs.faults
        if faults.failing_writes:
            faults.failing_writes -= 1
            raise OSError(errno.EIO, "input/output error")
        if faults.short_writes:
            faults.short_writes -= 1
            data = data[: self._fs.rng.randrange(len(data)) if data else 0]
        if faults.room_bytes is not None:
            data = data[: faults.room_bytes]
            if not data:
                raise OSError(errno.ENOSPC, "no space left on device")
            faults.room_bytes -= len(data)
        if position + len(data) > len(node.data):
            node.resize(position + len(data))
        node.data[position : position + len(data)] = data
        node.writes.append((position, data))
        return len(data)

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._check().data[position : position + length])

    def is_cached(self, length: int, position: int) -> bool:
        self._check()
        return not self._fs.cold

    def drop_cached(self) -> bool:
        self._check()
        return not self._fs.in_use

    def send(self, socket_fd: int, length: int, position: int) -> int:
        data = self.pread(length, position)
        return os.write(socket_fd, data) if data else 0

    def sync(self) -> None:
        node = self._check()
        self._fs.pause("sync")
        if self._fs.faults.failing_syncs:
            self._fs.faults.failing_syncs -= 1
            node.writes.clear()  # as Linux does: the pages are clean, and were never written
            raise OSError(errno.EIO, "input/output error")
        node.sync()

    def allocate(self, size_bytes: int) -> None:
        node = self._check()
        if size_bytes > len(node.data):
            node.resize(size_bytes)

    def truncate(self, size_bytes: int) -> None:
        self._check().resize(size_bytes)

    def size(self) -> int:
        return len(self._check().data)

    def map(self, size_bytes: int) -> memoryview:
        node = self._check()
        if size_bytes > len(node.data):
            raise ValueError("mmap length is greater than file size")
        return memoryview(node.data)[:size_bytes].toreadonly()

    def close(self) -> None:
        self._closed = True


class MemLock:
    """Held until released, or until the crash."""

    def __init__(self, fs: MemFileSystem, path: str) -> None:
        self._fs, self._path = fs, path

    def release(self) -> None:
        self._fs.locks.discard(self._path)


class MemFileSystem:
    """The file system of this module. `pause(what)` is called before each write and sync, and may
    take time."""

    def __init__(
        self, rng: random.Random | None = None, pause: Callable[[str], None] = lambda what: None
    ) -> None:
        self.rng = rng or random.Random(0)
        self.pause = pause
        self.faults = Faults()
        self.in_use = False  # whether sockets have pages of all files
        self.cold = False  # whether nothing is in the page cache
        self.life = 0
        self.locks: set[str] = set()
        self.files: dict[str, Node] = {}
        self.folders: set[str] = {"/"}
        self.durable: dict[str, Node] = {}
        self._changes: dict[str, list[tuple[str, Node | None]]] = {}

    def crash(self) -> None:
        """Simulate a power failure: handles become unusable; unsynced bytes and names may be
        lost."""
        self.life += 1
        self.locks.clear()
        for changes in self._changes.values():
            for path, node in changes[: self.rng.randrange(len(changes) + 1)]:
                self._set(self.durable, path, node)
        self._changes.clear()
        for node in {id(node): node for node in self.durable.values()}.values():
            node.crash(self.rng)
        self.files = dict(self.durable)

    def kill(self) -> None:
        """End the process only: the page cache survives and is written in the end."""
        self.life += 1
        self.locks.clear()

    def open(self, path: str, *, create: bool = False) -> MemFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            assert os.path.dirname(path) in self.folders, f"no folder for {path}"
            self._change(path, Node())
        return MemFile(self, self.files[path])

    def rename(self, old: str, new: str) -> None:
        # One entry in the list: a rename happens whole or not at all.
        node = self.files.pop(old)
        self.files[new] = node
        changes = self._changes.setdefault(os.path.dirname(new), [])
        changes.append((old + "\0" + new, node))

    def remove(self, path: str) -> None:
        if path in self.files:
            self._change(path, None)

    def listdir(self, path: str) -> list[str]:
        if path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        inside = [*self.files, *self.folders - {path}]
        return sorted(os.path.basename(name) for name in inside if os.path.dirname(name) == path)

    def makedirs(self, path: str) -> None:
        while path not in self.folders:
            self.folders.add(path)
            path = os.path.dirname(path)

    def remove_folder(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self.folders.remove(path)

    def sync_dir(self, path: str) -> None:
        for name, node in self._changes.pop(path, []):
            self._set(self.durable, name, node)

    def lock(self, path: str) -> MemLock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, "held", path)
        self.locks.add(path)
        return MemLock(self, path)

    def native(self, path: str) -> str | None:
        return None

    def identity(self, path: str) -> str:
        return path

    def free_bytes(self, path: str) -> tuple[int, int]:
        room = self.faults.room_bytes
        return 1 << 40, 1 << 39 if room is None else room

    def _change(self, path: str, node: Node | None) -> None:
        self._set(self.files, path, node)
        self._changes.setdefault(os.path.dirname(path), []).append((path, node))

    @staticmethod
    def _set(names: dict[str, Node], path: str, node: Node | None) -> None:
        old, _, new = path.partition("\0")
        if new:
            assert node is not None
            names.pop(old, None)
            names[new] = node
        elif node is None:
            names.pop(old, None)
        else:
            names[old] = node
