"""Reads of committed records as in Apache Kafka: last stable offset, aborted transactions."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.java.calls.records import Fetched
from tests.java.calls.wire import Owner, Part
from tests.java.transactional import Side, on_both
from tests.java.twins import list_offsets_request

OUT_OF_RANGE = 1
LONG_MS = 60_000
PLAIN = [b"plain"]


def check_aborted(found: Fetched, offset: int, *all: tuple[str, int, int]) -> None:
    """Check the aborted list of a fetch from `offset` by what it needs: of all aborted transactions
    (producer, first offset, offset of the marker) each that has data in the answer, none whose
    marker is before it. Transactions after the data may be listed: Kafka's index is coarser."""
    listed = found.aborted
    assert listed is not None
    end = found.batches[-1].last if found.batches else offset - 1
    needed = {(who, first) for who, first, marker in all if marker >= offset and first <= end}
    allowed = {(who, first) for who, first, marker in all if marker >= offset}
    assert needed <= set(listed) <= allowed
    assert len(listed) == len(set(listed))


def open_one(side: Side, part: Part, count: int = 1, prefix: str = "T") -> Owner:
    """Return the owner of an open transaction with this many records in `part`."""
    owner = side.owner(prefix)
    side.add(owner, part)
    for sequence in range(count):
        assert side.produce(part, owner, sequence, b"%s%d" % (prefix.encode(), sequence))[0] == 0
    return owner


@on_both
def test_list_offsets_of_an_open_transaction(side: Side) -> None:
    part = side.topic(), 0
    side.write(part, b"a", b"b")
    owner = side.owner()
    side.add(owner, part)
    later = int(time.time() * 1000) + 5000
    assert side.produce(part, owner, 0, b"x", b"y", stamp_ms=later) == (0, 2)
    side.write(part, b"c")
    for timestamp, committed, uncommitted in (
        (-1, 2, 5),
        (-2, 0, 0),
        (-3, -1, 2),
        (later, -1, 2),
        (later + 1, -1, -1),
    ):
        assert side.offset_of(part, timestamp, committed=True) == committed, timestamp
        assert side.offset_of(part, timestamp) == uncommitted, timestamp
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert side.offset_of(part, committed=True) == side.offset_of(part) == 6
    assert side.offset_of(part, later, committed=True) == 2


@on_both
def test_list_offsets_in_each_version(side: Side) -> None:
    part = side.topic(), 0
    side.write(part, b"a", b"b")
    open_one(side, part)
    for version in range(2, 12):
        request = list_offsets_request(part[0], -1, 0)
        request.isolation_level = 1
        answer = side.ask("ListOffsets", request, version)
        assert answer.topics[0].partitions[0].offset == 2


@on_both
def test_fetch_stops_at_the_last_stable_offset(side: Side) -> None:
    part = side.topic(), 0
    side.write(part, b"a", b"b")
    owner = open_one(side, part, 2)
    side.write(part, b"c")
    found = side.fetch(part)
    assert (found.stable, found.high_watermark, found.aborted) == (2, 5, [])
    assert found.values() == [b"a", b"b"]
    for offset in (2, 3, 5):
        found = side.fetch(part, offset)
        assert (found.code, found.stable, found.aborted, found.batches) == (0, 2, [], [])
    assert side.fetch(part, 6).code == OUT_OF_RANGE
    everything = side.fetch(part, committed=False)
    assert (everything.stable, everything.aborted) == (2, None)
    assert everything.values() == [b"a", b"b", b"T0", b"T1", b"c"]
    assert side.fetch(part, 6, committed=False).code == OUT_OF_RANGE
    assert side.end_old(owner, False) == 0
    side.settle(owner)
    found = side.fetch(part)
    check_aborted(found, 0, ("T", 2, 5))
    assert found.visible() == [b"a", b"b", b"c"]
    assert side.fetch(part, committed=False).aborted is None


@on_both
def test_reader_waits_at_the_last_stable_offset(side: Side) -> None:
    """A fetch after it is answered at once, one at it by the end of the transaction: both may wait
    longer than a connection waits for its answer."""
    part = side.topic(), 0
    owner = open_one(side, part, 2)
    found = side.fetch(part, 1, wait_ms=LONG_MS)
    assert (found.stable, found.batches) == (0, [])
    with ThreadPoolExecutor(1) as pool, side.another() as reader:
        waiting = pool.submit(reader.fetch, part, wait_ms=LONG_MS)
        side.write(part, b"c")
        assert side.fetch(part, 2, committed=False, wait_ms=LONG_MS).values() == [b"c"]
        assert not waiting.done()
        assert side.end_old(owner, True) == 0
        found = waiting.result(60)
    assert (found.stable, found.values()) == (4, [b"T0", b"T1", b"c"])


