"""Streams groups driven by the coordinator: commits, loading, failed appends, large groups.

Covers: kafkawire.groups.coordinator, kafkawire.groups.large_targets.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode as E
from kafkawire.groups.streams.group import StreamsGroup, StreamsState
from kafkawire.messages.offset_commit import OffsetCommitRequest
from kafkawire.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import Bench
from tests.kit.groups.streams import stateful, streams_facts
from tests.kit.waiting import until

SETTINGS = {
    "group_streams_initial_rebalance_delay_ms": 0,
    "group_streams_assignment_interval_ms": 0,
}


def started(partitions: int = 2, **settings: Any) -> Bench:
    given: dict[str, Any] = {**SETTINGS, **settings}
    bench = Bench(**given)
    bench.topics.update(t=partitions, c=partitions)
    bench.begin()
    bench.log.by_itself = True
    return bench


def group_of(bench: Bench) -> StreamsGroup:
    return bench.coordinator.shard.streams_groups["g"]


def beat(member: str = "a", epoch: int = 0) -> StreamsGroupHeartbeatRequest:
    joins = epoch == 0
    return StreamsGroupHeartbeatRequest(
        "g",
        member,
        epoch,
        rebalance_timeout_ms=30_000 if joins else -1,
        topology=stateful() if joins else None,
        active_tasks=[] if joins else None,
        standby_tasks=[] if joins else None,
        warmup_tasks=[] if joins else None,
        process_id=f"process-{member}" if joins else None,
    )


async def answer(bench: Bench, member: str = "a", epoch: int = 0) -> Any:
    return (await bench.now(beat(member, epoch), 1)).response


async def test_the_answer_waits_for_the_commit() -> None:
    bench = started()
    bench.log.by_itself = False
    future = bench.ask(beat(), 1)
    await asyncio.sleep(0)
    assert not future.done()
    bench.log.commit()
    assert (await future).response.active_tasks[0].partitions == [0, 1]
    bench.coordinator.timers.clear()


async def test_a_coordinator_that_is_loaded_again_has_the_group() -> None:
    bench = started()
    await answer(bench)
    await answer(bench, "b")
    before = streams_facts(group_of(bench))
    again = await bench.reload()
    assert streams_facts(group_of(again)) == before
    # Members continue with their epochs.
    assert (await answer(again, "a", 2)).error_code == E.NONE
    again.coordinator.timers.clear()


async def test_a_failed_commit_takes_everything_back() -> None:
    bench = started()
    await answer(bench)
    bench.log.by_itself = False
    future = bench.ask(beat("b"), 1)
    await asyncio.sleep(0)
    bench.log.fail()
    assert (await future).response.error_code == E.NOT_COORDINATOR
    bench.log.by_itself = True
    await until(lambda: bench.active)
    assert group_of(bench).members.keys() == {"a"}
    bench.coordinator.timers.clear()


async def test_while_loading_nothing_is_answered() -> None:
    bench = Bench(group_streams_initial_rebalance_delay_ms=0)
    response = (await bench.ask(beat(), 1)).response
    assert response.error_code in (E.COORDINATOR_LOAD_IN_PROGRESS, E.NOT_COORDINATOR)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_target_of_a_large_group_is_computed_after_the_answer(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = started(400)
    if fails:
        monkeypatch.setattr("kafkawire.groups.streams.target.assign_sticky", None)
    first = await answer(bench)
    assert first.active_tasks == []
    assert first.member_epoch == 1
    await until(lambda: not group_of(bench).computing)
    if fails:
        assert group_of(bench).state is StreamsState.ASSIGNING
        monkeypatch.undo()
        await answer(bench, "a", 1)
        await until(lambda: not group_of(bench).computing)
    found = await answer(bench, "a", 1)
    assert len(found.active_tasks[0].partitions) == 400
    assert group_of(bench).state is StreamsState.STABLE
    bench.coordinator.timers.clear()


async def test_the_first_assignment_is_computed_by_a_timer() -> None:
    bench = started(group_streams_initial_rebalance_delay_ms=1)
    assert [each.status_code for each in (await answer(bench)).status] == [5]
    bench.env.clock.ms += 1_000  # type: ignore[attr-defined]
    await until(lambda: not group_of(bench).delayed)
    assert len((await answer(bench, "a", 1)).active_tasks[0].partitions) == 2
    bench.coordinator.timers.clear()


async def test_commits_are_checked() -> None:
    bench = started()
    epoch = (await answer(bench)).member_epoch
    request: OffsetCommitRequest = commit_of({("t", 0): 5}, generation=epoch, member="a")
    found = await bench.now(request, 9)
    assert found.topics[0].partitions[0].error_code == E.NONE
    assert bench.coordinator.shard.offsets.committed_offsets("g")["t"][0].offset == 5
    bench.coordinator.timers.clear()
