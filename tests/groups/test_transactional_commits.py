"""The coordinator's half of transactions: batches, markers, answers, loading and snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from kafkawire.codec.batches import (
    CONTROL,
    PRODUCER_EPOCH_AT,
    TRANSACTIONAL,
    iter_batches,
    read_head,
)
from kafkawire.codec.control import COMMIT, read_marker
from kafkawire.codec.errors import ErrorCode
from kafkawire.coordination import snapshot
from kafkawire.groups.load import GroupLoader
from kafkawire.groups.model.request import VerifiedCommit
from kafkawire.groups.snapshot import group_snapshot
from tests.kit.groups.desk import commit_of, offset_delete
from tests.kit.groups.log import Bench
from tests.kit.groups.model import known
from tests.kit.groups.transactions import (
    PID,
    codes,
    ending,
    stable_codes,
    txn_commit,
    verified,
)
from tests.kit.waiting import ticks, until

PLACE = group_snapshot("/groups", b"t" * 16, 0)
A, B = 4001, 4002
T = ("t", 0)


def offsets(bench: Bench, group: str = "g") -> dict[tuple[str, int], int]:
    found = bench.coordinator.shard.offsets.committed_offsets(group)
    return {(t, p): at.offset for t, partitions in found.items() for p, at in partitions.items()}


# -- appending --------------------------------------------------------------------------------


async def test_offsets_are_one_transactional_batch_without_sequence() -> None:
    bench = Bench().begin()
    bench.ask(commit_of({("u", 0): 1}))  # flushed first: it is not part of the transaction
    guard: Any = object()
    request = VerifiedCommit(txn_commit({T: 5, ("t", 1): 6}, epoch=3), guard)
    assert codes(await bench.now(request)) == [0, 0]
    plain, batch = bench.partition.batches
    assert not read_head(plain).attributes & TRANSACTIONAL
    head = read_head(batch)
    assert head.attributes == TRANSACTIONAL
    assert (head.producer_id, head.producer_epoch, head.base_sequence) == (PID, 3, -1)
    assert (head.base_offset, head.count) == (1, 2)
    assert bench.partition.guards == [guard]
    assert bench.coordinator.appender.next_offset == 3


async def test_marker_is_answered_when_committed_and_materialized() -> None:
    bench = Bench().begin()
    await bench.now(verified({T: 5}))
    written = bench.ask(ending(commit=True, epoch=4))
    await ticks()
    assert not written.done()
    bench.log.commit()
    await ticks()
    assert written.result().error_code == 0
    assert offsets(bench) == {T: 5}
    assert await stable_codes(bench, "g", T) == [0]
    batch = bench.partition.batches[-1]
    ((at, head),) = iter_batches(batch)
    assert (len(batch), head.attributes) == (78, TRANSACTIONAL | CONTROL)
    assert read_marker(batch, at, head).kind == COMMIT
    assert batch[PRODUCER_EPOCH_AT : PRODUCER_EPOCH_AT + 2] == b"\0\4"
    assert bench.coordinator.appender.next_offset == 2


async def test_marker_without_pending_offsets_is_written() -> None:
    bench = Bench().begin()
    assert (await bench.now(ending(commit=False))).error_code == 0
    assert len(bench.partition.batches) == 1
    await bench.reload()
    assert bench.coordinator.appender.next_offset == 1


@pytest.mark.parametrize(
    ("refused", "code", "marker_code"),
    [
        (ErrorCode.INVALID_PRODUCER_EPOCH, 47, 47),
        (ErrorCode.INVALID_TXN_STATE, 48, 48),
        (ErrorCode.TRANSACTION_COORDINATOR_FENCED, 52, 52),
        (ErrorCode.KAFKA_STORAGE_ERROR, 16, 6),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 16, 6),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 15, 6),
        (ErrorCode.MESSAGE_TOO_LARGE, -1, -1),
    ],
)
async def test_refused_append_changes_nothing(
    refused: ErrorCode, code: int, marker_code: int
) -> None:
    bench = Bench().begin()
    await bench.now(verified({T: 5}))
    before = known(bench.coordinator.shard)
    bench.partition.refuse = refused
    assert codes(await bench.now(verified({T: 6, ("t", 1): 7}))) == [code, code]
    assert (await bench.now(ending(commit=True))).error_code == marker_code
    assert known(bench.coordinator.shard) == before
    assert bench.coordinator.appender.next_offset == 1


async def test_loading_coordinator_refuses_markers_as_another_leader() -> None:
    bench = Bench()
    assert (await bench.now(ending(commit=True))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert codes(await bench.now(verified({T: 5}))) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


async def test_marker_lost_with_its_write_batch_is_not_acknowledged() -> None:
    bench = Bench().begin()
    await bench.now(verified({T: 5}))
    written = bench.ask(ending(commit=True))
    await ticks()
    assert offsets(bench) == {T: 5}
    bench.log.fail()
    assert written.result().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await until(lambda: bench.active)
    assert offsets(bench) == {}
    assert await stable_codes(bench, "g", T) == [88]
    assert (await bench.now(ending(commit=True))).error_code == 0
    assert offsets(bench) == {T: 5}
    bench.coordinator.timers.clear()


async def test_commit_of_one_iteration_keeps_its_place() -> None:
    bench = Bench().begin()
    asked = [
        bench.ask(commit_of({T: 1})),
        bench.ask(verified({T: 2})),
        bench.ask(commit_of({T: 3})),
        bench.ask(ending(commit=True)),
        bench.ask(verified({T: 4})),
        bench.ask(ending(commit=True)),
    ]
    await ticks()
    bench.log.commit()
    await ticks()
    assert all(one.done() for one in asked)
    assert offsets(bench) == {T: 4}
    state = known(bench.coordinator.shard)
    await bench.reload()
    assert known(bench.coordinator.shard) == state


# -- crash point 12, loading and snapshots -------------------------------------------------------

STEPS = [
    commit_of({T: 1, ("t", 1): 1}),
    verified({T: 10, ("t", 2): 11}, producer=A),
    verified({T: 20}, producer=B),
    verified({("u", 0): 5}, producer=B, group="h"),
    commit_of({("t", 1): 2}),
    verified({("t", 1): 12}, producer=A),
    commit_of({("t", 1): 3}),
    offset_delete(("t", 2)),
    ending(commit=True, producer=B),
    verified({("t", 1): 30}, producer=B),
    ending(commit=True, producer=A),
    ending(commit=False, producer=B),
    verified({("u", 1): 6}, producer=B, group="x"),
]


@pytest.mark.parametrize("snapshot_at", [None, *range(len(STEPS))])
async def test_reload_after_every_step_gives_same_state(snapshot_at: int | None) -> None:
    bench = Bench().begin()
    for number, step in enumerate(STEPS):
        await bench.now(step)
        if number == snapshot_at:
            await bench.coordinator._store(0)
            assert PLACE.path in bench.env.fs.files  # type: ignore[attr-defined]
        state = known(bench.coordinator.shard)
        await bench.reload()
        assert known(bench.coordinator.shard) == state, f"after step {number}"
    assert offsets(bench) == {T: 20, ("t", 1): 3}
    assert offsets(bench, "h") == {("u", 0): 5}
    assert await stable_codes(bench, "x", ("u", 1)) == [88]
    bench.coordinator.timers.clear()


async def test_marker_committed_but_not_materialized_is_replayed() -> None:
    """Crash point 12: killed after the write, before the answer. The coordinator sends the marker
    again."""
    bench = Bench().begin()
    await bench.now(verified({T: 5}))
    bench.partition.append_marker(ending(commit=True).marker, 1)
    bench.log.commit()
    assert offsets(bench) == {}
    await bench.reload()
    assert offsets(bench) == {T: 5}
    await bench.now(commit_of({T: 9}))
    assert (await bench.now(ending(commit=True))).error_code == 0
    assert offsets(bench) == {T: 9}
    bench.coordinator.timers.clear()


async def test_snapshots_have_the_offsets_that_are_pending() -> None:
    bench = Bench().begin()
    pending = []
    for step in (commit_of({T: 1}), verified({T: 2}), ending(commit=True)):
        await bench.now(step)
        await bench.coordinator._store(0)
        found = snapshot.read(bench.env.fs, PLACE)
        assert found is not None
        pending.append(len(found.pending))
    assert pending == [0, 1, 0]


async def test_loading_ignores_other_control_batches() -> None:
    bench = Bench().begin()
    await bench.now(verified({T: 5}))
    bench.partition.append_marker(ending(commit=True).marker, 1)
    kind_at = bench.partition.batches[-1].index(b"\0\0\0\1", 61)
    bench.partition.batches[-1][kind_at + 3] = 7  # of a newer Kafka
    bench.log.commit()
    partition: Any = bench.partition
    log: Any = bench.log
    loaded = GroupLoader(bench.env, bench.settings, partition, log, PLACE)
    await loaded.load()
    assert len(loaded.shard.offsets.pending) == 1
    assert loaded.next_offset == 2


async def test_snapshot_from_before_a_marker_is_replaced_in_time() -> None:
    """Compaction removes the marker of a transaction that has no records left."""
    bench = Bench().begin()
    await bench.now(commit_of({T: 1}))
    await bench.now(verified({T: 5}))
    await bench.coordinator._store(0)
    await bench.now(ending(commit=False))
    bench.env.clock.monotonic = lambda: 1e9  # type: ignore[method-assign]
    await bench.coordinator._expire(bench.coordinator._life)
    await ticks(20)
    await bench.now(commit_of({("t", 1): 1}))
    del bench.partition.batches[1:3]
    await bench.reload()
    assert await stable_codes(bench, "g", T) == [0]
    assert offsets(bench) == {T: 1, ("t", 1): 1}
    bench.coordinator.timers.clear()
