"""The order of append, apply, commit and response; behaviour when one of them fails.

Covers: kafkawire.coordination.appender.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.batches import read_head
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.decision import session
from kafkawire.groups.model.records import GroupRecord, OffsetRecord, decode_record
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.timers import Timers
from kafkawire.messages.heartbeat import HeartbeatRequest
from kafkawire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kafkawire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kafkawire.messages.list_groups import ListGroupsRequest
from kafkawire.messages.offset_fetch import OffsetFetchRequestGroup
from kafkawire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.kit import simloop
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import Bench, FakeClock, fake_env
from tests.kit.waiting import ticks, until

FETCH = OffsetFetchRequestGroup(group_id="g", topics=None)


def join(member: str = "", **more: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        member_id=member,
        session_timeout_ms=6000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")],
        **more,
    )


def sync(member: str, generation: int, *assigned: str) -> SyncGroupRequest:
    assignments = [SyncGroupRequestAssignment(member_id=m, assignment=m.encode()) for m in assigned]
    return SyncGroupRequest(
        group_id="g", member_id=member, generation_id=generation, assignments=assignments
    )


def beat(member: str, generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", member_id=member, generation_id=generation)


async def stable_pair(bench: Bench) -> tuple[str, str]:
    """Members c-1 (leader) and c-2, generation 1, everything committed and answered."""
    one = bench.ask(join(), 3, "1")
    two = bench.ask(join(), 3, "2")
    bench.log.commit()
    bench.coordinator.timers.clear()
    bench.coordinator._timer_due("g", "join")
    bench.coordinator._timer_due("g", "join")
    assert [(await f).generation_id for f in (one, two)] == [1, 1]
    follower = bench.ask(sync("c-2", 1))
    leader = bench.ask(sync("c-1", 1, "c-1", "c-2"))
    bench.log.commit()
    assert [(await f).assignment for f in (leader, follower)] == [b"c-1", b"c-2"]
    return "c-1", "c-2"


async def test_response_is_sent_after_commit() -> None:
    bench = Bench().begin()
    answer = bench.ask(commit_of({("t", 0): 5}))
    await ticks()
    assert len(bench.partition.batches) == 1
    assert not answer.done()
    bench.log.commit()
    assert answer.result().topics[0].partitions[0].error_code == 0


async def test_applied_change_is_visible_but_not_reported_before_commit() -> None:
    bench = Bench().begin()
    bench.ask(commit_of({("t", 0): 5}))
    read = bench.ask(FETCH)  # in the same iteration: the commit is decided first
    assert bench.coordinator.shard.offsets.committed_offsets("g")["t"][0].offset == 5
    await ticks()
    assert not read.done()
    bench.log.commit()
    assert read.result().topics[0].partitions[0].committed_offset == 5


async def test_heartbeat_is_answered_at_once_when_nothing_is_pending() -> None:
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    beats = bench.ask(beat(leader, 1))
    assert beats.done()
    bench.ask(commit_of({("t", 0): 5}, generation=1, member=leader))
    await ticks()
    later = bench.ask(beat(leader, 1))
    assert not later.done()
    bench.log.commit()
    assert later.result().error_code == 0


def test_heartbeat_on_fast_path_extends_session() -> None:
    """In virtual time: on a real loop the session may expire while the machine is busy."""
    simloop.run(simloop.SimLoop(), _move_the_session())


async def _move_the_session() -> None:
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    coordinator = bench.coordinator
    coordinator.timers.set("g", session(leader), 50)
    await asyncio.sleep(0.03)
    assert coordinator.heartbeat(beat(leader, 1)) is ErrorCode.NONE
    assert coordinator.heartbeat(beat(leader, 2)) is ErrorCode.ILLEGAL_GENERATION
    await asyncio.sleep(0.05)
    assert leader in coordinator.shard.groups["g"].members
    bench.ask(commit_of({("t", 0): 5}, generation=1, member=leader))
    await ticks()
    assert coordinator.heartbeat(beat(leader, 1)) is None  # the commit is decided before it


async def test_commits_of_one_iteration_share_a_batch() -> None:
    bench = Bench().begin()
    answers = [bench.ask(commit_of({("t", n): n}, group=f"g{n}")) for n in range(5)]
    await ticks()
    (batch,) = bench.partition.batches
    assert read_head(batch).count == 5
    bench.log.commit()
    assert all(answer.done() for answer in answers)
    assert set(bench.coordinator.shard.groups) == {f"g{n}" for n in range(5)}


async def test_oversized_commit_does_not_fail_others() -> None:
    bench = Bench(offset_metadata_max_bytes=10_000).begin()
    bench.partition.config.max_message_bytes = 1000
    small = bench.ask(commit_of({("t", 0): 1}))
    large = bench.ask(commit_of({("t", 1): 1}, metadata="x" * 5000))
    refused = bench.ask(commit_of({("t", 2): 1}, generation=7, member="m"))
    assert refused.done()  # decided without the log
    await ticks()
    bench.log.commit()
    codes = [f.result().topics[0].partitions[0].error_code for f in (small, large)]
    assert codes == [0, ErrorCode.UNKNOWN_SERVER_ERROR]


async def test_refused_append_changes_nothing() -> None:
    bench = Bench().begin()
    leader, follower = await stable_pair(bench)
    bench.partition.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    commit = bench.ask(commit_of({("t", 0): 5}, generation=1, member=leader))
    await ticks()
    assert commit.result().topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert not bench.coordinator.shard.offsets.by_group
    static = bench.ask(join(group_instance_id="i"), 5, "3")  # parks: no record is needed yet
    assert not static.done()
    leave = LeaveGroupRequest(
        group_id="g", members=[MemberIdentity(member_id=m) for m in (leader, follower, "c-i")]
    )
    assert bench.coordinator.shard.groups["g"].state is GroupState.PREPARING
    assert not bench.ask(leave).result().error_code  # one member is left: no record yet
    assert list(bench.coordinator.shard.groups["g"].members) == ["i-3"]


async def test_refused_append_of_leader_sync_leaves_followers_parked() -> None:
    bench = Bench().begin()
    await stable_pair(bench)
    rejoined = [bench.ask(join("c-1")), bench.ask(join("c-2"))]
    assert [(await f).generation_id for f in rejoined] == [2, 2]
    follower = bench.ask(sync("c-2", 2))
    bench.partition.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    leader = bench.ask(sync("c-1", 2, "c-1", "c-2"))
    assert leader.result().error_code == ErrorCode.NOT_COORDINATOR
    assert not follower.done()
    bench.partition.refuse = None
    again = bench.ask(sync("c-1", 2, "c-1", "c-2"))
    bench.log.commit()
    assert [f.result().assignment for f in (again, follower)] == [b"c-1", b"c-2"]


async def test_failed_commit_unloads_and_reloads_partition() -> None:
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    kept = await bench.now(commit_of({("t", 0): 5}, generation=1, member=leader))
    assert kept.topics[0].partitions[0].error_code == 0
    parked = bench.ask(join("c-2", reason="x"))  # unchanged follower: answered
    assert parked.done()
    parked = bench.ask(join("c-1"))
    assert not parked.done()
    lost = bench.ask(commit_of({("t", 0): 6}, generation=1, member="c-2"))
    await ticks()
    read = bench.ask(FETCH)
    bench.log.fail()
    assert lost.result().topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert read.result().error_code == ErrorCode.NOT_COORDINATOR
    assert parked.result().error_code == ErrorCode.NOT_COORDINATOR
    assert not bench.active
    assert bench.ask(FETCH).result().error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.ask(beat(leader, 1)).result().error_code == 0  # as Kafka: blindly
    await until(lambda: bench.active)
    found = (await bench.now(FETCH)).topics[0].partitions[0]
    assert found.committed_offset == 5
    group = bench.coordinator.shard.groups["g"]
    assert (group.state, group.generation) == (GroupState.STABLE, 1)
    assert bench.ask(beat(leader, 1)).result().error_code == 0
    assert len(bench.coordinator.timers) == 3  # two sessions, and expiry


async def test_timer_fires_again_after_refused_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    await stable_pair(bench)
    bench.coordinator.timers.clear()
    bench.partition.refuse = ErrorCode.KAFKA_STORAGE_ERROR
    leave = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="c-2")])
    assert bench.ask(leave).done()
    bench.coordinator.timers.clear()
    bench.coordinator._timer_due("g", "session:c-1")
    assert "c-1" in bench.coordinator.shard.groups["g"].members
    assert len(bench.coordinator.timers) == 1
    bench.partition.refuse = None
    bench.coordinator._timer_due("g", "session:c-1")
    assert bench.coordinator.shard.groups["g"].state is GroupState.EMPTY


async def test_large_decision_is_split_into_batches() -> None:
    bench = Bench().begin()
    for n in range(30):
        await bench.now(commit_of({("t", n): n}))
    before = len(bench.partition.batches)
    bench.partition.config.max_message_bytes = 300
    bench.coordinator.forget_topic("t")
    assert len(bench.partition.batches) - before > 3
    assert "g" not in bench.coordinator.shard.groups
    bench.log.commit()
    await bench.reload()
    assert not bench.coordinator.shard.groups


async def test_expiry_runs_periodically() -> None:
    bench = Bench(offsets_retention_check_interval_ms=5).begin()
    await bench.now(commit_of({("t", 0): 5}))
    assert isinstance(bench.env.clock, FakeClock)
    bench.env.clock.ms += 8 * 86_400_000
    bench.log.by_itself = True
    # The timer has fired and is set again; it may fire any number of times while this waits.
    await until(lambda: not bench.coordinator.shard.groups and len(bench.coordinator.timers) == 1)
    kinds = [decode_record(*pair) for pair in bench.partition.pairs()[-2:]]
    assert kinds == [OffsetRecord("g", "t", 0, None), GroupRecord("g", None)]
    bench.coordinator.timers.clear()


async def test_close_answers_parked_requests() -> None:
    bench = Bench().begin()
    bench.log.by_itself = True
    parked = bench.ask(join(), 3)
    commit = bench.ask(commit_of({("t", 0): 5}, group="h"))
    await bench.coordinator.close()
    assert commit.result().topics[0].partitions[0].error_code == 0
    assert parked.result().error_code == ErrorCode.NOT_COORDINATOR
    assert bench.ask(FETCH).result().error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(bench.coordinator.timers) == 0
    await bench.coordinator.close()


async def test_disconnected_caller_is_ignored() -> None:
    bench = Bench().begin()
    parked = bench.ask(join(), 3)
    parked.cancel()
    bench.log.commit()
    bench.coordinator._timer_due("g", "join")
    assert bench.coordinator.shard.groups["g"].state is GroupState.COMPLETING
    bench.coordinator.timers.clear()


async def test_list_groups_waits_for_commit_of_listed_groups() -> None:
    bench = Bench().begin()
    bench.ask(commit_of({("t", 0): 5}))
    listed = bench.ask(ListGroupsRequest())
    assert not listed.done()
    bench.log.commit()
    assert [group.group_id for group in listed.result().groups] == ["g"]


def test_moved_timers_reuse_loop_timer() -> None:
    """In virtual time: on a real loop under load timers may be due in the same iteration."""
    simloop.run(simloop.SimLoop(), _move_timers())


async def _move_timers() -> None:
    fired: list[tuple[str, str]] = []
    env = fake_env()  # whose monotonic clock is that of the running loop
    timers = Timers(env, lambda scope, key: fired.append((scope, key)))
    timers.set("g", "a", 5)
    timers.set("g", "b", 1)
    timers.set("g", "b", 20)  # later: the loop timer stays, and is checked again
    timers.set("g", "c", 1000)
    timers.set("g", "c", 2)  # earlier: a new loop timer
    timers.set("g", "d", 1)
    timers.cancel("g", "d")
    timers.cancel("g", "missing")
    await asyncio.sleep(0.015)
    assert fired == [("g", "c"), ("g", "a")]
    await asyncio.sleep(0.01)
    assert fired == [("g", "c"), ("g", "a"), ("g", "b")]
    assert len(timers) == 0
    timers.set("g", "a", 0)
    timers.clear()
    await asyncio.sleep(0.005)
    assert len(fired) == 3


async def test_close_while_loading_stops_load(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 5}))
    bench.coordinator.timers.clear()
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(bench.log, "read", lambda plan: never)
    bench.coordinator = bench.make()
    bench.coordinator.start()
    await ticks()
    await bench.coordinator.close()
    await ticks()
    assert never.cancelled()
    assert not bench.env.tasks
