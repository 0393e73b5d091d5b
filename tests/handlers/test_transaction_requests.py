"""Requests of transactional producers to their coordinator, through a socket.

Covers: kafkawire.handlers.init_producer_id, kafkawire.handlers.add_partitions_to_txn,
kafkawire.handlers.add_offsets_to_txn, kafkawire.handlers.end_txn,
kafkawire.handlers.find_coordinator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from kafkawire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kafkawire.messages.api_versions import ApiVersionsRequest
from kafkawire.messages.end_txn import EndTxnRequest
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.messages.init_producer_id import InitProducerIdRequest
from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic
from kafkawire.server.run import Server
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running

Codes = dict[tuple[str, int], int]
WAIT = {E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS}


async def init(client: Client, name: str | None = "tx", version: int = 4, **changed: Any) -> Any:
    """InitProducerId, repeated while the last transaction is being completed."""
    if name:
        await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
    values = {"transaction_timeout_ms": 60_000, **changed}
    return await repeated(client, InitProducerIdRequest(name, **values), version)


async def repeated(client: Client, request: Any, version: int) -> Any:
    """The answer, once markers of the transaction before are written."""
    while (answer := await client.call(request, version)).error_code in WAIT:
        pass
    return answer


async def add(client: Client, producer: Any, *partitions: int, version: int = 3) -> Codes:
    topics = [AddPartitionsToTxnTopic("t", list(partitions))]
    who = "tx", producer.producer_id, producer.producer_epoch
    if version < 4:
        request = AddPartitionsToTxnRequest([], *who, topics)
        found = (await client.call(request, version)).results_by_topic_v3_and_below
    else:
        request = AddPartitionsToTxnRequest([AddPartitionsToTxnTransaction(*who, False, topics)])
        (one,) = (await client.call(request, version)).results_by_transaction
        found = one.topic_results
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in found
        for each in topic.results_by_partition
    }


async def end(client: Client, producer: Any, *, commit: bool = True, version: int = 4) -> Any:
    who = "tx", producer.producer_id, producer.producer_epoch
    return await repeated(client, EndTxnRequest(*who, commit), version)


@pytest.mark.parametrize("version", range(6))
async def test_each_init_of_a_transactional_id_bumps_the_epoch(
    client: Client, version: int
) -> None:
    first = await init(client, version=version)
    again = await init(client, version=version)
    other = await init(client, "other", version=version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
    assert other.producer_id != first.producer_id


@pytest.mark.parametrize("version", range(6))
async def test_init_without_transactional_id_takes_new_ids(client: Client, version: int) -> None:
    first = await init(client, None, version)
    second = await init(client, None, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert second.producer_id == first.producer_id + 1


@pytest.mark.parametrize(
    ("name", "changed", "code"),
    [
        ("", {}, E.INVALID_REQUEST),
        ("tx", {"transaction_timeout_ms": 0}, E.INVALID_TRANSACTION_TIMEOUT),
        ("tx", {"transaction_timeout_ms": 900_001}, E.INVALID_TRANSACTION_TIMEOUT),
        ("tx", {"transaction_timeout_ms": 900_000}, E.NONE),
        (None, {"transaction_timeout_ms": 0}, E.NONE),
        ("tx", {"producer_id": 7, "producer_epoch": -1}, E.INVALID_REQUEST),
        ("tx", {"producer_id": -1, "producer_epoch": 7}, E.INVALID_REQUEST),
        (None, {"producer_id": 7, "producer_epoch": -1}, E.INVALID_REQUEST),
        (None, {"producer_id": 7, "producer_epoch": 7}, E.NONE),
        ("tx", {"producer_id": 7, "producer_epoch": 7}, E.NONE),  # the id is unknown, so new
    ],
)
async def test_invalid_init_gets_kafkas_code(
    client: Client, name: str | None, changed: dict[str, int], code: E
) -> None:
    answer = await init(client, name, **changed)
    assert answer.error_code == code
    expected = (-1, -1) if code else (answer.producer_id, 0)
    assert (answer.producer_id, answer.producer_epoch) == expected


@pytest.mark.parametrize(("version", "code"), [(3, 47), (4, 90), (5, 90)])
async def test_init_with_a_replaced_producer_is_fenced(
    client: Client, version: int, code: int
) -> None:
    first = await init(client)
    await init(client)
    await init(client)
    answer = await init(
        client, version=version, producer_id=first.producer_id, producer_epoch=first.producer_epoch
    )
    assert answer.error_code == code


@pytest.mark.parametrize("version", range(6))
async def test_partitions_join_a_transaction_that_ends(client: Client, version: int) -> None:
    await make(client, "t", 3)
    producer = await init(client)
    assert await add(client, producer, 0, 2, version=version) == {("t", 0): 0, ("t", 2): 0}
    assert (await end(client, producer)).error_code == 0
    assert (await end(client, producer)).error_code == 0  # repeated
    assert (await end(client, producer, commit=False)).error_code == E.INVALID_TXN_STATE


async def test_partition_that_does_not_exist_refuses_all(client: Client) -> None:
    await make(client, "t", 1)
    producer = await init(client)
    codes = await add(client, producer, 0, 9)
    assert codes == {("t", 0): E.OPERATION_NOT_ATTEMPTED, ("t", 9): E.UNKNOWN_TOPIC_OR_PARTITION}
    assert (await end(client, producer)).error_code == E.INVALID_TXN_STATE  # nothing was added


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (3, 90), (4, 90)])
async def test_replaced_producer_cannot_add_partitions(
    client: Client, version: int, code: int
) -> None:
    await make(client, "t", 1)
    producer = await init(client)
    await init(client)
    assert await add(client, producer, 0, version=version) == {("t", 0): code}


async def test_many_transactions_are_added_or_verified_in_one_request(client: Client) -> None:
    await make(client, "t", 2)
    producer = await init(client)
    await add(client, producer, 0)
    who = producer.producer_id, producer.producer_epoch
    topics = [AddPartitionsToTxnTopic("t", [0, 1])]
    request = AddPartitionsToTxnRequest(
        [
            AddPartitionsToTxnTransaction("tx", *who, True, topics),
            AddPartitionsToTxnTransaction("other", *who, False, topics),
            AddPartitionsToTxnTransaction("", *who, True, topics),
        ]
    )
    answer = await client.call(request, 5)
    codes = {
        one.transactional_id: [
            each.partition_error_code
            for topic in one.topic_results
            for each in topic.results_by_partition
        ]
        for one in answer.results_by_transaction
    }
    assert codes["tx"] == [0, E.TRANSACTION_ABORTABLE]
    assert codes["other"] == [E.INVALID_PRODUCER_ID_MAPPING] * 2
    assert codes[""] == [E.INVALID_REQUEST] * 2


@pytest.mark.parametrize("version", range(5))
async def test_offsets_of_a_group_join_a_transaction(client: Client, version: int) -> None:
    producer = await init(client)
    who = producer.producer_id, producer.producer_epoch
    answer = await client.call(AddOffsetsToTxnRequest("tx", *who, "g"), version)
    assert answer.error_code == 0
    assert (await end(client, producer)).error_code == 0
    await init(client)
    answer = await client.call(AddOffsetsToTxnRequest("tx", *who, "g"), version)
    assert answer.error_code == (47 if version < 2 else 90)
    answer = await client.call(AddOffsetsToTxnRequest("", *who, "g"), version)
    assert answer.error_code == E.INVALID_REQUEST


@pytest.mark.parametrize("commit", [True, False])
async def test_end_of_version_5_answers_the_next_epoch(client: Client, commit: bool) -> None:
    await make(client, "t", 1)
    producer = await init(client)
    await add(client, producer, 0, version=4)
    ended = await end(client, producer, commit=commit, version=5)
    assert (ended.producer_id, ended.producer_epoch) == (producer.producer_id, 1)
    repeated_end = await end(client, producer, commit=commit, version=5)
    assert (repeated_end.error_code, repeated_end.producer_epoch) == (0, 1)
    opposite = await end(client, producer, commit=not commit, version=5)
    assert opposite.error_code == E.INVALID_TXN_STATE


@pytest.mark.parametrize(("version", "code"), [(0, 47), (1, 47), (2, 90), (4, 90), (5, 90)])
async def test_replaced_producer_cannot_end(client: Client, version: int, code: int) -> None:
    producer = await init(client)
    await init(client)
    assert (await end(client, producer, version=version)).error_code == code


async def test_unknown_ids_have_no_transaction(client: Client) -> None:
    producer = await init(client, "other")
    await make(client, "t", 1)
    assert (await end(client, producer)).error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert await add(client, producer, 0) == {("t", 0): E.INVALID_PRODUCER_ID_MAPPING}


async def test_requests_before_the_topic_exists_are_sent_elsewhere(client: Client) -> None:
    request = InitProducerIdRequest("tx", 60_000)
    assert (await client.call(request, 4)).error_code == E.NOT_COORDINATOR


@pytest.mark.parametrize("version", range(1, 7))
async def test_coordinator_of_a_transactional_id_is_found(client: Client, version: int) -> None:
    if version < 4:
        found = await client.call(FindCoordinatorRequest(key="tx", key_type=1), version)
    else:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])
        (found,) = (await client.call(request, version)).coordinators
    assert (found.error_code, found.node_id) == (0, 1)


async def test_the_topic_of_transactions_is_created_by_a_metadata_request(
    client: Client, server: Server
) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="__transaction_state")])
    await client.call(request, 9)
    info = server.broker.catalog.by_name["__transaction_state"]
    assert len(info.partitions) == 50
    assert (await init(client)).error_code == 0


async def test_transaction_version_is_finalized(client: Client) -> None:
    request = ApiVersionsRequest("test", "1")
    third, fourth = [await client.call(request, version) for version in (3, 4)]
    for answer in (third, fourth):
        feature, of_groups, of_shares, of_streams = answer.finalized_features
        assert (of_groups.name, of_groups.max_version_level) == ("group.version", 1)
        assert (of_shares.name, of_shares.max_version_level) == ("share.version", 2)
        assert (of_streams.name, of_streams.max_version_level) == ("streams.version", 1)
        assert answer.finalized_features_epoch >= 0
        assert (feature.name, feature.min_version_level) == ("transaction.version", 2)
        assert feature.max_version_level == 2
    assert third.supported_features == []  # KAFKA-17492
    supported = [each.name for each in fourth.supported_features]
    assert supported == [
        "transaction.version", "group.version", "share.version", "streams.version",
    ]  # fmt: skip


async def test_a_restart_keeps_epochs_and_open_transactions(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as started:
        client = await Client.connect(port_of(started))
        await make(client, "t", 1)
        producer = await init(client)
        await add(client, producer, 0)
        await client.close()
    async with running(tmp_path / "data") as started:
        client = await Client.connect(port_of(started))
        await client.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"]), 4)
        assert (await end(client, producer)).error_code == 0
        assert (await init(client)).producer_epoch == 1
        await client.close()
