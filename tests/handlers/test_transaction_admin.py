"""WriteTxnMarkers, DescribeProducers, DescribeTransactions and ListTransactions, through a socket.

Covers: kafkawire.handlers.write_txn_markers, kafkawire.handlers.describe_producers,
kafkawire.handlers.describe_transactions, kafkawire.handlers.list_transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.errors import KafkaError
from kafkawire.log.append.commit_log import CommitLog
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.state import Sink
from kafkawire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from kafkawire.messages.describe_transactions import DescribeTransactionsRequest
from kafkawire.messages.list_transactions import ListTransactionsRequest
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from kafkawire.metadata.catalog import PartitionInfo, TopicInfo
from kafkawire.server.run import Server
from kafkawire.transactions.machine.request import AddPartitions, EndTransaction, InitProducer
from tests.kit.client import Client, batch
from tests.kit.env import EPOCH_MS
from tests.kit.log.transactional import Producer
from tests.kit.produce_fetch import make, produce
from tests.kit.server import port_of, running
from tests.kit.waiting import until

P = 7
Codes = list[tuple[str, int, int]]


@pytest.fixture
async def partition(server: Server, client: Client) -> Partition:
    await make(client, "t", 2)
    await server.broker.table.load([("t", 0)])
    return server.broker.table.find_by_name("t", 0)


def marker(
    *partitions: tuple[str, int],
    producer_id: int = P,
    epoch: int = 0,
    commit: bool = False,
    coordinator: int = 0,
    version: int = 0,
) -> WritableTxnMarker:
    topics = [WritableTxnMarkerTopic(topic, [index]) for topic, index in partitions]
    return WritableTxnMarker(producer_id, epoch, commit, topics, coordinator, version)


async def write(client: Client, *markers: WritableTxnMarker, version: int = 2) -> Codes:
    answer = await client.call(WriteTxnMarkersRequest(list(markers)), version)
    return [
        (topic.name, row.partition_index, row.error_code)
        for each in answer.markers
        for topic in each.topics
        for row in topic.partitions
    ]


def led_elsewhere(server: Server) -> None:
    """The topic "far", whose partition broker 2 leads."""
    row = PartitionInfo(1_000_000, 0, 2, 0)
    server.broker.catalog.add_topic(TopicInfo(b"far" * 5 + b"!", "far", False, [row], {}))


async def described(client: Client, topic: str = "t", index: int = 0) -> Any:
    request = DescribeProducersRequest([TopicRequest(topic, [index])])
    answer = await client.call(request, 0)
    return answer.topics[0].partitions[0]


def shown(row: Any) -> list[tuple[int, ...]]:
    """Producer, epoch, last sequence, coordinator epoch and start of the open transaction."""
    return [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in row.active_producers
    ]


# -- WriteTxnMarkers ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_marker_of_an_unknown_producer_is_written(
    client: Client, partition: Partition, version: int
) -> None:
    assert await write(client, marker(("t", 0)), version=version) == [("t", 0, E.NONE)]
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 1)
    assert partition.size_bytes == 78


@pytest.mark.parametrize("commit", [True, False])
async def test_marker_ends_an_open_transaction(
    client: Client, partition: Partition, commit: bool
) -> None:
    Producer(P).send(partition, b"open")
    await partition.log.wait_until_committed()
    assert partition.last_stable_offset == 0
    assert await write(client, marker(("t", 0), commit=commit)) == [("t", 0, E.NONE)]
    assert partition.last_stable_offset == 2
    assert partition.list_aborted(0, 2) == ([] if commit else [(P, 0, 1)])


async def test_markers_of_replaced_epochs_are_refused(client: Client, partition: Partition) -> None:
    Producer(P, epoch=3).send(partition, b"open")
    at = ("t", 0)
    assert await write(client, marker(at, epoch=2)) == [(*at, E.INVALID_PRODUCER_EPOCH)]
    equal = marker(at, epoch=3, version=2)
    assert await write(client, equal) == [(*at, E.INVALID_PRODUCER_EPOCH)]
    assert await write(client, marker(at, epoch=3, coordinator=5)) == [(*at, E.NONE)]
    assert await write(client, equal) == [(*at, E.TRANSACTION_COORDINATOR_FENCED)]
    repeated = marker(at, epoch=3, version=2, coordinator=5)
    assert await write(client, repeated) == [(*at, E.NONE)]  # nothing is open: a duplicate
    assert partition.high_watermark == 3


async def test_each_partition_of_a_marker_has_its_code(
    client: Client, server: Server, partition: Partition
) -> None:
    led_elsewhere(server)
    asked = marker(
        ("t", 0), ("far", 0), ("t", 9), ("t", -1), ("nosuch", 0), ("__consumer_offsets", 0)
    )
    assert await write(client, asked) == [
        ("t", 0, E.NONE),
        ("t", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("far", 0, E.NOT_LEADER_OR_FOLLOWER),
        ("nosuch", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("__consumer_offsets", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("who", [{"producer_id": -1}, {"producer_id": -7}, {"epoch": -1}])
async def test_marker_of_an_impossible_producer_is_refused(
    client: Client, partition: Partition, who: dict[str, Any]
) -> None:
    assert await write(client, marker(("t", 0), **who)) == [("t", 0, E.INVALID_REQUEST)]
    assert partition.next_offset == 0


async def test_many_markers_of_one_request_keep_their_order(
    client: Client, partition: Partition
) -> None:
    markers = [marker(("t", 0), epoch=epoch, producer_id=P) for epoch in range(1100)]
    assert await write(client, *markers) == [("t", 0, E.NONE)]  # one result for each producer
    assert partition.high_watermark == 1100
    assert shown(await described(client)) == [(P, 1099, -1, 0, -1)]
    assert await write(client) == []


async def test_markers_of_groups_go_through_their_coordinator(
    client: Client, server: Server
) -> None:
    await server.broker.groups.coordinator_of("g")
    count = len(server.broker.groups.coordinators)
    topic = "__consumer_offsets"
    codes = await write(client, marker((topic, 0), (topic, count)))
    assert sorted(codes) == [(topic, 0, E.NONE), (topic, count, E.UNKNOWN_TOPIC_OR_PARTITION)]


async def test_failed_commit_is_the_code_of_every_marker(
    client: Client, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after(
        _: CommitLog, sinks: tuple[Sink, ...], callback: Callable[[BaseException | None], None]
    ) -> None:
        callback(KafkaError(E.KAFKA_STORAGE_ERROR))

    monkeypatch.setattr(CommitLog, "call_when_durable", after)
    codes = await write(client, marker(("t", 0), ("t", 1)))
    assert codes == [("t", index, E.KAFKA_STORAGE_ERROR) for index in range(2)]


# -- DescribeProducers --------------------------------------------------------------------


async def test_producers_are_described_before_in_and_after_a_transaction(
    client: Client, partition: Partition
) -> None:
    assert shown(await described(client)) == []
    producer = Producer(P)
    producer.send(partition, b"a", b"b")
    await partition.log.wait_until_committed()
    row = await described(client)
    assert shown(row) == [(P, 0, 1, -1, 0)]
    assert row.active_producers[0].last_timestamp == EPOCH_MS
    producer.end(partition, commit=True)
    await partition.log.wait_until_committed()
    assert shown(await described(client)) == [(P, 0, 1, 1, -1)]
    producer.send(partition, b"c")
    producer.end(partition, commit=True, version=2)
    await partition.log.wait_until_committed()
    assert shown(await described(client)) == [(P, 1, -1, 1, -1)]


async def test_idempotent_producer_is_described_with_a_timestamp(
    client: Client, partition: Partition
) -> None:
    data = batch(b"x", producer_id=P, producer_epoch=2, base_sequence=0)
    await client.call(produce("t", data), 9)
    row = await described(client)
    assert shown(row) == [(P, 2, 0, -1, -1)]
    assert row.active_producers[0].last_timestamp > 0


async def test_partitions_without_producers_have_their_error(
    client: Client, server: Server, partition: Partition
) -> None:
    led_elsewhere(server)
    for topic, index, code in (
        ("far", 0, E.NOT_LEADER_OR_FOLLOWER),
        ("t", 2, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("nosuch", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
        ("no/such", 0, E.INVALID_TOPIC_EXCEPTION),
    ):
        row = await described(client, topic, index)
        assert (row.partition_index, row.error_code, row.active_producers) == (index, code, [])


async def test_producers_of_internal_topics_are_described(client: Client, server: Server) -> None:
    await server.broker.groups.coordinator_of("g")
    await write(client, marker(("__consumer_offsets", 0)))
    assert shown(await described(client, "__consumer_offsets")) == [(P, 0, -1, 0, -1)]


# -- DescribeTransactions, ListTransactions -----------------------------------------------


async def opened(server: Server, name: str) -> tuple[str, int, int]:
    """A transactional id with t-0 and t-1 in its open transaction."""
    service = server.broker.transactions
    await service.coordinator_of(name)
    made = await service.init_producer(InitProducer(name, 60_000))
    who = name, made.producer_id, made.producer_epoch
    added = await service.answer_request(AddPartitions(*who, frozenset({("t", 0), ("t", 1)})))
    assert added.code is E.NONE
    return who


async def described_ids(client: Client, *names: str) -> list[Any]:
    answer = await client.call(DescribeTransactionsRequest(list(names)), 0)
    found: list[Any] = answer.transaction_states
    return found


async def listed(client: Client, version: int = 2, **filters: Any) -> Any:
    return await client.call(ListTransactionsRequest(**filters), version)


async def test_transaction_is_described(
    client: Client, server: Server, partition: Partition
) -> None:
    who = await opened(server, "tx")
    open_one, unknown, empty = await described_ids(client, "tx", "nosuch", "")
    assert (open_one.error_code, open_one.transaction_state) == (0, "Ongoing")
    assert (open_one.producer_id, open_one.producer_epoch) == who[1:]
    assert [(each.topic, each.partitions) for each in open_one.topics] == [("t", [0, 1])]
    assert open_one.transaction_timeout_ms == 60_000
    assert open_one.transaction_start_time_ms > 0
    assert (unknown.transactional_id, unknown.error_code) == ("nosuch", 105)
    assert empty.error_code == E.INVALID_REQUEST
    await server.broker.transactions.answer_request(EndTransaction(*who, True, 0))
    await until(lambda: partition.high_watermark == 1)
    (ended,) = await described_ids(client, "tx")
    while ended.transaction_state != "CompleteCommit":
        (ended,) = await described_ids(client, "tx")
    assert ended.topics == []
    assert ended.transaction_start_time_ms == open_one.transaction_start_time_ms


async def test_ids_are_unknown_before_the_topic_exists(client: Client) -> None:
    (found,) = await described_ids(client, "tx")
    assert found.error_code == E.NOT_COORDINATOR
    answer = await listed(client)
    assert (answer.error_code, answer.transaction_states) == (0, [])


async def test_many_ids_are_described_in_order(client: Client, server: Server) -> None:
    await server.broker.transactions.coordinator_of("tx")
    names = [f"n{number}" for number in range(200)]
    found = await described_ids(client, *names)
    assert [each.transactional_id for each in found] == names


@pytest.mark.parametrize("version", range(3))
async def test_ids_are_listed(
    client: Client, server: Server, partition: Partition, version: int
) -> None:
    who = await opened(server, "tx-1")
    await server.broker.transactions.init_producer(InitProducer("empty", 60_000))

    async def names(**filters: Any) -> list[str]:
        answer = await listed(client, version, **filters)
        return sorted(each.transactional_id for each in answer.transaction_states)

    assert await names() == ["empty", "tx-1"]
    assert await names(state_filters=["Ongoing", "Dead"]) == ["tx-1"]
    assert await names(producer_id_filters=[who[1]]) == ["tx-1"]
    assert await names(producer_id_filters=[who[1]], state_filters=["Empty"]) == []
    answer = await listed(client, version, state_filters=["ongoing"])
    assert (answer.unknown_state_filters, answer.transaction_states) == (["ongoing"], [])
    if version >= 1:
        assert await names(duration_filter=3_600_000) == ["empty"]  # it has no start, as in Kafka
    if version >= 2:
        assert await names(transactional_id_pattern="tx-[0-9]") == ["tx-1"]
        assert await names(transactional_id_pattern="tx") == []  # the whole id must match
        refused = await listed(client, version, transactional_id_pattern="[")
        assert (refused.error_code, refused.transaction_states) == (128, [])


async def test_listing_waits_until_every_partition_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data") as started:
        await started.broker.transactions.coordinator_of("tx")
    async with running(tmp_path / "data") as started:
        client = await Client.connect(port_of(started))
        coordinators = started.broker.transactions.list_led()
        await until(lambda: all(each.phase.name == "ACTIVE" for each in coordinators))
        phase = type(coordinators[3].phase)
        monkeypatch.setattr(coordinators[3], "phase", phase.LOADING)
        assert (await listed(client)).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        monkeypatch.undo()
        assert (await listed(client)).error_code == 0
        await client.close()
