"""Epochs of a broker: copies that are continued, logs that diverge, fences.

Covers: kafkawire.replication.node_copies, kafkawire.replication.journal_copy.
"""

from __future__ import annotations

import random

import pytest

from kafkawire.replication import sealed_file
from kafkawire.replication.failures import Fenced, FollowerError
from kafkawire.replication.journal_copy import MAX_LINEAGE
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


# Epochs


def test_higher_epoch_continues_the_copy(node: NodeCopies, files: MemoryFiles) -> None:
    log = model()
    filled(node, log)
    later = log.continued(2, at(6, 120))
    later.append(30)
    assert node.start_epoch(2, 1, at(6, 120), 5) == at(6, 120)
    assert streamed(node, later) == later.end == at(6, 150)
    check(node, later, 2, later.end, 0)
    with pytest.raises(Fenced) as refusal:
        node.start_epoch(1, NONE, 0, 5)
    assert refusal.value.higher == 2
    for each in (lambda: node.write(1, at(6, 200), b"x"), lambda: node.sync(1)):
        with pytest.raises(Fenced):
            each()
    assert [name for name in files.names("/f/3") if name.isdecimal()] == ["2"]


def test_continuing_removes_journals(node: NodeCopies) -> None:
    log = model()
    filled(node, log, (300, 200, 100, 50))
    assert node.start_epoch(2, 1, at(6, 0), 5) == at(6, 0)
    assert node.listing(2).files == ((5, 300), (6, 0))
    node.write(2, at(6, 0), b"other")
    node.sync(2)
    assert contents(node, 2)[6] == b"other"


def test_copy_that_is_shorter_continues_at_its_end(node: NodeCopies) -> None:
    log = model()
    filled(node, log)
    end = log.end
    log.append(500)
    later = log.continued(2, log.end)
    later.append(10)
    assert node.start_epoch(2, 1, log.end, 5) == end
    assert streamed(node, later) == later.end
    check(node, later, 2, later.end, 0)
    check(node, log, 1, log.end, 0)  # the log of epoch 1 has no more than this copy


def test_epoch_that_is_not_continued_begins_an_empty_copy(node: NodeCopies) -> None:
    log = model()
    filled(node, log)
    assert node.start_epoch(4, 3, at(6, 10), 9) == at(9, 0)
    assert node.listing(1).end == log.end
    assert node.listing(4).files == ()
    node.write(4, at(9, 0), b"x")
    assert node.start_epoch(5, 1, at(6, 100), 5) == at(
        6, 100
    )  # the newest one is not that of epoch 1
    with pytest.raises(Fenced):
        node.write(4, at(9, 1), b"y")
    assert node.listing(4).end == at(9, 1)


def test_logs_that_both_continue_one_log_are_not_mixed(node: NodeCopies) -> None:
    """Epoch 2 continued epoch 1 at a lower position than epoch 3, which knew more of it."""
    log = model()
    filled(node, log, (300,))
    second = log.continued(2, at(5, 200))
    second.append(1000)
    streamed(node, second)
    third = log.continued(3, at(5, 280))
    third.append(5)
    assert node.start_epoch(3, 1, at(5, 280), 5) == at(5, 200)
    assert streamed(node, third) == third.end
    check(node, third, 3, third.end, 0)
    assert node.listing(1).end == at(5, 280)
    with pytest.raises(FollowerError, match="no copy"):
        node.listing(2)


def test_listing_of_an_earlier_epoch_ends_where_it_was_continued(node: NodeCopies) -> None:
    log = model()
    filled(node, log)
    node.mark(1, at(6, 100), 5)
    later = log.continued(2, at(6, 120))
    later.append(5000)
    streamed(node, later)
    node.mark(2, at(6, 5000), 5)
    for epoch, end, committed in ((1, at(6, 120), at(6, 120)), (2, later.end, at(6, 5000))):
        found = node.listing(epoch)
        assert (found.end, found.committed) == (end, committed)
        assert found.files == ((5, 300), (6, end - at(6, 0)))
    assert node.read(1, at(6, 100), 1000) == bytes(log.journals[6][100:120])
    assert node.read(1, at(6, 120), 1000) == b""
    with pytest.raises(FollowerError, match="does not have"):
        node.read(1, at(6, 121), 1)
    third = later.continued(3, at(6, 5000))
    third.append(20)
    assert streamed(node, third) == at(6, 5020)
    assert [node.listing(epoch).end for epoch in (1, 2)] == [at(6, 120), at(6, 5000)]
    assert node.listing(3).end == at(6, 5020)


