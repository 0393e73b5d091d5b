"""Transactional Produce and WriteTxnMarkers as in Apache Kafka: verification, sequences, epochs."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.batches import CONTROL, TRANSACTIONAL
from tests.java.calls.wire import Owner
from tests.java.transactional import Side, on_both

OLD_FENCED, INVALID_STATE, OUT_OF_ORDER, ABORTABLE = 47, 48, 45, 120
UNVERIFIED = {**dict.fromkeys(range(3, 11), INVALID_STATE), 11: ABORTABLE, 12: 0, 13: 0}
"""The code for a partition that is not in the transaction, by version of Produce."""


@pytest.mark.parametrize("version", sorted(UNVERIFIED))
def test_produce_to_a_partition_not_added(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic = side.topic()
        owner = side.owner()
        code = UNVERIFIED[version]
        assert side.produce((topic, 0), owner, 0, version=version)[0] == code
        expected = (0, "Ongoing", owner.pid, 0, {(topic, 0)})
        if code:
            expected = (0, "Empty", owner.pid, 0, set())
        assert side.describe(owner.id or "") == expected
        assert side.offset_of((topic, 0)) == (0 if code else 1)
        if code:
            side.add(owner, (topic, 0))
            assert side.produce((topic, 0), owner, 0, version=version) == (0, 0)
        for wrong in (owner._replace(id=side.new("unknown")), owner._replace(pid=1 << 40)):
            assert side.produce((topic, 1), wrong, 0, version=version)[0] == 49
        assert side.produce((topic, 1), owner.at(1), 0, version=version)[0] == OLD_FENCED

    conversation(sides)


@pytest.mark.parametrize("version", [9, 11, 12])
def test_batches_that_no_transaction_accepts(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic = side.topic()
        owner, part = side.owner(), (topic, 0)
        ask = {"version": version}
        assert side.produce(part, owner, 0, transactional_id=None, **ask)[0] == 53
        side.add(owner, part)
        assert side.produce(part, owner, 0, **ask) == (0, 0)
        for id in (None, owner.id):
            code, _ = side.produce(part, owner, 1, attributes=0, transactional_id=id, **ask)
            assert code == INVALID_STATE
        control = TRANSACTIONAL | CONTROL
        assert side.produce(part, owner, 1, attributes=control, **ask)[0] == 87
        assert side.produce((side.new("nosuch"), 0), owner, 0, **ask)[0] == 3
        assert side.produce((topic, 99), owner, 0, **ask)[0] == 3
        assert side.offset_of(part) == 1

    conversation(sides)


@pytest.mark.parametrize("version", [9, 11, 12])
def test_two_producers_in_one_request(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic = side.topic()
        first, second = side.owner("A"), side.owner("B")
        rows = (((topic, 0), first), ((topic, 1), second))
        assert side.produce_mixed(first.id, *rows, version=version) == [49, 49]
        rows = (((topic, 0), first), ((topic, 1), first.at(1)))
        assert side.produce_mixed(first.id, *rows, version=version) == [49, 49]
        assert side.offset_of((topic, 0)) == 0

    conversation(sides)


@on_both
def test_one_request_for_added_and_other_partitions(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    side.add(owner, (topic, 0))
    rows = ((topic, 0), owner), ((topic, 1), owner)
    assert side.produce_mixed(owner.id, *rows, version=11) == [0, ABORTABLE]
    other = side.owner("B")
    rows = ((topic, 0), other), ((side.new("nosuch"), 0), other)
    assert side.produce_mixed(other.id, *rows, version=12) == [0, 3]


@on_both
def test_sequences_of_the_first_protocol(side: Side) -> None:
    part = side.topic(), 0
    owner = side.owner()
    side.add(owner, part)
    assert side.produce(part, owner, 0, b"a", b"b", b"c") == (0, 0)
    assert side.end_old(owner, True) == 0
    side.add(owner, part)
    assert side.produce(part, owner, 0)[0] == OUT_OF_ORDER
    assert side.produce(part, owner, 0, b"a", b"b", b"c") == (0, 0)  # as a duplicate
    assert side.produce(part, owner, 3)[0] == OUT_OF_ORDER  # 0 came first and is not stored yet
    assert side.offset_of(part) == 4
    assert side.end_old(owner, False) == 0
    side.add(owner, part)
    assert side.produce(part, owner, 3) == (0, 5)
    assert side.produce(part, owner, 5)[0] == OUT_OF_ORDER
    assert side.end_old(owner, True) == 0
    other = part[0], 1
    side.add(owner, other)
    assert side.produce(other, owner, 5) == (0, 0)  # nothing is known of this producer here


@on_both
def test_sequences_of_the_second_protocol(side: Side) -> None:
    part = side.topic(), 0
    owner = side.owner()
    assert side.produce(part, owner, 5, version=12)[0] == OUT_OF_ORDER
    assert side.produce(part, owner, 0, b"a", b"b", b"c", version=12) == (0, 0)
    owner = side.end_new(owner, True)
    assert owner.epoch == 1
    assert side.produce(part, owner, 3, version=12)[0] == OUT_OF_ORDER
    assert side.produce(part, owner, 0, version=12) == (0, 4)
    assert side.produce((part[0], 1), owner, 5, version=12)[0] == OUT_OF_ORDER


@pytest.mark.parametrize("version", [9, 11, 12])
def test_duplicates(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        part = side.topic(), 0
        owner = side.owner()
        side.add(owner, part)
        for sequence in range(6):
            assert side.produce(part, owner, sequence, version=version) == (0, sequence)
        for sequence in range(1, 6):
            assert side.produce(part, owner, sequence, version=version) == (0, sequence)
        assert side.produce(part, owner, 0, version=version)[0] == OUT_OF_ORDER
        assert side.offset_of(part) == 6
        if version == 12:
            side.end_new(owner, True)
        else:
            assert side.end_old(owner, True) == 0
        side.settle(owner)
        code = {9: INVALID_STATE, 11: ABORTABLE, 12: OLD_FENCED}[version]
        assert side.produce(part, owner, 5, version=version)[0] == code

    conversation(sides)


@on_both
def test_next_transaction_starts_at_once(side: Side) -> None:
    part = side.topic(), 0
    owner = side.owner()
    for number in range(20):
        code, _ = side.produce_once(part, owner, 0, b"%d" % number, version=12)
        assert code in (0, 51)
        side.transcript.pop()
        if code:  # the markers of the last one are not written yet
            assert side.produce(part, owner, 0, b"%d" % number, version=12)[0] == 0
            side.transcript.pop()
        owner = side.end_new(owner, True)
    side.settle(owner)
    batches = side.fetch(part).batches
    assert [batch.kind for batch in batches] == ["transactional", "commit"] * 20
    assert [batch.epoch for batch in batches] == [(at + 1) // 2 for at in range(40)]


@on_both
def test_produce_after_an_abort_by_markers(side: Side) -> None:
    """WriteTxnMarkers as sent by kafka-transactions abort ends a transaction in one partition."""
    part = side.topic(), 0
    owner = side.owner()
    side.add(owner, part)
    assert side.produce(part, owner, 0) == (0, 0)
    assert side.markers(part, owner.pid, 0) == 0
    assert side.offset_of(part, committed=True) == 2
    assert side.produce(part, owner, 1) == (0, 2)  # its coordinator still has it
    assert side.offset_of(part, committed=True) == 2
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert side.offset_of(part, committed=True) == 4


@pytest.mark.parametrize("version", [1, 2])
def test_markers(sides: list[tuple[str, str]], version: int) -> None:
    @on_both
    def conversation(side: Side) -> None:
        topic = side.topic()
        part = topic, 0
        ask: dict[str, Any] = {"version": version}
        owner = side.owner()
        side.init(owner.id)
        owner = owner.at(1)
        unknown = 1 << 40
        assert side.markers(part, unknown, 0, **ask) == 0
        (marker,) = side.fetch(part).batches
        assert (marker.kind, marker.size) == ("abort", 78)
        assert side.offset_of(part, committed=True) == 1
        side.add(owner, part)
        assert side.produce(part, owner, 0) == (0, 1)
        assert side.markers(part, owner.pid, 0, **ask) == OLD_FENCED
        assert side.markers(part, owner.pid, 1, coordinator_epoch=5, **ask) == 0
        assert side.markers(part, owner.pid, 1, coordinator_epoch=4, **ask) == 52
        assert side.markers(part, owner.pid, 1, commit=True, coordinator_epoch=5, **ask) == 0
        assert side.markers((topic, 99), owner.pid, 1, **ask) == 3
        assert side.markers((side.new("nosuch"), 0), owner.pid, 1, **ask) == 3
        assert side.offset_of(part) == 4
        assert len(side.fetch(part).batches) == 4

    conversation(sides)


@on_both
def test_markers_of_the_second_protocol(side: Side) -> None:
    part = side.topic(), 0
    owner = side.owner()
    assert side.produce(part, owner, 0, version=12) == (0, 0)
    new: dict[str, Any] = {"version": 2, "transaction_version": 2}
    assert side.markers(part, owner.pid, 0, **new) == OLD_FENCED
    assert side.markers(part, owner.pid, 1, **new) == 0
    assert side.markers(part, owner.pid, 1, **new) == 0  # written twice, by a coordinator's retry
    assert side.markers(part, owner.pid, 0, **new) == OLD_FENCED
    assert side.offset_of(part, committed=True) == 3
    assert [batch.epoch for batch in side.fetch(part).batches] == [0, 1, 1]


@on_both
def test_no_markers(side: Side) -> None:
    from kafkawire.messages.write_txn_markers import WriteTxnMarkersRequest

    for version in (1, 2):
        assert side.ask("WriteTxnMarkers", WriteTxnMarkersRequest(), version).markers == []


@on_both
def test_partition_added_and_not_written(side: Side) -> None:
    """Its marker takes an offset, and nothing else of it can be seen."""
    part = side.topic(), 0
    owner = Owner(*side.owner())
    side.add(owner, part)
    assert side.end_old(owner, False) == 0
    side.settle(owner)
    found = side.fetch(part)
    assert (found.stable, found.aborted) == (1, [])
    assert [batch.kind for batch in found.batches] == ["abort"]
