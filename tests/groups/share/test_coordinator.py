"""Share groups driven by the coordinator: states after the commit, loading, failed appends.

Covers: kafkawire.groups.coordinator, kafkawire.groups.model.share_states.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.coordinator import Coordinator
from kafkawire.groups.event_log import GroupEventLog
from kafkawire.groups.model.share_states import LoadedShareStates, NoShareStates, ShareStates
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from kafkawire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from kafkawire.share.state.machine import (
    UNINITIALIZED,
    DeleteState,
    InitializeState,
    ReadSummary,
    StateAnswer,
)
from kafkawire.share.state.records import StoredShareState
from tests.kit.groups.log import Bench
from tests.kit.groups.shares import assigned, share_facts
from tests.kit.waiting import until

Asked = Sequence[InitializeState | DeleteState | ReadSummary]


class FakeStates:
    """Share coordinators that do what they are asked for once `let` is set."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.let = asyncio.Event()
        self.code = E.NONE
        self.broken = False
        self.state: StoredShareState | None = None

    async def execute_all(self, requests: Asked) -> list[StateAnswer]:
        self.asked.append(requests)
        await self.let.wait()
        if self.broken:
            raise ValueError("a defect")
        return [StateAnswer(self.code, None, self.state) for _ in requests]


class ShareBench(Bench):
    """A coordinator with share coordinators."""

    def make(self) -> Coordinator:
        self.states = FakeStates()

        async def load() -> ShareStates:
            return self.states

        log: Any = self.log
        partition: Any = self.partition
        return Coordinator(
            self.env, self.settings, partition, log, "/groups", self.topics,
            GroupEventLog(self.env.clock.monotonic), LoadedShareStates(load),
        )  # fmt: skip

    @property
    def group(self) -> Any:
        return self.coordinator.shard.share_groups["g"]


def beat(member: str = "a", epoch: int = 0) -> ShareGroupHeartbeatRequest:
    topics = None if epoch else ["t"]
    return ShareGroupHeartbeatRequest("g", member, epoch, None, topics)


async def started() -> ShareBench:
    bench = ShareBench()
    bench.begin()
    bench.log.by_itself = True
    assert (await bench.now(beat(), 1)).member_epoch == 1
    await until(lambda: bool(bench.states.asked))
    return bench


async def test_states_are_requested_after_the_commit() -> None:
    bench = ShareBench()
    bench.begin()
    future = bench.ask(beat(), 1)
    await asyncio.sleep(0)
    assert not future.done()
    assert not bench.states.asked
    bench.log.commit()
    assert assigned(await future) == {}
    await until(lambda: bool(bench.states.asked))
    bench.states.let.set()
    await until(lambda: bool(bench.group.initialized))
    bench.log.commit()
    bench.env.clock.ms += 1000  # type: ignore[attr-defined]
    assert assigned(await bench.now(beat(epoch=1), 1)) == {"t": [0]}
    bench.coordinator.timers.clear()


async def test_after_a_reload_the_answer_of_share_coordinators_comes_too_late() -> None:
    bench = await started()
    bench.coordinator.reload()
    await until(lambda: bench.active)
    bench.states.let.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not bench.group.initialized
    # The next heartbeat requests them again.
    assert (await bench.now(beat(epoch=1), 1)).error_code == 0
    await until(lambda: bool(bench.group.initialized))
    bench.coordinator.timers.clear()


@pytest.mark.parametrize("broken", [True, False])
async def test_a_request_that_waits_for_share_coordinators(
    broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await started()
    bench.states.let.set()
    await until(lambda: bool(bench.group.initialized))
    await bench.now(beat(epoch=-1), 1)
    bench.states.let.clear()
    waiting = bench.ask(DeleteGroupsRequest(["g"]), 2)
    await until(lambda: len(bench.states.asked) == 2)
    assert not waiting.done()
    bench.states.broken, bench.states.code = broken, E.NOT_COORDINATOR
    bench.states.let.set()
    code = E.UNKNOWN_SERVER_ERROR if broken else E.NOT_COORDINATOR
    assert (await waiting).results[0].error_code == code
    assert f"refused to delete all states of 1 share partitions: {code.name}" in caplog.text
    bench.states.broken, bench.states.code = False, E.NONE
    assert (await bench.ask(DeleteGroupsRequest(["g"]), 2)).results[0].error_code == 0
    assert not bench.coordinator.shard.share_groups


async def test_a_request_that_waits_when_the_coordinator_is_loaded_again() -> None:
    bench = await started()
    bench.states.let.set()
    await until(lambda: bool(bench.group.initialized))
    await bench.now(beat(epoch=-1), 1)
    bench.states.let.clear()
    waiting = bench.ask(DeleteGroupsRequest(["g"]), 2)
    await until(lambda: len(bench.states.asked) == 2)
    bench.coordinator.reload()
    assert (await waiting).results[0].error_code == E.NOT_COORDINATOR
    bench.states.let.set()
    await until(lambda: bench.active)
    assert list(bench.coordinator.shard.share_groups) == ["g"]


async def test_a_log_that_refuses_the_result() -> None:
    bench = await started()
    bench.partition.refuse = E.KAFKA_STORAGE_ERROR
    assert bench.group.initializations
    bench.states.let.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not bench.group.initialized
    assert not bench.group.initializations  # offsets can be altered
    bench.partition.refuse = None
    bench.env.clock.ms += 30_000  # type: ignore[attr-defined]
    assert (await bench.now(beat(epoch=1), 1)).error_code == 0
    await until(lambda: bool(bench.group.initialized))
    bench.coordinator.timers.clear()


async def test_a_restart_finds_the_group() -> None:
    bench = await started()
    bench.states.let.set()
    await until(lambda: bool(bench.group.initialized))
    await bench.now(beat(epoch=1), 1)
    before = share_facts(bench.group)
    await bench.reload()
    assert share_facts(bench.group) == before
    del bench.topics["t"]
    bench.coordinator.forget_topic("t")
    assert not bench.group.initialized
    bench.coordinator.timers.clear()


async def test_lost_states_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = await started()
    bench.states.let.set()
    await until(lambda: bool(bench.group.initialized))
    await bench.now(beat(epoch=1), 1)
    await bench.reload()
    bench.states.let.set()
    bench.states.state = UNINITIALIZED
    beaten = await bench.now(beat(epoch=bench.group.members["a"].epoch), 1)
    assert beaten.error_code == 0
    await until(lambda: not bench.group.initialized)
    assert "group g: share coordinators have lost states of share partitions" in caplog.text
    bench.coordinator.timers.clear()


async def test_without_share_coordinators() -> None:
    request = DeleteState(None)  # type: ignore[arg-type]
    answers = await NoShareStates().execute_all([request])
    assert [answer.code for answer in answers] == [E.COORDINATOR_NOT_AVAILABLE]
