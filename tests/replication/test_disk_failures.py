"""A follower's disk that is full, or fails.

Covers: kafkawire.replication.journal_copy, kafkawire.replication.failures.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from kafkawire.replication import journal_copy, sealed_file
from kafkawire.replication.failures import DiskFailed, FollowerError
from kafkawire.replication.machine import Files
from kafkawire.replication.node_copies import NodeCopies
from tests.replication.memory_files import MemoryFiles
from tests.replication.model import (
    NONE,
    at,
    check,
    contents,
    filled,
    model,
    opened,
    streamed,
)


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def node(files: MemoryFiles) -> NodeCopies:
    return opened(files)


def test_full_disk_removes_what_was_not_acknowledged(node: NodeCopies, files: MemoryFiles) -> None:
    log = model()
    end = filled(node, log)
    files.room_bytes = 150
    node.write(1, end, bytes(100))
    with pytest.raises(FollowerError, match=r"0000000006.journal cannot be written: No space left"):
        node.write(1, end + 100, bytes(100))
    assert contents(node, 1) == {n: bytes(data) for n, data in log.journals.items()}
    with pytest.raises(FollowerError, match="cannot be written"):
        node.write(1, at(7, 0), b"x")
    files.room_bytes = None
    assert node.start_epoch(1, NONE, 0, 5) == end
    log.append(500)
    assert streamed(node, log) == log.end
    check(node, log, 1, log.end, 0)


def test_full_disk_keeps_bytes_of_an_earlier_process(files: MemoryFiles) -> None:
    """They may have been acknowledged; nothing is known of them before they are sent again."""
    node, log = opened(files), model()
    filled(node, log, (300, 200))
    log.append(100)
    streamed(node, log)
    node = opened(files)
    end = node.start_epoch(1, NONE, 0, 5)
    files.room_bytes = 10
    with pytest.raises(FollowerError):
        node.write(1, end, bytes(log.journals[6][200:300]))
    check(node, log, 1, log.end, 0)
    files.room_bytes = None
    assert node.start_epoch(1, NONE, 0, 5) == end
    assert streamed(node, log) == log.end


def test_full_disk_in_the_next_journal(files: MemoryFiles) -> None:
    """The former journal was shortened for it, and is not made longer again by zeros."""
    node, log = opened(files), model()
    filled(node, log, (300,))
    files.file("/f/3/1/0000000005.journal").change(300, b"garbage")
    node = opened(files)
    for start, data in log.pieces(node.start_epoch(1, NONE, 0, 5), 100):
        node.write(1, start, data)
    files.room_bytes = 0
    with pytest.raises(FollowerError):
        node.write(1, at(6, 0), b"x")
    assert contents(node, 1) == {5: bytes(log.journals[5])}
    assert node.start_epoch(1, NONE, 0, 5) == at(5, 0)
    files.room_bytes = None
    log.roll()
    log.append(10)
    assert streamed(node, log) == log.end


def test_space_is_left_for_small_files(node: NodeCopies, files: MemoryFiles) -> None:
    end = filled(node, model())
    files.free = journal_copy.RESERVED_BYTES - 1
    with pytest.raises(FollowerError, match="No space left on device"):
        node.write(1, end, b"x")
    node.fence(1)
    files.free += 1
    node.write(1, end, b"x")


def test_free_space_of_a_volume(tmp_path: Path) -> None:
    assert Files().free_bytes(str(tmp_path)) > 0


def test_full_disk_gets_space_by_deletion(node: NodeCopies, files: MemoryFiles) -> None:
    """The state of a copy cannot be stored before a journal is deleted."""
    log = model()
    filled(node, log, (300, 200))
    log.roll()
    log.append(100)
    for start, data in log.pieces(at(7, 0), 100):
        node.write(1, start, data)
    files.room_bytes, remove = 0, files.remove

    def free(path: str) -> None:
        remove(path)
        if path.endswith(".journal"):
            files.room_bytes = 1000

    files.remove = free  # type: ignore[method-assign]
    assert node.sync(1) == log.end  # although its position cannot be stored
    assert node.start_epoch(1, NONE, 0, 5) == log.end
    node.mark(1, 0, 7)
    assert contents(node, 1) == {7: bytes(log.journals[7])}
    node = opened(files)
    assert node.start_epoch(1, NONE, 0, 7) == log.end


def test_failed_fsync_is_final(node: NodeCopies, files: MemoryFiles) -> None:
    log = model()
    end = filled(node, log)
    node.write(1, end, b"lost")
    files.failing_syncs = 1
    for _ in range(2):
        with pytest.raises(DiskFailed, match=r"fsync of /f/3/1/0000000006.journal failed"):
            node.sync(1)
    for each in (lambda: node.start_epoch(1, NONE, 0, 5), lambda: node.listing(1)):
        with pytest.raises(DiskFailed):
            each()
    node = opened(files)  # the page cache has bytes that are not on the disk
    log.append(10)
    assert streamed(node, log) == log.end
    files.power_failure(random.Random(2))
    check(opened(files), log, 1, log.end, 0)


def test_bytes_that_cannot_be_removed_are_final(
    node: NodeCopies, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = filled(node, model())

    def fail(fd: int, size_bytes: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "truncate", fail)
    files.room_bytes = 0
    with pytest.raises(DiskFailed, match="before an error cannot be removed"):
        node.write(1, end, b"x")


def test_change_of_epoch_that_fails_ends_the_process(
    node: NodeCopies, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = model()
    filled(node, log)

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(files, "remove", lambda path: fail(path) if "journal" in path else None)
        with pytest.raises(DiskFailed, match="cannot be changed to broker epoch 2"):
            node.start_epoch(2, 1, at(5, 100), 5)
    node = opened(files)
    assert node.listing(2).end == at(5, 100)
    check(node, log, 1, at(5, 100), 0)


def test_failed_change_of_files_is_an_error_of_the_request(
    node: NodeCopies, files: MemoryFiles
) -> None:
    files.room_bytes = 0
    with pytest.raises(FollowerError, match="/f/3: No space left on device"):
        node.fence(1)
    files.room_bytes = None
    node.fence(1)
    sealed_file.load(files, "/f/3/fence")
