"""Consumer groups driven by the coordinator: patterns, sessions, loading, failed appends.

Covers: kafkawire.groups.coordinator.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups import coordinator as coordinator_module
from kafkawire.groups.consumer import target as target_module
from kafkawire.groups.model.request import Client
from kafkawire.groups.timers import Timers
from kafkawire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.kit.groups.consumers import assigned, facts
from tests.kit.groups.log import Bench, id_of
from tests.kit.waiting import until


def beat(
    member: str, epoch: int = 0, topics: list[str] | None = None, pattern: str | None = None
) -> ConsumerGroupHeartbeatRequest:
    joins = epoch == 0
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        rebalance_timeout_ms=30_000 if joins else -1,
        subscribed_topic_names=topics,
        subscribed_topic_regex=pattern,
        topic_partitions=[] if joins else None,
    )


async def send(
    bench: Bench, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    answer = await bench.now(request, 1)
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


async def test_answers_wait_for_the_commit() -> None:
    bench = Bench().begin()
    future = bench.ask(beat("a", topics=["t"]), 1)
    await asyncio.sleep(0)
    assert not future.done()
    bench.log.commit()
    assert (await future).member_epoch == 1
    bench.coordinator.timers.clear()


async def test_a_pattern_is_matched_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "MATCH_SLICE", 2)
    bench = Bench().begin()
    bench.topics.update({f"v{n}": 1 for n in range(5)})
    bench.log.by_itself = True
    await send(bench, beat("a", pattern="v[0-9]"))
    group = bench.coordinator.shard.consumer_groups["g"]
    await until(lambda: not group.resolving)
    assert group.matched["v[0-9]"].topics == {f"v{n}" for n in range(5)}
    answer = await send(bench, beat("a", 1))
    found = assigned(answer)
    # The assignment interval has not passed.
    assert (found, group.epoch, group.target_epoch) == (None, 2, 1)
    bench.coordinator.timers.clear()


async def test_a_result_that_cannot_be_stored_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().begin()
    bench.log.by_itself = True
    await send(bench, beat("a", topics=["t"]))
    append, group = bench.partition.append, bench.coordinator.shard.consumer_groups["g"]

    def refuse(batch: memoryview, now_ms: int) -> None:
        if b"matched" in bytes(batch):
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        append(batch, now_ms)

    bench.topics["matched"] = 1
    monkeypatch.setattr(bench.partition, "append_records", refuse)
    await send(bench, beat("a", 1, pattern="match.."))
    await until(lambda: not group.resolving)
    assert not group.matched
    assert group.patterns == {"match..": 1}
    bench.coordinator.timers.clear()


async def test_a_member_is_removed_when_its_session_ends() -> None:
    bench = Bench().begin()
    bench.log.by_itself = True
    await send(bench, beat("a", topics=["t"]))
    group = bench.coordinator.shard.consumer_groups["g"]
    bench.coordinator._timer_due("g", "session:a")
    assert not group.members
    assert (await send(bench, beat("a", 1))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    bench.coordinator.timers.clear()


async def test_a_group_is_loaded_from_the_log() -> None:
    bench = Bench().begin()
    await send(bench, beat("a", topics=["t"]))
    await send(bench, beat("b", pattern="u"))
    before = facts(bench.coordinator.shard.consumer_groups["g"])
    await bench.reload()
    assert facts(bench.coordinator.shard.consumer_groups["g"]) == before
    assert len(bench.coordinator.timers) == 3  # two sessions, and the check for expired offsets
    bench.coordinator.timers.clear()


async def test_unchanged_heartbeat_is_answered_at_once_unless_changes_wait_for_a_commit() -> None:
    bench = Bench().begin()
    await send(bench, beat("a", topics=["t"]))
    client, coordinator = Client("c", "/h"), bench.coordinator
    answer = coordinator.consumer_heartbeat(client, beat("a", 1))
    assert answer is not None
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, 1, None)
    # Unknown members and old epochs are decided on, and so are other clients.
    assert coordinator.consumer_heartbeat(client, beat("b", 1)) is None
    assert coordinator.consumer_heartbeat(client, beat("a", 2)) is None
    assert coordinator.consumer_heartbeat(Client("d", "/h"), beat("a", 1)) is None
    joining = bench.ask(beat("b", topics=["u"]), 1)
    assert coordinator.consumer_heartbeat(client, beat("a", 1)) is None
    bench.log.commit()
    await joining
    # The epoch has changed: the member is to get it.
    assert coordinator.consumer_heartbeat(client, beat("a", 1)) is None
    coordinator.timers.clear()


async def test_unchanged_heartbeat_extends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().begin()
    await send(bench, beat("a", topics=["t"]))
    set_timers: list[tuple[str, str, int]] = []
    monkeypatch.setattr(Timers, "set", lambda self, *given: set_timers.append(given))
    assert bench.coordinator.consumer_heartbeat(Client("c", "/h"), beat("a", 1)) is not None
    assert set_timers == [("g", "session:a", 45_000)]
    bench.coordinator.timers.clear()


async def test_target_of_a_large_group_is_computed_and_stored_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target_module, "LARGE", 2)
    monkeypatch.setattr(coordinator_module, "TARGETS_AT_ONCE", 2)
    bench = Bench(group_consumer_assignment_interval_ms=0).begin()
    bench.topics["t"] = 10
    bench.log.by_itself = True
    for name in "abcde":
        await send(bench, beat(name, topics=["t"]))
    group = bench.coordinator.shard.consumer_groups["g"]
    # Some members joined during the computation for those before: it is repeated for the epoch.
    while group.target_epoch < group.epoch:
        await send(bench, beat("a", 1))
        await until(lambda: not group.computing)
    epoch = group.target_epoch
    assert epoch == 5
    assert sum(map(len, (found[id_of("t")] for found in group.target.values()))) == 10
    # What the log has is what the group has.
    await bench.reload()
    again = bench.coordinator.shard.consumer_groups["g"]
    assert (again.target, again.target_epoch) == (group.target, epoch)
    bench.coordinator.timers.clear()


async def test_computation_ends_with_its_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "LARGE", 0)
    bench = Bench(group_consumer_assignment_interval_ms=0).begin()
    bench.log.by_itself = True
    await send(bench, beat("a", topics=["t"]))
    group = bench.coordinator.shard.consumer_groups["g"]
    bench.ask(beat("b", topics=["t"]), 1)
    assert group.computing
    bench.coordinator._life += 1
    for _ in range(20):
        await asyncio.sleep(0)
    assert group.target_epoch == 1
    bench.coordinator.timers.clear()
