"""Copies of a broker's logs: what is written, resumed, marked and deleted.

Covers: kafkawire.replication.node_copies, kafkawire.replication.journal_copy.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from kafkawire.replication import journal_copy
from kafkawire.replication.failures import Fenced, FollowerError
from kafkawire.replication.follower import Follower
from kafkawire.replication.machine import Files
from kafkawire.replication.node_copies import NodeCopies
from tests.replication.memory_files import MemoryFiles
from tests.replication.model import (
    NODE,
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


# Writing


def test_copy_has_the_same_files_as_the_log(tmp_path: Path) -> None:
    follower = Follower(Files(), str(tmp_path / "folder"))
    log = model()
    assert filled(follower.node(NODE), log) == log.end
    folder = tmp_path / "folder" / "3" / "1"
    names = [each.name for each in sorted(folder.iterdir())]
    assert names == ["0000000005.journal", "0000000006.journal", "copy"]
    for number, data in log.journals.items():
        assert folder.joinpath(f"{number:010d}.journal").read_bytes() == data
    follower.close()
    again = Follower(Files(), str(tmp_path / "folder"))
    assert contents(again.node(NODE), 1) == {n: bytes(data) for n, data in log.journals.items()}
    again.close()


def test_empty_copy_ends_at_the_first_journal(node: NodeCopies) -> None:
    assert node.start_epoch(1, NONE, 0, 5) == at(5, 0)
    assert node.sync(1) == at(5, 0)
    assert node.listing(1).end == at(5, 0)
    assert node.start_epoch(1, NONE, 0, 8) == at(8, 0)  # nothing of it was sent
    node.write(1, at(8, 0), b"x")
    assert node.sync(1) == at(8, 1)


def test_bytes_must_continue_the_copy(node: NodeCopies) -> None:
    node.start_epoch(1, NONE, 0, 5)
    node.write(1, at(5, 0), b"abc")
    for position in (at(5, 2), at(5, 4), at(6, 1), at(4, 0), at(5, 0)):
        with pytest.raises(FollowerError, match="does not continue the copy"):
            node.write(1, position, b"x")
    node.write(1, at(5, 3), b"d")
    node.write(1, at(9, 0), b"later")  # journals between them were empty
    assert node.sync(1) == at(9, 5)
    assert contents(node, 1) == {5: b"abcd", 9: b"later"}


def test_write_needs_the_copy_of_its_epoch(node: NodeCopies) -> None:
    for each in (lambda: node.write(1, 0, b""), lambda: node.sync(1)):
        with pytest.raises(FollowerError, match="no copy of epoch 1 of broker 3 was begun"):
            each()


def test_connection_resumes_at_the_end() -> None:
    for seed in range(5):
        files = MemoryFiles()
        node = opened(files)
        end = filled(node, model())
        node.write(1, end, b"x")
        assert node.start_epoch(1, NONE, 0, 5) == end + 1  # and it is durable
        files.power_failure(random.Random(seed))
        assert opened(files).read(1, end, 10) == b"x"


def test_many_journals_are_written_with_few_open_files(
    node: NodeCopies, files: MemoryFiles
) -> None:
    node.start_epoch(1, NONE, 0, 0)
    for number in range(100):
        node.write(1, at(number, 0), b"x")
        assert len(files.opened) <= journal_copy.MAX_UNSYNCED_JOURNALS + 3
    assert node.sync(1) == at(99, 1)
    assert len(files.opened) == 2  # the lock, and the last journal


# Starts of the process


def test_bytes_are_sent_again_after_a_start(files: MemoryFiles) -> None:
    """Of bytes after the stored durable position it is not known whether they are on the disk."""
    node, log = opened(files), model()
    end = filled(node, log)
    node = opened(files)
    assert node.listing(1).end == end  # nothing that was acknowledged is gone
    assert node.start_epoch(1, NONE, 0, 5) == at(6, 200)  # stored with the end of journal 5
    log.append(50)
    assert streamed(node, log) == log.end
    check(node, log, 1, log.end, 0)
    node = opened(files)
    assert node.listing(1).end == log.end
    assert node.start_epoch(1, NONE, 0, 5) == at(6, 200)
    assert node.listing(1).end == log.end
    assert streamed(node, log) == log.end


def test_durable_position_is_stored_after_many_bytes(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_copy, "RECORD_EVERY_BYTES", 1000)
    node, log, ends = opened(files), model(), []
    for _ in range(5):
        log.append(600)
        streamed(node, log)
        node = opened(files)
        ends.append(node.start_epoch(1, NONE, 0, 5))
    assert ends == [at(5, 0), at(5, 1200), at(5, 1200), at(5, 2400), at(5, 2400)]


def test_garbage_after_the_durable_position_is_overwritten(files: MemoryFiles) -> None:
    node, log = opened(files), model()
    filled(node, log, (300,))
    garbage = files.file("/f/3/1/0000000005.journal")
    garbage.data[100:] = bytes(400)  # a power failure after a larger file size was on the disk
    node = opened(files)
    assert streamed(node, log) == log.end
    log.roll()
    log.append(10)
    assert streamed(node, log) == log.end  # and with journal 6 the rest of journal 5 is removed
    assert contents(node, 1) == {n: bytes(data) for n, data in log.journals.items()}


def test_garbage_in_skipped_journals_is_removed(files: MemoryFiles) -> None:
    node = opened(files)
    node.start_epoch(1, NONE, 0, 5)
    for number in (5, 6, 7, 8):
        node.write(1, at(number, 0), b"never acknowledged")
    node = opened(files)
    assert node.start_epoch(1, NONE, 0, 5) == at(5, 0)
    node.write(1, at(5, 0), b"abc")
    node.write(1, at(8, 0), b"later")
    node.sync(1)
    found = contents(node, 1)
    assert found[5] == b"abc"
    assert sorted(found) == [5, 8]
    assert found[8][:5] == b"later"


def test_lost_bytes_are_reported_and_wanted_again(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    node, log = opened(files), model()
    filled(node, log)
    del files.file("/f/3/1/0000000006.journal").data[50:]
    node = opened(files)
    assert "ends at byte 50 of journal 6, but was durable up to byte 200" in caplog.text
    assert node.start_epoch(1, NONE, 0, 5) == at(6, 50)
    for position, data in log.pieces(at(6, 50), 100):
        node.write(1, position, data)
    node = opened(files)  # without a sync
    assert node.start_epoch(1, NONE, 0, 5) == at(6, 50)
    assert streamed(node, log) == log.end
    files.remove("/f/3/1/0000000006.journal")
    node = opened(files)
    assert node.start_epoch(1, NONE, 0, 5) == at(5, 300)
    assert streamed(node, log) == log.end
    check(node, log, 1, log.end, 0)
    for name in ("0000000005.journal", "0000000006.journal"):
        files.remove(f"/f/3/1/{name}")
    assert opened(files).start_epoch(1, NONE, 0, 4) == at(4, 0)


# Marks and deletion


def test_mark_deletes_journals(node: NodeCopies, files: MemoryFiles) -> None:
    log = model()
    filled(node, log, (300, 200, 100))
    node.mark(1, at(7, 50), 7)
    assert contents(node, 1) == {7: bytes(log.journals[7])}
    assert node.listing(1).committed == at(7, 50)
    node.mark(1, at(7, 20), 20)  # a late one
    assert node.listing(1).files == ((7, 100),)  # the last one stays
    assert node.listing(1).committed == at(7, 50)
    with pytest.raises(FollowerError, match="does not have"):
        node.read(1, at(6, 0), 1)
    node = opened(files)
    assert node.listing(1).files == ((7, 100),)
    assert node.listing(1).committed == at(7, 50)


def test_mark_makes_what_it_keeps_durable(node: NodeCopies, files: MemoryFiles) -> None:
    node.start_epoch(1, NONE, 0, 5)
    for number in (5, 6, 7):
        node.write(1, at(number, 0), b"abc")
    node.mark(1, 0, 7)
    files.power_failure(random.Random(0))
    node = opened(files)
    assert node.start_epoch(1, NONE, 0, 7) == at(7, 3)
    assert contents(node, 1) == {7: b"abc"}


def test_forget_deletes_lower_epochs(
    node: NodeCopies, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    filled(node, model())
    node.start_epoch(2, NONE, 0, 7)
    node.start_epoch(4, NONE, 0, 9)
    with pytest.raises(Fenced):
        node.delete_earlier_copies(2)
    with caplog.at_level(logging.INFO):
        node.delete_earlier_copies(4)
    assert "deleted 2 copies of logs of broker 3 with epochs below 4" in caplog.text
    assert [name for name in files.names("/f/3") if name != "fence"] == ["4"]
    node.delete_earlier_copies(4)
    with pytest.raises(FollowerError):
        node.listing(1)


def test_folder_with_unknown_files_is_left(
    node: NodeCopies, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    log = model()
    filled(node, log)
    files.close(files.open("/f/3/1/notes.txt", create=True))
    node.start_epoch(2, NONE, 0, 7)
    node.delete_earlier_copies(2)
    node.delete_earlier_copies(2)
    assert caplog.text.count("has files that are not of a copy (notes.txt, ...)") == 1
    check(node, log, 1, log.end, 0)


def test_forget_needs_no_copy_of_the_epoch(node: NodeCopies) -> None:
    """As from a broker that has other followers, or runs on the machine of this one."""
    filled(node, model())
    node.delete_earlier_copies(7)
    with pytest.raises(FollowerError, match="no copy of the log of broker 3, epoch 1"):
        node.listing(1)
    node.fence(9)
    with pytest.raises(Fenced):
        node.delete_earlier_copies(8)
