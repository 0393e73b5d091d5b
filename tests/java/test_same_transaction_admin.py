"""DescribeProducers, DescribeTransactions, ListTransactions, and the last epochs of a producer, as
in Apache Kafka."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from kafkawire.codec.compile import encode
from kafkawire.messages.describe_transactions import DescribeTransactionsRequest
from kafkawire.messages.headers import RequestHeader
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from tests.java.calls.wire import RETRY, Owner
from tests.java.transactional import Side, on_both
from tests.java.twins import KEYS

LAST_EPOCH = 32766
"""The highest epoch of a client; the next one is for fencing it."""
MAX_IN_FLIGHT = 200
"""Requests sent before their answers are read: fewer bytes than the buffers of a socket hold."""


def row(side: Side, part: tuple[str, int]) -> tuple[int, int, int, int]:
    """Return (epoch, last sequence, coordinator epoch, start of the transaction) of the only
    producer."""
    (found,) = side.producers(part)
    return (
        found.producer_epoch,
        found.last_sequence,
        found.coordinator_epoch,
        found.current_txn_start_offset,
    )


@on_both
def test_describe_producers(side: Side) -> None:
    from kafkawire.messages.describe_producers import DescribeProducersRequest, TopicRequest

    part = side.topic(), 0
    assert side.producers(part) == []
    owner = side.owner()
    side.add(owner, part)
    assert side.produce(part, owner, 0, b"a", b"b") == (0, 0)
    assert row(side, part) == (0, 1, -1, 0)
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert row(side, part) == (0, 1, 0, -1)
    assert side.produce(part, owner, 2, version=12) == (0, 3)
    assert row(side, part) == (0, 2, 0, 3)
    owner = side.end_new(owner, True)
    side.settle(owner)
    assert row(side, part) == (1, -1, 0, -1)
    other = side.topic("plain"), 1
    pid = side.init(None)[1]
    assert side.produce(other, Owner(None, pid, 0), 7, attributes=0) == (0, 0)
    assert row(side, other) == (0, 7, -1, -1)
    names = [part[0], side.new("nosuch"), "in/valid"]
    request = DescribeProducersRequest(topics=[TopicRequest(name, [0, 99]) for name in names])
    answer = side.send("DescribeProducers", request, 0)
    answer.topics[0].partitions[0].active_producers = []
    answer.topics.sort(key=lambda topic: topic.name)
    for topic in answer.topics:
        topic.partitions.sort(key=lambda partition: partition.partition_index)
    side.note("DescribeProducers", answer)


@on_both
def test_describe_transactions(side: Side) -> None:
    topic = side.topic()
    owner = side.owner()
    id = owner.id or ""
    assert side.describe(side.new("unknown"))[0] == 105
    assert side.describe("")[0] == 42
    assert side.describe(id) == (0, "Empty", owner.pid, 0, set())
    parts = {(topic, 0), (topic, 1)}
    side.add(owner, *sorted(parts))
    assert side.describe(id) == (0, "Ongoing", owner.pid, 0, parts)
    assert side.end_old(owner, True) == 0
    side.settle(owner)
    assert side.describe(id) == (0, "CompleteCommit", owner.pid, 0, set())
    assert side.produce((topic, 0), owner, 0, version=12)[0] == 0
    owner = side.end_new(owner, False)
    side.settle(owner)
    assert side.describe(id) == (0, "CompleteAbort", owner.pid, 1, set())
    side.ask("DescribeTransactions", DescribeTransactionsRequest([]), 0)
    both = DescribeTransactionsRequest([id, side.new("unknown")])
    answer = side.send("DescribeTransactions", both, 0)
    answer.transaction_states.sort(key=lambda state: state.transactional_id)
    side.note("DescribeTransactions", answer)


@on_both
def test_list_transactions(side: Side) -> None:
    topic = side.topic()
    empty, going = side.owner("A"), side.owner("B")
    side.add(going, (topic, 0))
    ids = {empty.id: "Empty", going.id: "Ongoing"}
    for version in range(3):
        assert side.listed(version) == (0, [], ids)
    only = {going.id: "Ongoing"}

    def check(expected: dict[str | None, str], unknown: list[str], **filters: Any) -> None:
        version = 2 if "transactional_id_pattern" in filters else 1
        code, names, states = side.listed(version, **filters)
        assert (code, sorted(names), states) == (0, unknown, expected), filters

    check(only, [], state_filters=["Ongoing"])
    check(ids, [], state_filters=["Ongoing", "Empty"])
    check(only, ["ongoing"], state_filters=["ongoing", "Ongoing"])
    check({}, ["what"], state_filters=["what"])
    check({}, [], state_filters=["Dead", "PrepareEpochFence", "PrepareCommit", "PrepareAbort"])
    check(only, [], producer_id_filters=[going.pid])
    check({}, [], producer_id_filters=[1 << 40])
    check({}, [], producer_id_filters=[going.pid], state_filters=["Empty"])
    check({empty.id: "Empty"}, [], duration_filter=3_600_000)
    check(ids, [], duration_filter=-1)
    run = going.id[1:] if going.id else ""
    check(only, [], transactional_id_pattern=f"B{run}")
    check(ids, [], transactional_id_pattern=f"[AB]{run}")
    check(ids, [], transactional_id_pattern=f".*{run}")
    check({}, [], transactional_id_pattern="B")
    check(ids, [], transactional_id_pattern="")
    check(ids, [], transactional_id_pattern=None)
    assert side.listed(transactional_id_pattern="[")[0] == 128


def raise_epoch(side: Side, owner: Owner) -> None:
    """Raise the epoch to the last one, by InitProducerId without waiting for each answer."""
    header = encode(RequestHeader(KEYS["InitProducerId"], 4, 0, "raise"), 2)
    body = header + encode(InitProducerIdRequest(owner.id, 60_000), 4)
    frame = struct.pack(">i", len(body)) + body
    host, _, port = side.address.rpartition(":")
    epoch = owner.epoch
    with socket.create_connection((host, int(port))) as connection:
        answers = connection.makefile("rb")
        while epoch < LAST_EPOCH:
            count = min(MAX_IN_FLIGHT, LAST_EPOCH - epoch)
            connection.sendall(frame * count)
            for _ in range(count):
                (size,) = struct.unpack(">i", answers.read(4))
                code, _, now = struct.unpack_from(">hqh", answers.read(size), 9)
                assert code in (0, *RETRY)
                epoch = max(epoch, now)


@pytest.mark.slow
@on_both
def test_epochs_end(side: Side) -> None:
    """A producer at its last epoch gets another producer ID, by InitProducerId or EndTxn."""
    part = side.topic(), 0
    first, second = side.owner("A"), side.owner("B")
    for owner in (first, second):
        raise_epoch(side, owner)
    code, pid, epoch = side.init(first.id)
    assert (code, epoch) == (0, 0)
    assert pid != first.pid
    last = second.at(LAST_EPOCH)
    assert side.produce(part, last, 0, version=12) == (0, 0)
    code, pid, epoch = side.end_once(last, True, 5)
    assert (code, epoch) == (0, 0)
    assert pid != second.pid
    new = Owner(second.id, pid, 0)
    assert side.end(last, True, 5) == (0, pid, 0)  # a retry
    assert side.add(new, part) == [0]
    side.settle(new)
    data, marker = side.fetch(part).batches
    assert (data.epoch, marker.epoch, marker.kind) == (LAST_EPOCH, LAST_EPOCH + 1, "commit")
    assert side.describe(second.id or "")[1:] == ("Ongoing", pid, 0, {part})
