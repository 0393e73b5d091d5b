"""Snapshots of coordinators: their bytes, and files that cannot be used."""

from __future__ import annotations

import dataclasses
import struct

import crc32c
import pytest

from kafkawire.coordination.snapshot import (
    Contents,
    PendingPair,
    SnapshotLocation,
    Term,
    read,
    remove,
    write,
)
from tests.kit.memfs import MemFileSystem

PLACE = SnapshotLocation("/folder", b"t" * 16, 3, b"KWTRANSA", "transactions")
PAIRS = [(b"key", b"value"), (b"", b""), (b"k" * 70_000, b"v")]


def test_the_bytes() -> None:
    fs = MemFileSystem()
    size = write(fs, PLACE, Contents(42, [(b"key", b"value")], []))
    file = fs.open("/folder/transactions-3.snapshot")
    data = file.pread(file.size(), 0)
    body = (
        struct.pack(">8sH16siqI", b"KWTRANSA", 1, b"t" * 16, 3, 42, 1)
        + struct.pack(">I3sI5s", 3, b"key", 5, b"value")
    )  # fmt: skip
    assert data == body + struct.pack(">I", crc32c.crc32c(body))
    assert size == len(data)
    assert read(fs, PLACE) == Contents(42, [(b"key", b"value")], [])


def test_the_bytes_with_a_leader_epoch() -> None:
    fs = MemFileSystem()
    contents = Contents(42, [(b"key", b"value")], [], Term(5, 1_700_000_000_000))
    write(fs, PLACE, contents)
    file = fs.open(PLACE.path)
    body = (
        struct.pack(">8sH16siqI", b"KWTRANSA", 3, b"t" * 16, 3, 42, 1)
        + struct.pack(">iq", 5, 1_700_000_000_000)
        + struct.pack(">I3sI5sI", 3, b"key", 5, b"value", 0)
    )  # fmt: skip
    assert file.pread(file.size(), 0) == body + struct.pack(">I", crc32c.crc32c(body))
    assert read(fs, PLACE) == contents


def test_a_snapshot_replaces_the_one_before() -> None:
    fs = MemFileSystem()
    assert read(fs, PLACE) is None
    write(fs, PLACE, Contents(1, PAIRS[:1], []))
    write(fs, PLACE, Contents(2, PAIRS, []))
    assert read(fs, PLACE) == Contents(2, PAIRS, [])
    remove(fs, PLACE)
    assert read(fs, PLACE) is None


@pytest.mark.parametrize(
    "change", [{"magic": b"KWGROUPS"}, {"topic_id": b"u" * 16}, {"partition": 4}]
)
def test_a_snapshot_of_something_else(
    change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemFileSystem()
    write(fs, PLACE, Contents(1, PAIRS, []))
    other = dataclasses.replace(PLACE, **change)  # type: ignore[arg-type]
    fs.rename(PLACE.path, other.path)
    assert read(fs, other) is None
    assert "ignoring snapshot" in caplog.text


@pytest.mark.parametrize("pending", [[], [PendingPair(7, True, b"key", b"later")]])
@pytest.mark.parametrize("term", [None, Term(5, 6)])
def test_every_damaged_byte_is_noticed(pending: list[PendingPair], term: Term | None) -> None:
    fs = MemFileSystem()
    contents = Contents(1, PAIRS[:2], pending, term)
    size = write(fs, PLACE, contents)
    file = fs.open(PLACE.path)
    whole = file.pread(size, 0)
    for at in range(size):
        file.pwritev([bytes([whole[at] ^ 0x41])], at)
        assert read(fs, PLACE) is None
        file.pwritev([whole[at : at + 1]], at)
    for length in range(size):
        file.truncate(length)
        assert read(fs, PLACE) is None
        file.pwritev([whole], 0)
    assert read(fs, PLACE) == contents
