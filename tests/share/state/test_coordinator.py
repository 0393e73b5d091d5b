"""Share coordinators at work: batches of the log, commits, loading, cleaning and pruning.

Covers: kafkawire.share.state.coordinator.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.coordination.coordinator import CoordinatorPhase
from kafkawire.share.persister import SharePartitionKey, StateBatch
from kafkawire.share.state import coordinator as module
from kafkawire.share.state.coordinator import ShareStateCoordinator
from kafkawire.share.state.machine import (
    DeleteState,
    InitializeState,
    ReadState,
    StateAnswer,
    StateRequest,
    WriteState,
)
from tests.kit.groups.log import FakeCommitLog, FakePartition, FakeTopics, fake_env, id_of
from tests.kit.waiting import until

KEYS = [SharePartitionKey("g", id_of("t"), index) for index in range(9)]
KEY = KEYS[0]


class StatePartition(FakePartition):
    """A partition of the state topic, whose log start can be moved."""

    async def delete_records(self, offset: int) -> int:
        assert offset <= self.high_watermark
        self.log_start = offset
        return offset


class Bench:
    """One coordinator on a fake log."""

    def __init__(self) -> None:
        self.env = fake_env()
        self.log = FakeCommitLog()
        self.partition = StatePartition(self.log)
        self.topics = FakeTopics({"t": 9})
        self.settings = SimpleNamespace(share_coordinator_snapshot_update_records_per_snapshot=500)
        self.coordinator = self.make()

    def make(self) -> ShareStateCoordinator:
        partition: Any = self.partition
        log: Any = self.log
        settings: Any = self.settings
        return ShareStateCoordinator(self.env, settings, self.topics, partition, log, "/share")

    def begin(self) -> Bench:
        self.coordinator.begin_empty()
        return self

    async def now(self, *requests: StateRequest) -> list[StateAnswer]:
        """Submit requests together, and commit until all have an answer."""
        waiting = [self.coordinator.handle_request(request) for request in requests]
        for _ in range(10):
            await asyncio.sleep(0)
            self.log.commit()
        return [future.result() for future in waiting]

    async def codes(self, *requests: StateRequest) -> list[E]:
        return [answer.code for answer in await self.now(*requests)]

    async def reload(self) -> None:
        """Restart: another coordinator over what is committed."""
        self.partition.lose_uncommitted()
        # As a log whose start has moved.
        start = self.partition.log_start
        self.partition.batches = [
            batch
            for batch in self.partition.batches
            if int.from_bytes(batch[0:8], "big") + int.from_bytes(batch[57:61], "big") > start
        ]
        self.coordinator = self.make()
        await self.coordinator.load()
        assert self.coordinator.phase is CoordinatorPhase.ACTIVE


def init(key: SharePartitionKey = KEY, epoch: int = 1, start: int = 0) -> InitializeState:
    return InitializeState(key, epoch, start)


def write(key: SharePartitionKey = KEY, offset: int = 0) -> WriteState:
    return WriteState(key, 1, 0, 0, 0, (StateBatch(offset, offset, 2, 1),))


async def test_requests_of_an_iteration_share_a_batch() -> None:
    bench = Bench().begin()
    assert set(await bench.codes(*map(init, KEYS))) == {E.NONE}
    assert len(bench.partition.batches) == 1
    assert set(await bench.codes(*map(write, KEYS))) == {E.NONE}
    assert len(bench.partition.batches) == 2


async def test_requests_about_one_share_partition_are_decided_in_turn() -> None:
    bench = Bench().begin()
    answers = await bench.now(init(), write(offset=1), write(offset=2), ReadState(KEY, 0))
    assert {answer.code for answer in answers} == {E.NONE}
    assert answers[-1].state is not None
    assert answers[-1].state.batches == (StateBatch(1, 2, 2, 1),)
    assert len(bench.partition.batches) == 3


async def test_answers_wait_for_the_commit_also_of_what_they_only_show() -> None:
    bench = Bench().begin()
    await bench.now(init())
    first = bench.coordinator.handle_request(write())
    await asyncio.sleep(0.01)
    second = bench.coordinator.handle_request(ReadState(KEY, 0))
    await asyncio.sleep(0.01)
    assert not first.done()
    assert not second.done()
    bench.log.commit()
    assert (first.result().code, second.result().code) == (E.NONE, E.NONE)


async def test_a_failed_commit_loads_again() -> None:
    bench = Bench().begin()
    await bench.now(init())
    lost = bench.coordinator.handle_request(write())
    queued = bench.coordinator.handle_request(write(offset=1))
    await asyncio.sleep(0)
    bench.log.fail()
    assert (lost.result().code, queued.result().code) == (E.NOT_COORDINATOR, E.NOT_COORDINATOR)
    assert await bench.codes(write()) == [E.COORDINATOR_LOAD_IN_PROGRESS]
    await until(lambda: bench.coordinator.phase is CoordinatorPhase.ACTIVE)
    (answer,) = await bench.now(ReadState(KEY, 0))
    assert answer.state is not None
    assert answer.state.batches == ()


async def test_a_log_that_refuses_is_an_error_and_changes_nothing() -> None:
    bench = Bench().begin()
    await bench.now(init())
    bench.partition.refuse = E.KAFKA_STORAGE_ERROR
    assert await bench.codes(write(), ReadState(KEY, 0)) == [E.NOT_COORDINATOR, E.NONE]
    bench.partition.refuse = None
    assert bench.coordinator.shard.partitions[KEY].state.batches == ()


async def test_a_record_that_is_too_large_fails_alone() -> None:
    bench = Bench().begin()
    await bench.now(init(), init(KEYS[1]))
    many = tuple(StateBatch(2 * n, 2 * n, 2, 1) for n in range(9_000))
    bench.partition.config.max_message_bytes = 10_000
    large = write()._replace(batches=many)
    assert await bench.codes(large, write(KEYS[1])) == [E.MESSAGE_TOO_LARGE, E.NONE]


async def test_many_requests_are_decided_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECIDED_AT_ONCE", 2)
    bench = Bench().begin()
    assert set(await bench.codes(*map(init, KEYS[:5]))) == {E.NONE}
    assert len(bench.partition.batches) == 3


async def test_a_defect_fails_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().begin()
    await bench.now(init())
    none: Any = None
    assert await bench.codes(write()._replace(batches=none), write()) == [
        E.UNKNOWN_SERVER_ERROR,
        E.NONE,
    ]


async def test_a_restart_finds_what_was_committed() -> None:
    bench = Bench().begin()
    await bench.now(init(), write(offset=3), ReadState(KEY, 5))
    before = bench.coordinator.shard.partitions[KEY].state
    bench.coordinator.handle_request(write(offset=9))
    await asyncio.sleep(0)
    await bench.reload()
    assert bench.coordinator.shard.partitions[KEY].state == before
    assert await bench.codes(write()) == [E.FENCED_LEADER_EPOCH]


async def test_closing_answers_what_waits_and_writes_a_snapshot() -> None:
    bench = Bench().begin()
    await bench.now(*map(init, KEYS))
    for number in range(200):
        await bench.now(*(write(key, number) for key in KEYS))
    waiting = bench.coordinator.handle_request(write(offset=999))
    bench.log.by_itself = True
    await bench.coordinator.close()
    assert waiting.result().code is E.NONE
    kept = bench.coordinator.shard
    assert await bench.codes(write()) == [E.COORDINATOR_NOT_AVAILABLE]
    await bench.reload()
    assert bench.coordinator.snapshot_bytes
    assert bench.coordinator.shard.partitions[KEY].state.batches[-1] == StateBatch(999, 999, 2, 1)
    assert not kept.partitions


async def test_what_no_share_partition_needs_is_deleted() -> None:
    bench = Bench().begin()
    await bench.now(init(), init(KEYS[1]))
    for number in range(5):
        await bench.now(write(KEYS[1], number))
    await bench.coordinator.prune()
    assert bench.partition.log_start == 0
    bench.env.clock.ms += 300_000  # type: ignore[attr-defined]
    bench.log.by_itself = True
    await bench.coordinator.clean(300_000)
    await bench.coordinator.prune()
    assert bench.partition.log_start == 7
    before = {key: each.state for key, each in bench.coordinator.shard.partitions.items()}
    await bench.reload()
    assert {k: each.state for k, each in bench.coordinator.shard.partitions.items()} == before


async def test_a_failed_deletion_of_records_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench().begin()
    await bench.now(init(), init(epoch=2))

    async def fail(offset: int) -> int:
        raise OSError("no metadata")

    monkeypatch.setattr(bench.partition, "delete_records", fail)
    await bench.coordinator.prune()
    assert "deleting the records below offset 1 failed, it is tried again" in caplog.text


async def test_a_snapshot_before_the_log_start_is_ignored() -> None:
    """It would bring back a state whose tombstone is deleted."""
    bench = Bench().begin()
    await bench.now(init(epoch=9), init(KEYS[1]))
    bench.coordinator.appender.log_bytes = 1 << 30
    bench.log.by_itself = True
    await bench.coordinator._store(1)
    await bench.now(DeleteState(KEY), init(KEYS[1], epoch=2))
    await bench.coordinator.prune()
    assert bench.partition.log_start == 3
    await bench.reload()
    assert list(bench.coordinator.shard.partitions) == [KEYS[1]]
    assert await bench.codes(init(epoch=1)) == [E.NONE]


async def test_states_of_deleted_topics_go_at_once_or_with_the_next_cleaning() -> None:
    bench = Bench().begin()
    await bench.now(init(), init(KEYS[1]))
    del bench.topics["t"]
    bench.partition.refuse = E.KAFKA_STORAGE_ERROR
    bench.coordinator.delete_topics([id_of("t")])
    assert len(bench.coordinator.shard.partitions) == 2
    bench.partition.refuse = None
    bench.log.by_itself = True
    await bench.coordinator.clean(1000)
    assert not bench.coordinator.shard.partitions
    bench.topics["t"] = 9
    await bench.now(init())
    bench.coordinator.delete_topics([id_of("t")])
    assert not bench.coordinator.shard.partitions
    bench.log.commit()
    await bench.reload()
    assert not bench.coordinator.shard.partitions


async def test_damage_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    await bench.coordinator.new_loader().pass_damage(3, 9)
    assert "offsets 3-8 are damaged: share groups whose newest state was there" in caplog.text
