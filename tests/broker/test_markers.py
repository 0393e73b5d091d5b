"""Markers written by the one broker: to the log, and through the groups to their offsets."""

from __future__ import annotations

import asyncio
from typing import Any

from kafkawire.broker.markers import MarkerWriter
from kafkawire.codec.batches import CONTROL, read_head
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.txn_offset_commit import txn_offset_commit
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.marker_sender import Leader
from tests.kit.groups.broker import (
    ELSEWHERE,
    HERE,
    House,
    open_house,  # noqa: F401  (a fixture, by name)
)
from tests.kit.groups.log import FakePartition
from tests.kit.groups.transactions import PID, txn_commit

OFFSETS = "__consumer_offsets"


class Table:
    """The partitions t-0 and t-1 of the log."""

    def __init__(self, house: House) -> None:
        self.rows = {("t", index): FakePartition(house.log, index) for index in range(2)}
        self.loaded: set[tuple[str, int]] = set()

    async def load(self, keys: list[tuple[str, int]]) -> None:
        self.loaded.update(keys)

    def find_by_name(self, topic: str, index: int) -> FakePartition:
        assert (topic, index) in self.loaded
        if (topic, index) not in self.rows:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return self.rows[topic, index]


class Remote:
    """The other brokers; keeps what is sent to them."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[SendMarkers]]] = []

    async def write(self, broker: int, markers: list[SendMarkers]) -> list[Any]:
        self.sent.append((broker, markers))
        return [dict.fromkeys(each.partitions, ErrorCode.NONE) for each in markers]


def writer(house: House, table: Any, remote: Remote | None = None) -> MarkerWriter:
    log: Any = house.log
    other: Any = remote or Remote()
    return MarkerWriter(house.env, 1, house.catalog, table, log, house.groups.write_marker, other)


def work(*partitions: tuple[str, int], commit: bool = True) -> SendMarkers:
    return SendMarkers("T", PID, 0, commit, 3, 0, frozenset(partitions))


async def test_markers_are_durable_when_their_codes_are_returned(house: House) -> None:
    table = Table(house)
    await house.ask(txn_offset_commit, txn_commit({("t", 0): 5}, group=HERE), 3)
    coordinator = house.groups.coordinators[1]
    assert coordinator is not None
    assert len(coordinator.shard.offsets.pending) == 1
    asked = work(("t", 0), ("t", 1), ("gone", 0), (OFFSETS, 1), (OFFSETS, ELSEWHERE))
    (codes,) = await writer(house, table).write_markers(1, [asked])
    assert codes == {
        ("t", 0): ErrorCode.NONE,
        ("t", 1): ErrorCode.NONE,
        ("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (OFFSETS, 1): ErrorCode.NONE,
        (OFFSETS, ELSEWHERE): ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
    for partition in table.rows.values():
        assert partition.high_watermark == 1
        head = read_head(partition.batches[0])
        assert head.attributes & CONTROL
        assert (head.producer_id, head.producer_epoch) == (PID, 0)
    assert len(coordinator.shard.offsets.pending) == 0
    assert coordinator.shard.offsets.committed_offsets(HERE)["t"][0].offset == 5


async def test_refused_marker_fails_only_its_partition(house: House) -> None:
    table = Table(house)
    table.rows["t", 0].refuse = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    (codes,) = await writer(house, table).write_markers(1, [work(("t", 0), ("t", 1))])
    assert codes[("t", 0)] is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert codes[("t", 1)] is ErrorCode.NONE


async def test_failed_commit_is_the_answer_of_its_markers(house: House) -> None:
    house.log.by_itself = False
    pending = house.env.spawn(failing(house), "fail")
    (codes,) = await writer(house, Table(house)).write_markers(1, [work(("t", 0))])
    assert codes == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    await pending


async def test_a_later_commit_does_not_stand_for_a_failed_one(house: House) -> None:
    """The write batch of a marker fails while the groups still write theirs: the marker is not in
    the log, so its transaction would never end there."""
    asked = asyncio.Event()
    house.log.by_itself = False

    async def slow(index: int, marker: Any) -> ErrorCode:
        await asked.wait()
        return ErrorCode.NONE

    log: Any = house.log
    table: Any = Table(house)
    remote: Any = Remote()
    port = MarkerWriter(house.env, 1, house.catalog, table, log, slow, remote)
    writing = house.env.spawn(port.write_markers(1, [work(("t", 0), (OFFSETS, 1))]), "markers")
    await failing(house)
    asked.set()
    house.log.by_itself = True
    house.log.commit()
    (codes,) = await writing
    assert codes == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR, (OFFSETS, 1): ErrorCode.NONE}


async def failing(house: House) -> None:
    while not house.log.callbacks:
        await house.env.sleep(0)
    house.log.fail()


async def test_leaders_are_those_of_the_catalog(house: House) -> None:
    port = writer(house, Table(house))
    assert port.leader_of(("t", 0)) == Leader(1, 0)
    assert port.leader_of((OFFSETS, ELSEWHERE)) == Leader(2, 0)
    assert port.leader_of(("t", 99)) is None
    assert port.leader_of(("gone", 0)) is None


async def test_markers_for_another_broker_are_sent_to_it(house: House) -> None:
    table, remote = Table(house), Remote()
    asked = work((OFFSETS, ELSEWHERE))
    codes = await writer(house, table, remote).write_markers(2, [asked])
    assert codes == [{(OFFSETS, ELSEWHERE): ErrorCode.NONE}]
    assert remote.sent == [(2, [asked])]
    assert not table.loaded
