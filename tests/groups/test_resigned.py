"""A coordinator that resigns: it answers every client, and has no effect from that moment on.

Covers: kafkawire.groups.coordinator, kafkawire.coordination.coordinator.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination import coordinator as coordinator_module
from kafkawire.coordination.coordinator import CoordinatorPhase
from tests.groups.test_coordinator import beat, join, stable_pair
from tests.kit.groups.desk import commit_of
from tests.kit.groups.log import Bench, FakeFs
from tests.kit.groups.model import known
from tests.kit.waiting import ticks, until

NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


def files(bench: Bench) -> dict[str, bytearray]:
    assert isinstance(bench.env.fs, FakeFs)
    return bench.env.fs.files


async def silent(bench: Bench) -> None:
    """Check that nothing is appended or written any more, whatever happens."""
    appended, written = len(bench.partition.batches), dict(files(bench))
    for _ in range(3):
        bench.log.commit()
        await ticks(20)
    assert bench.coordinator.phase is CoordinatorPhase.RESIGNED
    assert len(bench.coordinator.timers) == 0
    assert not bench.coordinator._waiting
    assert len(bench.partition.batches) == appended
    assert files(bench) == written
    assert bench.ask(commit_of({("t", 0): 9})).result().topics[0].partitions[0].error_code == 16
    assert bench.ask(beat("c-1", 1)).result().error_code == NOT_COORDINATOR


async def test_a_parked_join_is_answered_and_its_timers_end() -> None:
    bench = Bench().begin()
    await stable_pair(bench)
    parked = bench.ask(join("c-1"))
    bench.log.commit()
    await ticks()
    assert not parked.done()
    bench.coordinator.resign()
    assert parked.result().error_code == NOT_COORDINATOR
    await silent(bench)


async def test_what_waits_for_a_commit_is_refused_although_the_commit_succeeds() -> None:
    bench = Bench().begin()
    stored = bench.ask(commit_of({("t", 0): 1}))
    await ticks()
    assert len(bench.partition.batches) == 1
    bench.coordinator.resign()
    bench.log.commit()
    assert stored.result().topics[0].partitions[0].error_code == NOT_COORDINATOR
    await silent(bench)


async def test_commits_of_this_iteration_are_not_appended() -> None:
    bench = Bench().begin()
    stored = bench.ask(commit_of({("t", 0): 1}))
    bench.coordinator.resign()
    assert stored.result().topics[0].partitions[0].error_code == NOT_COORDINATOR
    await silent(bench)
    assert not bench.partition.batches


async def test_a_write_that_fails_later_loads_nothing() -> None:
    bench = Bench().begin()
    bench.ask(commit_of({("t", 0): 1}))
    await ticks()
    bench.coordinator.resign()
    bench.log.fail()
    await silent(bench)


async def test_a_load_ends() -> None:
    bench = Bench().begin()
    await stable_pair(bench)
    bench.coordinator.resign()
    bench.coordinator = bench.make()
    bench.log.reads.clear()
    bench.coordinator.start()
    await ticks()
    assert bench.coordinator.phase is CoordinatorPhase.LOADING
    bench.coordinator.resign()
    bench.log.reads.set()
    await silent(bench)


async def test_the_retries_of_a_load_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_module, "RETRY_MS", 1)
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 1}))
    bench.coordinator.resign()
    tries: list[int] = []

    async def failing(plan: Any) -> Any:
        tries.append(1)
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the tier is gone")

    monkeypatch.setattr(bench.log, "read", failing)
    bench.coordinator = bench.make()
    bench.coordinator.start(gained=True)
    await until(lambda: len(tries) > 2)
    bench.coordinator.resign()
    seen = len(tries)
    await silent(bench)
    assert len(tries) == seen


async def test_a_snapshot_that_waits_for_its_commit_is_not_written() -> None:
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 1}))
    bench.ask(commit_of({("t", 0): 2}))
    await ticks()
    storing = bench.env.spawn(bench.coordinator._store(0), "store")
    await ticks()
    bench.coordinator.resign()
    bench.log.commit()
    await storing
    assert not files(bench)
    await silent(bench)


async def test_a_snapshot_that_is_being_encoded_is_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 1}))
    encode = bench.coordinator.capture()
    assert encode is not None

    async def resigned_meanwhile() -> Any:
        bench.coordinator.resign()
        return await encode()

    monkeypatch.setattr(bench.coordinator, "capture", lambda: resigned_meanwhile)
    await bench.coordinator._store(0)
    assert not files(bench)
    await silent(bench)


async def test_resigning_while_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 8)
    bench = Bench().begin()
    stored = bench.ask(commit_of({("t", 0): 1}))
    closing = bench.env.spawn(bench.coordinator.close(), "close")
    await ticks()
    bench.coordinator.resign()
    assert stored.result().topics[0].partitions[0].error_code == NOT_COORDINATOR
    bench.log.commit()
    await closing
    assert not files(bench)
    await silent(bench)


async def test_it_never_loads_again() -> None:
    bench = Bench().begin()
    bench.coordinator.resign()
    bench.coordinator.reload()
    bench.coordinator.start()
    await silent(bench)


async def test_another_coordinator_of_the_same_partition_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It loads what was committed, without a warning."""
    bench = Bench().begin()
    await stable_pair(bench)
    before = known(bench.coordinator.shard)
    first = bench.coordinator
    bench.ask(commit_of({("t", 0): 1}))
    first.resign()
    with caplog.at_level(logging.WARNING):
        await bench.reload()
    assert known(bench.coordinator.shard) == before
    assert not caplog.records
    bench.coordinator.timers.clear()
