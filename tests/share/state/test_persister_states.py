"""The persister finds coordinators here and at other brokers, and waits for them.

Covers: kafkawire.share.state.persister, kafkawire.share.state.service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.compile import decode, encode
from kafkawire.codec.errors import ErrorCode as E
from kafkawire.codec.errors import KafkaError
from kafkawire.metadata.catalog import Catalog, PartitionInfo, TopicInfo
from kafkawire.share.persister import SharePartitionKey, ShareState, StateBatch
from kafkawire.share.state import persister as module
from kafkawire.share.state.machine import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    StateAnswer,
    StateRequest,
    StateShard,
    WriteState,
)
from kafkawire.share.state.persister import StatePersister
from kafkawire.share.state.service import STATE_TOPIC, ShareStateService, coordinator_key
from kafkawire.share.state.wire import (
    FORMATS,
    format_message,
    parse_message,
    parse_response,
    response_steps,
)
from tests.kit.groups.log import FakeCommitLog, FakePartition, FakeTopics, fake_env
from tests.kit.waiting import until

TOPIC = bytes([1]) * 16
PARTITIONS = 4


def topic(name: str, count: int, number: int, leader: int = 1) -> TopicInfo:
    partitions = [PartitionInfo(100 * number + n, n, leader, 0) for n in range(count)]
    return TopicInfo(bytes([number]) * 16, name, name == STATE_TOPIC, partitions, {})


class House:
    """Broker 1 with share coordinators, and broker 2, which leads partition 2 of the state topic;
    messages to it are encoded and decoded."""

    def __init__(self) -> None:
        self.env = fake_env()
        self.log = FakeCommitLog()
        self.log.by_itself = True
        self.catalog = Catalog("cluster")
        self.catalog.add_topic(topic("t", 50, 1))
        settings: Any = SimpleNamespace(
            share_coordinator_snapshot_update_records_per_snapshot=500,
            share_coordinator_state_topic_prune_interval_ms=300_000,
            share_coordinator_cold_partition_snapshot_interval_ms=300_000,
        )
        log: Any = self.log
        internal: Any = self.internal
        self.refuse: E | None = None
        self.service = ShareStateService(self.env, settings, "/d", log, internal, self.catalog)
        self.other = StateShard(settings, FakeTopics({"t": 50}))
        self.other._topics = self.catalog
        self.sent: list[int] = []
        self.broken = 0
        self.hold = asyncio.Event()
        self.hold.set()
        remote: Any = self
        self.persister = StatePersister(self.env, 1, self.service, remote)

    async def internal(self) -> list[FakePartition | None]:
        if self.refuse is not None:
            raise KafkaError(self.refuse, "no room")
        if STATE_TOPIC not in self.catalog.by_name:
            made = topic(STATE_TOPIC, PARTITIONS, 9)
            made.partitions[2].leader = 2
            self.catalog.add_topic(made)
        return [None if n == 2 else FakePartition(self.log, n) for n in range(PARTITIONS)]

    async def send(
        self, broker: int, requests: Sequence[StateRequest]
    ) -> dict[tuple[bytes, int], StateAnswer]:
        """Implements RemoteStates."""
        assert broker == 2
        self.sent.append(len(requests))
        await self.hold.wait()
        if self.broken:
            self.broken -= 1
            raise KafkaError(E.NETWORK_EXCEPTION, "cut")
        kind = FORMATS[type(requests[0])]
        version = 1 if kind.key in (85, 87) else 0
        message = decode(kind.message, version, encode(format_message(requests), version))
        answers = []
        for request in parse_message(message):
            decision = self.other.decide(request, 0)
            if decision.record is not None:
                self.other.apply(decision.record)
            answers.append(decision.answer)
        response = await self.env.slices.run(response_steps(message, answers))
        return parse_response(decode(kind.response, version, encode(response, version)))

    def key(self, *, here: bool, number: int = 0) -> SharePartitionKey:
        """A share partition whose coordinator is this broker, or the other one."""
        found = [
            key
            for index in range(50)
            for key in [SharePartitionKey("g:1", TOPIC, index)]
            if (ShareStateService.partition_of(coordinator_key(key), PARTITIONS) != 2) == here
        ]
        return found[number]


@pytest.fixture(name="house")
async def open_house() -> AsyncIterator[House]:
    house = House()
    yield house
    await house.service.close()


@pytest.mark.parametrize("here", [True, False])
async def test_life_of_a_state(house: House, here: bool) -> None:
    persister, key = house.persister, house.key(here=here)
    with pytest.raises(KafkaError) as unknown:
        await persister.read(key, 0)
    assert unknown.value.code is E.INVALID_REQUEST
    assert unknown.value.message == "Read operation on uninitialized share partition not allowed."
    (answer,) = await persister.execute_all([InitializeState(key, 3, 10)])
    assert answer.code is E.NONE
    assert await persister.read(key, 5) == ShareState(
        3, 10, (), 0 if here else -1  # a count is not in the message
    )  # fmt: skip
    batch = StateBatch(10, 12, 2, 1)
    await persister.write(key, 3, 5, 10, 3, (batch,))
    assert (await persister.read(key, 5)).batches == (batch,)
    with pytest.raises(KafkaError) as fenced:
        await persister.write(key, 3, 4, 10, 0, ())
    assert fenced.value.code is E.FENCED_LEADER_EPOCH
    (answer,) = await persister.execute_all([ReadSummary(key)])
    assert answer.state is not None
    assert (answer.state.start_offset, answer.state.delivery_complete_count) == (10, 3)
    assert (answer.state.state_epoch, answer.state.leader_epoch) == (3, 5)
    assert [a.code for a in await persister.execute_all([DeleteState(key)] * 2)] == [E.NONE] * 2
    assert bool(house.sent) is not here


async def test_requests_to_a_broker_are_sent_together(house: House) -> None:
    keys = [house.key(here=False, number=number) for number in range(5)]
    house.hold.clear()
    waiting = asyncio.gather(
        *(house.persister.execute(InitializeState(key, 1, 0)) for key in keys),
        house.persister.execute(ReadState(keys[0], 0)),
        house.persister.execute(ReadState(keys[0], 1)),
    )
    await until(lambda: bool(house.sent))
    for _ in range(5):
        await asyncio.sleep(0)
    house.hold.set()
    answers = await waiting
    assert {answer.code for answer in answers} == {E.NONE}
    # Those that came while the first message was on its way share the next one; two reads of one
    # share partition do not.
    assert house.sent[2:] == [1, 1]
    assert sum(house.sent[:2]) == 5


async def test_a_lost_message_is_sent_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    house.broken = 3
    key = house.key(here=False)
    assert (await house.persister.execute(InitializeState(key, 1, 0))).code is E.NONE
    assert len(house.sent) == 4


async def test_in_the_end_the_error_is_the_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    house.broken = 1
    answer = await house.persister.execute(InitializeState(house.key(here=False), 1, 0))
    assert (answer.code, answer.message) == (E.NETWORK_EXCEPTION, "cut")


async def test_while_the_topic_cannot_be_created_there_is_no_coordinator(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    house.refuse = E.INVALID_REPLICATION_FACTOR
    answer = await house.persister.execute(InitializeState(house.key(here=True), 1, 0))
    assert answer.code is E.COORDINATOR_NOT_AVAILABLE


async def test_a_coordinator_that_loads_is_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    key = house.key(here=True)
    await house.persister.execute(InitializeState(key, 1, 0))
    coordinator = house.service.find_coordinator(coordinator_key(key))
    assert coordinator is not None
    house.log.reads.clear()
    coordinator.reload()
    waiting = asyncio.get_running_loop().create_task(house.persister.read(key, 0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    house.log.reads.set()
    assert (await waiting).state_epoch == 1


async def test_a_deleted_topic_takes_its_states(house: House) -> None:
    key = house.key(here=True)
    await house.persister.execute(InitializeState(key, 1, 0))
    coordinator = house.service.find_coordinator(coordinator_key(key))
    assert coordinator is not None
    assert coordinator.shard.partitions
    house.catalog.remove_topic(TOPIC)
    house.service.topic_deleted(TOPIC)
    assert not coordinator.shard.partitions
    answer = await house.persister.execute(WriteState(key, 1, 0, 0, 0, ()))
    assert answer.code is E.INVALID_REQUEST


def test_the_coordinator_key_is_kafkas() -> None:
    key = SharePartitionKey("g:1", TOPIC, 7)
    assert coordinator_key(key) == "g:1:AQEBAQEBAQEBAQEBAQEBAQ:7"
