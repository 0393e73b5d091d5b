"""The number of transactions that RocksDB has made durable, in a file outside of its folder.

RocksDB cannot notice that the end of its log is missing or damaged: it opens with what was written
before. Each transaction has its number in the database, and is complete only when this file has it,
too. So a database with a smaller number has lost transactions that were answered, or is an older
copy; a torn end of its log, which a crash leaves, has numbers that this file does not have.

`<folder>.count` has two slots of 512 bytes. A slot, big-endian:

    0  magic 8s "KWROCKSN"   8  version u32   12  checksum u32 (of the rest)   16  number u64

Blocks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from struct import Struct

from kafkawire.codec.format_errors import FormatError, check_version
from kafkawire.crc32c import crc32c
from kafkawire.own_files import open_own

VERSION = 1
MAGIC = b"KWROCKSN"
SLOT_BYTES = 512
"""One sector, which disks write atomically."""
_SLOT = Struct(">8sIIQ")


class TransactionCount:
    """The file of one RocksDB folder. `value`: the number that is durable; None: no file."""

    def __init__(self, folder: str) -> None:
        self.path = count_path(folder)
        self.value: int | None = None

    def read(self) -> None:
        """Read the file, if there is one. Raises FormatError if both slots are damaged,
        NewerFormatError, OSError."""
        self.value = None
        with contextlib.suppress(FileNotFoundError):
            with open(self.path, "rb", opener=open_own) as file:
                data = file.read(2 * SLOT_BYTES)
            slots = [data[:SLOT_BYTES], data[SLOT_BYTES:]]
            values = [value for slot in slots if (value := _unpack(slot, self.path)) is not None]
            if not values:
                raise FormatError(f"{self.path} is damaged")
            self.value = max(values)

    def create(self) -> None:
        """Write the file of a database without transactions, durably."""
        with open(self.path, "wb", opener=open_own) as file:
            file.write(_pack(0) * 2)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(self.path)
        self.value = 0

    def store(self, value: int) -> None:
        """Overwrite one slot, durably."""
        file = open_own(self.path, os.O_WRONLY)
        try:
            # Alternately, so that a torn write leaves the other slot.
            os.pwrite(file, _pack(value), value % 2 * SLOT_BYTES)
            os.fsync(file)
        finally:
            os.close(file)
        self.value = value


def count_path(folder: str) -> str:
    return f"{folder}.count"


def count_of(folder: str) -> int:
    """Return the number of transactions that a RocksDB folder must have; 0 without the file.
    Raises what `TransactionCount.read` raises."""
    count = TransactionCount(folder)
    count.read()
    return count.value or 0


def move_database(folder: str, to: str) -> None:
    """Rename a RocksDB folder and its file, durably; nothing may be at `to` but another file."""
    # The file first, so that a call after a crash in between completes the move.
    with contextlib.suppress(FileNotFoundError):
        os.replace(count_path(folder), count_path(to))
    os.rename(folder, to)
    _sync_folder(to)


def remove_database(folder: str) -> None:
    """Remove a RocksDB folder and its file, if they exist."""
    # With 0 transactions first: after a crash it counts as missing or empty, never as a database
    # that has lost transactions.
    count = TransactionCount(folder)
    if os.path.exists(count.path):
        count.create()
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(count.path)
    _sync_folder(folder)


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _pack(value: int) -> bytes:
    body = value.to_bytes(8, "big")
    head = MAGIC + VERSION.to_bytes(4, "big")
    return (head + crc32c(body, crc32c(head)).to_bytes(4, "big") + body).ljust(SLOT_BYTES, b"\0")


def _unpack(slot: bytes, path: str) -> int | None:
    """Return the number in a slot; None if it is damaged."""
    if len(slot) < _SLOT.size:
        return None
    magic, version, checksum, value = _SLOT.unpack_from(slot)
    if magic != MAGIC or crc32c(slot[16 : _SLOT.size], crc32c(slot[:12])) != checksum:
        return None
    check_version(path, version, VERSION)
    return int(value)
