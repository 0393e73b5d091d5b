"""The transaction service: coordinators by the hash of ids, opening, tasks, operators' queries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.java_hash import partition_of
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.metadata.catalog import BrokerInfo, Catalog, PartitionInfo, TopicInfo
from kafkawire.transactions.coordinator import TransactionCoordinator
from kafkawire.transactions.machine.request import (
    AddPartitions,
    Answer,
    EndTransaction,
    InitProducer,
    ListFilter,
    VerifyPartitions,
)
from kafkawire.transactions.machine.transaction import COMPLETE_COMMIT
from kafkawire.transactions.service import STATE_TOPIC, TransactionService
from tests.kit.groups.log import fake_env
from tests.kit.transactions.bench import FakeCluster, StatePartition, TransactionLog
from tests.kit.transactions.desk import T0, TransactionSettings
from tests.kit.waiting import until

PARTITIONS, ELSEWHERE = 4, 2


def id_at(partition: int) -> str:
    """A transactional id that hashes to this partition."""
    return next(f"t{n}" for n in range(99) if partition_of(f"t{n}", PARTITIONS) == partition)


HERE, THERE = id_at(1), id_at(ELSEWHERE)


class ServiceSettings(TransactionSettings):
    transaction_abort_timed_out_transaction_cleanup_interval_ms = 10
    transaction_remove_expired_transaction_cleanup_interval_ms = 10


class Place:
    """A broker as far as the service sees one."""

    def __init__(self, **changed: int) -> None:
        self.env = fake_env()
        self.log = TransactionLog()
        self.log.by_itself = True
        self.catalog = Catalog("cluster")
        self.catalog.add_broker(BrokerInfo(1, {}, None))
        self.cluster = FakeCluster()
        self.settings = ServiceSettings(**changed)  # type: ignore[arg-type]
        self.partitions: list[StatePartition | None] = []
        self.made = 0
        self.refuse: ErrorCode | None = None
        self.next_pid = 1000
        self.service = self.start()

    def start(self) -> TransactionService:
        log: Any = self.log
        internal: Any = self.internal
        return TransactionService(
            self.env, self.settings, "/data", log, internal, self.catalog, self.cluster, self.take
        )

    async def take(self) -> int:
        if self.refuse is not None:
            raise KafkaError(self.refuse)
        self.next_pid += 1
        return self.next_pid - 1

    async def internal(self) -> list[StatePartition | None]:
        if self.refuse is not None:
            raise KafkaError(self.refuse, "no room")
        await asyncio.sleep(0)
        if STATE_TOPIC not in self.catalog.by_name:
            self.made += 1
            rows = [PartitionInfo(100 + n, n, 1, 0) for n in range(PARTITIONS)]
            rows[ELSEWHERE].leader = 2
            self.catalog.add_topic(TopicInfo(b"s" * 16, STATE_TOPIC, True, rows, {}))
            self.partitions = [
                None if n == ELSEWHERE else StatePartition(self.log, n) for n in range(PARTITIONS)
            ]
        return self.partitions


@pytest.fixture(name="place")
async def open_place() -> Any:
    place = Place()
    yield place
    await place.service.close()


async def spin() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


async def transact(place: Place, id_: str = HERE) -> Answer:
    """A whole transaction of version 2, markers included."""
    service = place.service
    at = await service.answer_request(InitProducer(id_, 60_000))
    who = id_, at.producer_id, at.producer_epoch
    assert (await service.answer_request(AddPartitions(*who, frozenset({T0}), 2))).code == 0
    assert await service.verify(VerifyPartitions(*who, frozenset({T0}))) == {T0: ErrorCode.NONE}
    ended = await service.answer_request(EndTransaction(*who, True, 2))
    await spin()
    return ended


async def test_a_whole_transaction(place: Place) -> None:
    await place.service.open()
    assert await transact(place) == Answer(ErrorCode.NONE, 1000, 1)
    (coordinator,) = [each for each in place.service.list_led() if each.shard.transactions]
    assert coordinator.partition.index == 1
    assert coordinator.shard.transactions[HERE].state is COMPLETE_COMMIT


async def test_the_topic_is_made_once_when_a_coordinator_is_searched(place: Place) -> None:
    await place.service.start()
    assert not place.service.coordinators
    found = await asyncio.gather(*(place.service.coordinator_of(HERE) for _ in range(3)))
    assert place.made == 1
    assert {(row.index, row.leader) for row in found} == {(1, 1)}
    assert (await place.service.coordinator_of(THERE)).leader == 2


async def test_a_topic_that_cannot_be_made(place: Place) -> None:
    place.refuse = ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(KafkaError):
        await place.service.coordinator_of(HERE)
    place.refuse = None
    await place.service.open()


async def test_ids_led_elsewhere(place: Place) -> None:
    """Row: not owner 16; what is wrong with the request itself comes first, as in Kafka."""
    service = place.service
    for opened in (False, True):
        if opened:
            await service.open()
        elsewhere = THERE if opened else HERE
        gone = Answer(ErrorCode.NOT_COORDINATOR)
        assert await service.answer_request(InitProducer(elsewhere, 60_000)) == gone
        assert await service.answer_request(EndTransaction(elsewhere, 1, 1, True)) == gone
        assert (await service.answer_request(InitProducer(elsewhere, 0))).code == 50
        assert (await service.answer_request(InitProducer("", 60_000))).code == 42
        assert (await service.answer_request(EndTransaction("", 1, 1, True))).code == 42
        asked = VerifyPartitions(elsewhere, 1, 1, frozenset({T0}))
        assert await service.verify(asked) == {T0: ErrorCode.NOT_COORDINATOR}
        assert (await service.describe(elsewhere)).error_code == ErrorCode.NOT_COORDINATOR


async def test_without_a_transactional_id(place: Place) -> None:
    """Row: null id: a new producer id, whatever the timeout."""
    assert await place.service.init_producer(None) == Answer(ErrorCode.NONE, 1000, 0)
    assert await place.service.init_producer(None) == Answer(ErrorCode.NONE, 1001, 0)
    place.refuse = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await place.service.init_producer(None)).code is place.refuse
    place.refuse = None
    await place.service.open()
    assert (await place.service.init_producer(InitProducer(HERE, 1))).producer_id == 1002


async def test_a_restart_loads(place: Place) -> None:
    await place.service.open()
    await transact(place)
    await place.service.close()
    place.service = place.start()
    place.log.reads.clear()
    await place.service.start()
    await spin()
    loading = await place.service.answer_request(InitProducer(HERE, 60_000))
    assert loading.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError) as error:
        await place.service.find(ListFilter())
    assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    place.log.reads.set()
    await until(lambda: all(c.phase is CoordinatorPhase.ACTIVE for c in place.service.list_led()))
    answer = await place.service.answer_request(InitProducer(HERE, 60_000))
    assert answer == Answer(ErrorCode.NONE, 1000, 2)


async def test_queries_of_operators(place: Place) -> None:
    await place.service.open()
    await transact(place)
    await transact(place, id_at(0))
    found = await place.service.find(ListFilter())
    assert {each.transactional_id for each in found} == {HERE, id_at(0)}
    assert await place.service.find(ListFilter(frozenset({"Ongoing"}))) == []
    assert (await place.service.describe(HERE)).transaction_state == "CompleteCommit"
    assert (await place.service.describe("")).error_code == ErrorCode.INVALID_REQUEST
    unknown = next(f"x{n}" for n in range(99) if partition_of(f"x{n}", PARTITIONS) == 0)
    found_none = await place.service.describe(unknown)
    assert found_none.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_tasks_abort_and_expire() -> None:
    place = Place(transactional_id_expiration_ms=500)
    await place.service.open()
    await transact(place)
    at = await place.service.answer_request(InitProducer(id_at(3), 100))
    who = id_at(3), at.producer_id, at.producer_epoch
    await place.service.answer_request(AddPartitions(*who, frozenset({T0}), 2))
    place.env.clock.ms += 1000  # type: ignore[attr-defined]

    def states() -> set[str]:
        return {
            at.state.label
            for each in place.service.list_led()
            for at in each.shard.transactions.values()
        }

    await until(lambda: states() == {"CompleteAbort"}, "aborted, and the other one has expired")
    await place.service.close()


async def test_a_defect_does_not_end_the_tasks(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await place.service.open()
    calls: list[int] = []

    async def broken(coordinator: TransactionCoordinator) -> None:
        calls.append(coordinator.partition.index)
        raise ZeroDivisionError

    monkeypatch.setattr(TransactionCoordinator, "abort_overdue", broken)
    await until(lambda: len(calls) >= 6, "the second round")
    assert calls[:6] == [0, 1, 3, 0, 1, 3]
    assert "aborting overdue transactions failed" in caplog.text


async def test_after_the_end(place: Place) -> None:
    await place.service.open()
    await place.service.close()
    await place.service.close()
    closed = Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert await place.service.answer_request(InitProducer(HERE, 60_000)) == closed
    assert await place.service.answer_request(InitProducer(THERE, 60_000)) == closed
    await place.service.open()
