"""Exceptions in a coordinator: every client gets an error and no work stops permanently."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination import coordinator as coordination
from kafkawire.groups import coordinator as groups
from kafkawire.groups.classic.group import ClassicGroup
from kafkawire.groups.model.records import Offset
from kafkawire.groups.offsets import INT64_MAX
from kafkawire.groups.shard import Shard
from kafkawire.messages.list_groups import ListGroupsRequest
from tests.groups.test_coordinator import beat, join, stable_pair
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import Bench
from tests.kit.waiting import ticks, until


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coordination, groups):
        monkeypatch.setattr(module, "DEFECT_RETRY_MS", 1)
        monkeypatch.setattr(module, "RETRY_MS", 1)


def broken(*_: object) -> Any:
    raise RuntimeError("a defect")


@pytest.mark.parametrize("retention_ms", [INT64_MAX, INT64_MAX - 1, -(1 << 63), -2, 0])
async def test_any_retention_time_of_commit_is_stored(retention_ms: int) -> None:
    bench = Bench().begin()
    request = commit_of({("t", 0): 1}, retention_time_ms=retention_ms)
    assert (await bench.now(request, 4)).topics[0].partitions[0].error_code == 0
    stored = bench.coordinator.shard.offsets.committed_offsets("g")["t"][0]
    assert stored.expires_at_ms <= INT64_MAX
    assert (retention_ms < 0) == (stored.expires_at_ms < bench.env.clock.now_ms())
    bench.coordinator.timers.clear()


@pytest.mark.parametrize("field", ["offset", "leader_epoch", "committed_at_ms"])
async def test_unencodable_record_fails_alone(
    field: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench().begin()
    values = {"offset": 1, "leader_epoch": 1, "committed_at_ms": 1, field: 1 << 64}

    def made(offset: int, *others: Any) -> Offset:
        return Offset(metadata="", **values) if offset == 13 else Offset(offset, *others)

    monkeypatch.setattr("kafkawire.groups.offsets.Offset", made)
    good = bench.ask(commit_of({("t", 0): 5}))
    bad = bench.ask(commit_of({("t", 1): 13}, group="other"))
    last = bench.ask(commit_of({("t", 2): 7}))
    await ticks()
    bench.log.commit()
    codes = [f.result().topics[0].partitions[0].error_code for f in (good, bad, last)]
    assert codes == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]
    assert "1 records of groups other" in caplog.text
    assert not bench.coordinator._waiting
    bench.coordinator.timers.clear()


async def test_exception_while_applying_reloads_committed_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    parked = bench.ask(join("c-1"))
    group, apply = bench.coordinator.shard.groups["g"], ClassicGroup.apply

    def broken_once_decided(self: ClassicGroup, step: Any) -> None:
        if self is group:
            broken()
        apply(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(ClassicGroup, "apply", broken_once_decided)
        asked = bench.ask(join("c-2", group_instance_id=None))
    assert asked.result().error_code == ErrorCode.NOT_COORDINATOR
    assert parked.result().error_code == ErrorCode.NOT_COORDINATOR
    await until(lambda: bench.active)
    assert bench.ask(beat(leader, 1)).result().error_code == 0
    assert not bench.coordinator._waiting
    bench.coordinator.timers.clear()


async def test_exception_while_applying_answers_all_commits_of_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.groups.offsets.Offsets.apply", broken)
        asked = [bench.ask(commit_of({("t", n): 5})) for n in range(3)]
        await ticks()
        codes = [f.result().topics[0].partitions[0].error_code for f in asked]
    assert codes == [ErrorCode.NOT_COORDINATOR] * 3
    bench.log.commit()
    await until(lambda: bench.active)
    assert bench.coordinator.shard.offsets.committed_offsets("g")["t"][2].offset == 5
    bench.coordinator.timers.clear()


async def test_deleted_topic_is_forgotten_after_exception_while_applying(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 5}))
    with monkeypatch.context() as patched:
        patched.setattr(Shard, "apply", broken)
        bench.coordinator.forget_topic("t")
    assert "t" in bench.coordinator.owed
    bench.log.fail()  # the tombstones are lost
    await until(lambda: bench.active)
    assert "t" in bench.coordinator.owed
    bench.log.commit()
    assert not bench.coordinator.owed
    assert not bench.coordinator.shard.topics()


async def test_exception_while_deciding_fails_only_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.groups.shard.list_groups", broken)
        listed = bench.ask(ListGroupsRequest())
    assert listed.result().error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert not bench.coordinator._waiting
    assert bench.ask(beat(leader, 1)).done()
    bench.coordinator.timers.clear()


async def test_timer_fires_again_after_failed_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().begin()
    await stable_pair(bench)
    coordinator = bench.coordinator
    coordinator.timers.clear()
    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.groups.shard.decide_timer", broken)
        coordinator._timer_due("g", "session c-1")
    assert len(coordinator.timers) == 1
    coordinator.timers.clear()


async def test_expiry_continues_after_group_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().begin()
    for group in ("a", "b"):
        await bench.now(commit_of({("t", 0): 1}, group=group))
    coordinator = bench.coordinator
    coordinator.timers.clear()
    seen: list[str] = []

    def decide(_: Shard, group_id: str, now_ms: int) -> Any:
        seen.append(group_id)
        raise RuntimeError("a defect")

    monkeypatch.setattr(Shard, "decide_expiry", decide)
    await coordinator._expire(coordinator._life)
    assert seen == ["a", "b"]
    assert len(coordinator.timers) == 1
    coordinator.timers.clear()


async def test_failed_load_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 5}))
    bench.coordinator.timers.clear()
    with monkeypatch.context() as patched:
        patched.setattr("kafkawire.coordination.loader.PartitionLoader.load", broken)
        bench.coordinator = bench.make()
        bench.coordinator.start()
        await until(lambda: "loading" in caplog.text)
        assert not bench.active
    await until(lambda: bench.active)
    assert bench.coordinator.shard.offsets.committed_offsets("g")["t"][0].offset == 5
    bench.coordinator.timers.clear()


async def test_unparsable_batch_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 5}))
    bad = build([(b"k" * 50, b"v" * 50)], timestamp_ms=1)
    bad[61:70] = b"\xff" * 9
    bench.partition.append(memoryview(bad), 1)
    await bench.now(commit_of({("t", 1): 6}))
    bench.coordinator.timers.clear()
    await bench.reload()
    assert {
        n: o.offset for n, o in bench.coordinator.shard.offsets.committed_offsets("g")["t"].items()
    } == {
        0: 5,
        1: 6,
    }
    assert "skipping the rest of a batch of __consumer_offsets, offsets 1-1" in caplog.text
    bench.coordinator.timers.clear()
