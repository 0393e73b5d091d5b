"""Transactions whose partitions two brokers lead, half each: markers go to both.

Covers: kafkawire.broker.other_brokers, kafkawire.broker.other_brokers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.broker.other_brokers import OtherBrokers, RemoteMarkers, codes_of, request_of
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.disk import real_env
from kafkawire.log.partition.partition import Partition
from kafkawire.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kafkawire.metadata.catalog import BrokerInfo, Catalog
from kafkawire.transactions.machine.decision import SendMarkers
from kafkawire.transactions.machine.request import EndTransaction
from tests.kit.two_brokers import Two, two_brokers
from tests.kit.waiting import until

WORK = SendMarkers("tx", 7, 3, True, 5, 2, frozenset({("t", 1), ("t", 3), ("u", 0)}))


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    async with two_brokers(tmp_path) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
async def test_markers_reach_the_partitions_of_both_brokers(
    two: Two, commit: bool, version: int
) -> None:
    who = await two.opened()
    assert [two.partition(index).last_stable_offset for index in range(4)] == [0] * 4
    assert (
        await two.first.transactions.answer_request(EndTransaction(*who, commit, version))
    ).code == 0
    for index in range(4):
        partition = two.partition(index)
        await until(partial(is_stable, partition))
        assert partition.list_aborted(0, 2) == ([] if commit else [(who[1], 0, 1)])
    name = "CompleteCommit" if commit else "CompleteAbort"
    await two.settled(name)


@pytest.mark.slow
async def test_markers_are_repeated_until_the_broker_is_back(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await two.opened()
    refused = 0

    async def refuse(broker: Broker) -> None:
        nonlocal refused
        refused += 1
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    with monkeypatch.context() as patch:
        patch.setattr(two.second.markers, "write", refuse)
        await two.first.transactions.answer_request(EndTransaction(*who, True, 0))
        await until(lambda: refused >= 2)
        assert await two.state() == ("PrepareCommit", [1, 3])
        assert two.partition(1).last_stable_offset == 0
    await two.settled("CompleteCommit")
    assert [two.partition(index).last_stable_offset for index in range(4)] == [2] * 4


def is_stable(partition: Partition) -> bool:
    return partition.last_stable_offset == 2


def remote(address: tuple[str, int] | None, name: str = "PLAINTEXT") -> RemoteMarkers:
    catalog = Catalog("c")
    if address is not None:
        catalog.add_broker(BrokerInfo(2, {"OTHER": ("127.0.0.1", 1), name: address}, None))
    return RemoteMarkers(OtherBrokers(real_env(), catalog, ["PLAINTEXT"]))


async def test_broker_without_an_address_is_not_available() -> None:
    with pytest.raises(KafkaError) as error:
        await remote(None).write(2, [WORK])
    assert error.value.code is ErrorCode.BROKER_NOT_AVAILABLE


async def test_broker_that_refuses_connections_is_a_network_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, and no server listens
        with pytest.raises(KafkaError) as error:
            await remote(unused.getsockname()).write(2, [WORK])
    assert error.value.code is ErrorCode.NETWORK_EXCEPTION


@pytest.mark.slow
async def test_stop_ends_a_request_that_waits_for_its_answer(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, released = asyncio.Event(), asyncio.Event()

    async def hold(work: object) -> list[object]:
        arrived.set()
        await released.wait()
        return [{}]

    monkeypatch.setattr(two.second.markers, "write", hold)
    asked = asyncio.ensure_future(two.first.markers.write_markers(2, [WORK]))
    await arrived.wait()
    two.first.markers.close()
    with pytest.raises(KafkaError) as error:
        await asked
    assert error.value.code is ErrorCode.NETWORK_EXCEPTION
    released.set()


@pytest.mark.slow
async def test_requests_that_wait_fail_with_the_one_before(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = OtherBrokers(two.first.env, two.first.catalog, ["PLAINTEXT"])
    arrived, released = asyncio.Event(), asyncio.Event()

    async def hold(work: object) -> list[object]:
        arrived.set()
        await released.wait()
        return [{}]

    monkeypatch.setattr(two.second.markers, "write", hold)
    request = request_of([WORK])
    asked = [asyncio.ensure_future(brokers.request(2, 27, request)) for _ in range(3)]
    await arrived.wait()
    brokers.close()
    for each in asked:
        with pytest.raises(KafkaError) as error:
            await each
        assert error.value.code is ErrorCode.NETWORK_EXCEPTION
    assert "request before" in str(error.value)
    released.set()


def test_request_has_every_marker() -> None:
    (marker,) = request_of([WORK]).markers
    assert (marker.producer_id, marker.producer_epoch) == (7, 3)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)
    assert marker.transaction_result is True
    found = [(topic.name, topic.partition_indexes) for topic in marker.topics]
    assert found == [("t", [1, 3]), ("u", [0])]


def test_codes_are_those_of_the_producer() -> None:
    rows = [WritableTxnMarkerPartitionResult(1, 0), WritableTxnMarkerPartitionResult(3, 999)]
    topics = [WritableTxnMarkerTopicResult("t", rows)]
    others = [WritableTxnMarkerTopicResult("t", [WritableTxnMarkerPartitionResult(1, 52)])]
    response = WriteTxnMarkersResponse(
        [WritableTxnMarkerResult(8, others), WritableTxnMarkerResult(7, topics)]
    )
    assert codes_of(response, [WORK]) == [
        {("t", 1): ErrorCode.NONE, ("t", 3): ErrorCode.UNKNOWN_SERVER_ERROR}
    ]