def test_log_that_ends_before_the_committed_position_is_refused(node: NodeCopies) -> None:
    filled(node, model())
    node.mark(1, at(6, 100), 5)
    node.start_epoch(2, 1, at(6, 100), 5)
    with pytest.raises(FollowerError, match="at byte 90 of journal 6 with epoch 3, before the end"):
        node.start_epoch(3, 2, at(6, 90), 5)
    assert node.listing(2).end == at(6, 100)


def test_lineage_is_bounded(node: NodeCopies, files: MemoryFiles) -> None:
    node.start_epoch(0, NONE, 0, 0)
    for epoch in range(MAX_LINEAGE + 5):
        node.start_epoch(epoch + 1, epoch, 0, 0)
    node = opened(files)
    assert node.listing(5).end == 0
    with pytest.raises(FollowerError, match="no copy of the log of broker 3, epoch 4"):
        node.listing(4)


def test_copy_of_another_process_of_the_same_epoch_is_not_continued(files: MemoryFiles) -> None:
    """As after the metadata database was replaced by an older one: its epochs are used again."""
    node, log = opened(files), model()
    filled(node, log)
    node.start_epoch(2, 1, at(6, 120), 5)
    for continues, position in ((1, at(6, 121)), (0, at(6, 120)), (NONE, 0)):
        with pytest.raises(FollowerError, match="another process of broker 3 has written the log"):
            opened(files).start_epoch(2, continues, position, 5)
    assert opened(files).start_epoch(2, 1, at(6, 120), 5) == at(6, 120)


def test_empty_copy_belongs_to_one_process(files: MemoryFiles) -> None:
    opened(files).start_epoch(4, 3, at(6, 10), 9)
    text = "it continued epoch 3 at byte 10 of journal 6, and this one continues epoch 3 at byte 11"
    with pytest.raises(FollowerError, match=text):
        opened(files).start_epoch(4, 3, at(6, 11), 9)
    assert opened(files).start_epoch(4, 3, at(6, 10), 9) == at(9, 0)


def test_state_of_an_earlier_version_has_no_beginning(files: MemoryFiles) -> None:
    opened(files).start_epoch(4, 3, at(6, 10), 9)
    content = sealed_file.load(files, "/f/3/4/copy")
    assert content is not None
    assert content.pop("begun") == [3, at(6, 10)]
    sealed_file.save(files, "/f/3/4/copy", content)
    assert opened(files).start_epoch(4, 3, at(6, 11), 9) == at(9, 0)


# Fences


def test_fence_stops_a_writer(node: NodeCopies, files: MemoryFiles) -> None:
    end = filled(node, model())
    node.write(1, end, b"not acknowledged")
    node.fence(3)
    for each in (
        lambda: node.write(1, end + 16, b"x"),
        lambda: node.sync(1),
        lambda: node.mark(1, end, 6),
        lambda: node.delete_earlier_copies(1),
        lambda: node.start_epoch(2, NONE, 0, 5),
    ):
        with pytest.raises(Fenced) as refusal:
            each()
        assert refusal.value.higher == 3
    files.power_failure(random.Random(0))
    node = opened(files)
    with pytest.raises(Fenced):
        node.start_epoch(2, NONE, 0, 5)
    assert node.start_epoch(3, NONE, 0, 5) == at(5, 0)


def test_fence_is_repeated_or_refused(node: NodeCopies, files: MemoryFiles) -> None:
    node.fence(3)
    calls = files.calls
    node.fence(3)
    assert files.calls == calls
    with pytest.raises(Fenced) as refusal:
        node.fence(2)
    assert refusal.value.higher == 3
    node.start_epoch(5, NONE, 0, 0)
    with pytest.raises(Fenced) as refusal:
        node.fence(4)
    assert refusal.value.higher == 5
    node.fence(5)
    node.write(5, 0, b"its own writer is not refused")


def test_fence_needs_no_copy(files: MemoryFiles) -> None:
    opened(files).fence(7)
    with pytest.raises(Fenced):
        opened(files).start_epoch(6, NONE, 0, 0)
    with pytest.raises(FollowerError, match="no copy of the log of broker 3, epoch 7"):
        opened(files).listing(7)