@pytest.mark.parametrize("version", range(4, 18))
def test_fetch_committed_in_each_version(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        part = side.topic(), 0
        aborted = open_one(side, part, 1, "A")
        assert side.end_old(aborted, False) == 0
        side.settle(aborted)
        open_one(side, part, 1, "B")
        found = side.fetch(part, version=version)
        check_aborted(found, 0, ("A", 0, 1))
        assert (found.stable, found.high_watermark, found.visible()) == (2, 3, [])
        assert side.fetch(part, version=version, committed=False).aborted is None

    conversation(sides)


@on_both
def test_interleaved_transactions(side: Side) -> None:
    part = side.topic(), 0
    first, second = side.owner("A"), side.owner("B")
    for owner in (first, second):
        side.add(owner, part)
    for sequence in range(2):
        assert side.produce(part, first, sequence, b"a%d" % sequence) == (0, 2 * sequence)
        assert side.produce(part, second, sequence, b"b%d" % sequence) == (0, 2 * sequence + 1)
    assert side.produce(part, first, 2, b"a2") == (0, 4)
    assert side.end_old(second, False) == 0
    side.settle(second)
    assert side.produce(part, first, 3, b"a3") == (0, 6)
    found = side.fetch(part)
    assert (found.stable, found.high_watermark, found.batches) == (0, 7, [])
    assert side.end_old(first, True) == 0
    side.settle(first)
    found = side.fetch(part)
    assert (found.stable, found.high_watermark) == (8, 8)
    check_aborted(found, 0, ("B", 1, 5))
    assert found.visible() == [b"a0", b"a1", b"a2", b"a3"]


@on_both
def test_fetch_from_inside_an_aborted_transaction(side: Side) -> None:
    part = side.topic(), 0
    owner = open_one(side, part, 3)
    assert side.end_old(owner, False) == 0
    side.settle(owner)
    side.write(part, *PLAIN)
    for offset in range(6):
        found = side.fetch(part, offset)
        check_aborted(found, offset, ("T", 0, 3))
        assert found.visible() == (PLAIN if offset < 5 else [])
    assert side.fetch(part, 3).aborted == [("T", 0)]
    assert side.fetch(part, 4).aborted == []


@pytest.mark.parametrize("new", [False, True])
def test_producer_that_aborts_twice(sides: list[tuple[str, str]], new: bool) -> None:
    @on_both
    def conversation(side: Side) -> None:
        part = side.topic(), 0
        owner, sequence = side.owner(), 0
        for number in range(5):  # aborted: 0 and 3
            commit, value = number not in (0, 3), b"%d" % number
            if new:
                assert side.produce(part, owner, 0, value, version=12)[0] == 0
                owner = side.end_new(owner, commit)
            else:
                side.add(owner, part)
                assert side.produce(part, owner, sequence, value)[0] == 0
                assert side.end_old(owner, commit) == 0
                sequence += 1
        side.settle(owner)
        all = (("T", 0, 1), ("T", 6, 7))
        for offset in range(11):
            check_aborted(side.fetch(part, offset), offset, *all)
        assert side.fetch(part).visible() == [b"1", b"2", b"4"]
        assert side.fetch(part, committed=False).values() == [b"0", b"1", b"2", b"3", b"4"]

    conversation(sides)


@on_both
def test_records_of_an_open_transaction_are_deleted(side: Side) -> None:
    part = side.topic(), 0
    owner = open_one(side, part, 3)
    side.write(part, *PLAIN)
    assert side.delete_records(part, 2) == 0
    found = side.fetch(part, 2)
    assert (found.start, found.stable, found.high_watermark) == (2, 2, 4)
    assert side.delete_records(part, -1) == 0
    found = side.fetch(part, 4)
    assert (found.start, found.stable, found.high_watermark) == (4, 4, 4)
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert side.fetch(part, 4).stable == 5


@on_both
def test_producers_of_a_deleted_topic(side: Side) -> None:
    """Its markers go nowhere, and the transaction ends."""
    from kafkawire.messages.delete_topics import DeleteTopicsRequest

    topic, kept = side.topic(), side.topic("kept")
    owner = open_one(side, (topic, 0))
    side.add(owner, (kept, 0))
    assert side.send("DeleteTopics", DeleteTopicsRequest(topic_names=[topic]), 5)
    assert side.end_old(owner, True) == 0
    assert side.settle(owner) == "CompleteCommit"
    assert [batch.kind for batch in side.fetch((kept, 0)).batches] == ["commit"]
