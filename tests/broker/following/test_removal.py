"""A broker that was stopped is removed, noticed by others, and registered again.

Covers: kafkawire.handlers.unregister_broker.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kafkawire.broker.broker import Broker
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic
from kafkawire.messages.describe_cluster import DescribeClusterRequest
from kafkawire.messages.unregister_broker import UnregisterBrokerRequest
from kafkawire.metadata.catalog import BROKER_RESOURCE, ConfigChange
from kafkawire.metadata.sql import SqlMetadata
from kafkawire.metadata.store import MetadataError
from tests.kit.admin import ME, OTHER, FakeBroker, call
from tests.kit.client import Client
from tests.kit.postgres import new_database
from tests.kit.server import port_of, running
from tests.kit.waiting import until

NOBODY = 7


async def test_unknown_and_living_brokers_are_refused() -> None:
    broker = FakeBroker()
    for node_id, code in (
        (NOBODY, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (ME, ErrorCode.INVALID_REQUEST),
        (OTHER, ErrorCode.INVALID_REQUEST),
    ):
        answer = await call(broker, UnregisterBrokerRequest(node_id), 0)
        assert answer.error_message, node_id
        assert answer.error_code == code
        assert ("stop it" in answer.error_message) == (node_id != NOBODY)
    assert broker.steps == []
    assert set(broker.catalog.brokers) == {ME, OTHER}


async def test_silent_broker_is_removed_with_its_settings() -> None:
    broker = FakeBroker()
    broker.catalog.set_silent(frozenset({OTHER}))
    for name in (OTHER, ME):
        change = ConfigChange(BROKER_RESOURCE, str(name), "broker.draining", "true")
        broker.catalog.apply_config(change)
    version = broker.catalog.version
    answer = await call(broker, UnregisterBrokerRequest(OTHER), 0)
    assert (answer.error_code, answer.error_message) == (0, "")
    assert broker.steps == [f"sql remove broker {OTHER}"]
    assert set(broker.catalog.brokers) == {ME}
    assert broker.catalog.broker_configs(OTHER) == {}
    assert broker.catalog.broker_configs(ME) == {"broker.draining": "true"}
    assert broker.catalog.version > version  # cached Metadata responses are not used any more


async def test_failure_of_sql_is_answered() -> None:
    broker = FakeBroker()
    broker.catalog.set_silent(frozenset({OTHER}))
    broker.metadata.fails = MetadataError("it is away")
    answer = await call(broker, UnregisterBrokerRequest(OTHER), 0)
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.KAFKA_STORAGE_ERROR,
        "it is away",
    )
    assert OTHER in broker.catalog.brokers


Start = Callable[[int], Any]


@asynccontextmanager
async def three(folder: Path, url: str) -> AsyncIterator[tuple[Broker, Broker, AsyncExitStack]]:
    """Brokers 1 and 2, and what stops broker 3."""
    async with (
        running(folder / "1", metadata=url, node_id="1", lease_ms="3000") as first,
        running(folder / "2", metadata=url, node_id="2", lease_ms="3000") as second,
    ):
        third = AsyncExitStack()
        await third.enter_async_context(running(folder / "3", metadata=url, node_id="3"))
        one, two = first.broker, second.broker
        try:
            await until(lambda: len(one.catalog.brokers) == len(two.catalog.brokers) == 3)
            await until(lambda: 3 in one.liveness.may_lead())
            yield one, two, third
        finally:
            await third.aclose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.real)])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return await new_database(request.getfixturevalue("postgres_url"))
    return f"sqlite+aiosqlite:///{tmp_path}/shared.db"


async def refused(broker: Broker, node_id: int) -> str:
    with pytest.raises(KafkaError) as caught:
        await broker.removal.remove(node_id, "a test")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.message or ""


@pytest.mark.slow
async def test_removed_broker_is_forgotten_and_may_return(tmp_path: Path, url: str) -> None:
    async with three(tmp_path, url) as (one, two, third):
        assert "alive" in await refused(one, 3)
        topic = CreatableTopic("t", -1, -1)
        topic.assignments = [CreatableReplicaAssignment(0, [3]), CreatableReplicaAssignment(1, [3])]
        await one.topics.create([topic])
        epoch = one.catalog.brokers[3].epoch
        await third.aclose()
        await until(lambda: 3 in one.catalog.silent)
        assert "has 2 led partitions: drain" in await refused(one, 3)
        assert await one.topics.delete([one.catalog.by_name["t"].id]) == {}
        await one.removal.remove(3, "a test")
        assert set(one.catalog.brokers) == {1, 2}
        await until(lambda: set(two.catalog.brokers) == {1, 2})
        with pytest.raises(KafkaError) as caught:
            await two.removal.remove(3, "a test")
        assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED

        async with running(tmp_path / "3", metadata=url, node_id="3") as again:
            assert again.broker.catalog.brokers[3].epoch > epoch
            await until(lambda: 3 in one.liveness.may_lead() and 3 in two.liveness.may_lead())
            client = await Client.connect(port_of(again))
            answer = await client.call(DescribeClusterRequest(), 0)
            await client.close()
            assert [each.broker_id for each in answer.brokers] == [1, 2, 3]


@pytest.mark.slow
async def test_process_whose_broker_was_removed_stops_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that was suspended for longer than the lease."""
    url = f"sqlite+aiosqlite:///{tmp_path}/shared.db"
    async with (
        running(tmp_path / "1", metadata=url, node_id="1") as first,
        running(tmp_path / "2", metadata=url, node_id="2") as second,
    ):
        one, two = first.broker, second.broker
        await until(lambda: len(one.catalog.brokers) == len(two.catalog.brokers) == 2)
        other = SqlMetadata(url)
        seen = (await other.open()).stored_version
        caplog.set_level(logging.CRITICAL)
        await other.remove_broker(2, seen)
        await other.close()
        await until(lambda: two.log.commit_log.failed is not None)
        assert [line for line in caplog.messages if "broker 2 was removed" in line]
        await until(lambda: set(one.catalog.brokers) == {1})
        assert one.log.commit_log.failed is None
