"""Loading: a snapshot and the log after it, an old one, a damaged one, none at all."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from kafkawire.codec.batches import build
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.coordination import coordinator as coordinator_module
from kafkawire.coordination import snapshot
from kafkawire.groups.coordinator import SNAPSHOT_MAX_AGE_MS
from kafkawire.groups.load import GroupLoader
from kafkawire.groups.model.records import GroupRecord, OffsetRecord, decode_record
from kafkawire.groups.model.states import GroupState
from kafkawire.groups.shard import Shard
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.log.io.slices import Slices
from kafkawire.messages.delete_groups import DeleteGroupsRequest
from tests.groups.test_coordinator import beat, join, stable_pair, sync
from tests.kit.groups.desk import commit_of, offset_delete
from tests.kit.groups.log import Bench, FakeClock, FakeFs, fake_env
from tests.kit.groups.model import known
from tests.kit.waiting import ticks, until

PLACE = group_snapshot("/groups", b"t" * 16, 0)


async def busy(seed: int = 1) -> Bench:
    """A coordinator with a history: groups, offsets, deletions."""
    bench = Bench().begin()
    leader, _ = await stable_pair(bench)
    dice = random.Random(seed)
    for n in range(200):
        await bench.now(commit_of({("t", dice.randrange(9)): n}, group=f"s{dice.randrange(7)}"))
        await bench.now(commit_of({("u", dice.randrange(9)): n}, generation=1, member=leader))
    bench.coordinator.forget_topic("nothing")
    return bench


async def test_state_is_loaded_from_log_alone() -> None:
    bench = await busy()
    before = known(bench.coordinator.shard)
    await bench.reload()
    assert known(bench.coordinator.shard) == before


async def test_restored_members_get_new_session() -> None:
    bench = await busy()
    assert isinstance(bench.env.clock, FakeClock)
    bench.env.clock.ms += 3_600_000
    await bench.reload()
    assert bench.ask(beat("c-1", 1)).result().error_code == 0
    assert len(bench.coordinator.timers) == 3
    bench.coordinator.timers.clear()


async def take_snapshot(bench: Bench) -> None:
    bench.log.commit()
    await bench.coordinator._store(0)
    assert PLACE.path in files(bench)


def files(bench: Bench) -> dict[str, bytearray]:
    assert isinstance(bench.env.fs, FakeFs)
    return bench.env.fs.files


async def test_state_is_loaded_from_snapshot_and_log_after_it() -> None:
    bench = await busy()
    await take_snapshot(bench)
    for n in range(5):
        await bench.now(commit_of({("t", n): 1000 + n}, group="late"))
    before = known(bench.coordinator.shard)
    covered = bench.partition.high_watermark - 5
    del bench.partition.batches[:-5]  # if the log were read from the start, this would be missed
    await bench.reload()
    assert known(bench.coordinator.shard) == before
    assert bench.coordinator.appender.next_offset == covered + 5


class Interrupted(Slices):
    """Calls `change` at each point where a computation may be interrupted; counts them."""

    change: Callable[[], None] = staticmethod(lambda: None)
    count = 0

    async def give_way(self) -> None:
        self.count += 1
        self.change()
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(8))
async def test_changes_while_a_snapshot_is_encoded_are_loaded_again(seed: int) -> None:
    env = fake_env()
    interrupted = Interrupted(env.clock.monotonic)
    object.__setattr__(env, "slices", interrupted)
    bench = Bench(env).begin()
    leader, _ = await stable_pair(bench)
    dice = random.Random(seed)

    def change() -> None:
        group, partition = f"s{dice.randrange(9)}", ("tu"[dice.randrange(2)], dice.randrange(50))
        match dice.randrange(60):
            case 0:
                bench.ask(DeleteGroupsRequest([group]), 2)
            case 1:
                bench.coordinator.forget_topic(partition[0])
            case 2 | 3 | 4 | 5:
                bench.ask(offset_delete(partition), 0)
            case kind if kind < 20:
                bench.ask(commit_of({partition: dice.randrange(99)}, generation=1, member=leader))
            case _:
                bench.ask(commit_of({partition: dice.randrange(99)}, group=group))

    for _ in range(200):
        change()
    await ticks()
    bench.log.commit()
    interrupted.change = change
    storing = asyncio.ensure_future(bench.coordinator._store(0))
    while not storing.done():
        await ticks()
        bench.log.commit()
    interrupted.change = lambda: None
    stored = snapshot.read(env.fs, PLACE)
    assert stored is not None
    assert interrupted.count >= len(stored.pairs)  # not all of them at once
    assert stored.next_offset < bench.partition.high_watermark
    before = known(bench.coordinator.shard)
    batches = bench.partition.batches  # if the log were read from the start, these would be missed
    while int.from_bytes(batches[0][:8], "big") < stored.next_offset:
        del batches[0]
    await bench.reload()
    assert known(bench.coordinator.shard) == before
    bench.coordinator.timers.clear()


@pytest.mark.parametrize("harm", ["gone", "cut", "bit", "empty", "magic", "newer", "topic"])
async def test_unusable_snapshot_is_ignored(harm: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = await busy()
    await take_snapshot(bench)
    await bench.now(commit_of({("t", 1): 77}, group="late"))
    before = known(bench.coordinator.shard)
    data = files(bench)[PLACE.path]
    if harm == "gone":
        del files(bench)[PLACE.path]
    elif harm == "cut":
        del data[len(data) // 2 :]
    elif harm == "bit":
        data[len(data) // 2] ^= 4
    elif harm == "empty":
        data.clear()
    elif harm == "magic":
        data[0] ^= 1
    elif harm == "newer":
        data[9] = 4
    else:
        data[12] ^= 1
    with caplog.at_level(logging.WARNING):
        await bench.reload()
    assert known(bench.coordinator.shard) == before
    assert ("ignoring snapshot" in caplog.text) == (harm != "gone")


async def test_old_snapshot_gives_same_state() -> None:
    bench = await busy()
    await take_snapshot(bench)
    old = bytes(files(bench)[PLACE.path])
    for n in range(9):
        await bench.now(commit_of({("t", n): 5000 + n}, group="s1"))
    await take_snapshot(bench)
    assert bytes(files(bench)[PLACE.path]) != old
    before = known(bench.coordinator.shard)
    files(bench)[PLACE.path] = bytearray(old)
    await bench.reload()
    assert known(bench.coordinator.shard) == before


async def test_snapshot_ahead_of_log_is_removed() -> None:
    """As after a power cut under flush=os: what the snapshot has may be written differently."""
    bench = await busy()
    await take_snapshot(bench)
    bench.partition.batches = bench.partition.batches[:50]
    bench.partition.next_appended = bench.partition.high_watermark = sum(
        1 for _ in bench.partition.pairs()
    )
    await bench.reload()
    assert PLACE.path not in files(bench)
    files(bench).clear()
    ahead = known(bench.coordinator.shard)
    await bench.reload()
    assert known(bench.coordinator.shard) == ahead


async def test_snapshot_is_taken_after_enough_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 4000)
    bench = Bench().begin()
    for n in range(60):
        await bench.now(commit_of({("t", 0): n}))
    await ticks(20)
    assert PLACE.path in files(bench)
    assert bench.coordinator.appender.log_bytes < 4100
    found = snapshot.read(bench.env.fs, PLACE)
    assert found is not None
    records = [decode_record(*pair) for pair in found[1]]
    assert [type(record) for record in records] == [OffsetRecord]  # live records, not the log


async def test_old_snapshot_is_replaced_before_compaction_removes_tombstones() -> None:
    bench = Bench().begin()
    await bench.now(commit_of({("t", 0): 1, ("u", 0): 2}))
    await take_snapshot(bench)
    clock: Any = bench.env.clock
    started = clock.monotonic()
    bench.coordinator.forget_topic("t")
    bench.log.commit()
    old = bytes(files(bench)[PLACE.path])
    await bench.coordinator._expire(bench.coordinator._life)
    assert bytes(files(bench)[PLACE.path]) == old, "not before it is old"
    clock.monotonic = lambda: started + SNAPSHOT_MAX_AGE_MS / 1000 + 1
    await bench.coordinator._expire(bench.coordinator._life)
    await ticks(20)
    assert bytes(files(bench)[PLACE.path]) != old
    bench.partition.batches[1:-1] = []  # compaction removed the tombstone
    await bench.reload()
    assert bench.coordinator.shard.topics() == {"u"}
    bench.coordinator.timers.clear()


async def test_snapshot_has_committed_state_only() -> None:
    bench = Bench().begin()
    bench.ask(commit_of({("t", 0): 1}))
    await ticks()
    storing = bench.env.spawn(bench.coordinator._store(0), "store")
    await ticks()
    bench.log.fail()
    await storing
    assert not files(bench)


async def test_full_disk_keeps_previous_snapshot() -> None:
    bench = await busy()
    await take_snapshot(bench)
    old = bytes(files(bench)[PLACE.path])
    await bench.now(commit_of({("t", 1): 77}, group="late"))

    class Short:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def pwritev(self, buffers: Any, position: int) -> int:
            return int(self.inner.pwritev([buffers[0][:10]], position))

    opened: Any = bench.env.fs.open
    fs: Any = bench.env.fs
    fs.open = lambda path, create=False: Short(opened(path, create=create))
    await bench.coordinator._store(0)
    assert bytes(files(bench)[PLACE.path]) == old
    bench.coordinator.timers.clear()


async def test_close_writes_snapshot_if_log_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench().begin()
    bench.log.by_itself = True
    await bench.ask(commit_of({("t", 0): 1}))
    await bench.coordinator.close()
    assert not files(bench)
    bench = await busy()
    monkeypatch.setattr(coordinator_module, "SNAPSHOT_LOG_BYTES", 6400)
    bench.log.by_itself = True
    await bench.coordinator.close()
    assert PLACE.path in files(bench)


# -- what is in the log -----------------------------------------------------------------------


async def test_unknown_records_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    bench = await busy()
    before = known(bench.coordinator.shard)
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (b"\0\x12\0\1g", b"\0\0"),  # of a type that Kafka does not have
        (b"\0\1\0\x63", b"\0\3"),  # a key cut off
        (b"\0\2\0\1g", b"\0\7"),  # a value of an unknown version
        (b"", None),
    ]
    bench.partition.append(memoryview(build(pairs, timestamp_ms=1)), 1)
    bench.log.commit()
    with caplog.at_level(logging.WARNING):
        await bench.reload()
    assert known(bench.coordinator.shard) == before
    assert caplog.text.count("skipping a record") == 3


async def test_unreadable_log_is_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_module, "RETRY_MS", 1)
    bench = await busy()
    read, tries = bench.log.read, []

    async def faulty(plan: Any) -> Any:
        tries.append(plan)
        if len(tries) in (1, 3, 4):
            raise OSError("no such disk")
        if len(tries) == 2:
            return []  # no bytes although there are records
        return await read(plan)

    monkeypatch.setattr(bench.log, "read", faulty)
    await bench.reload()
    assert len(tries) >= 5
    assert caplog.text.count("loading groups from") == 1, "an hour of it must not fill the log"
    bench.coordinator.timers.clear()


async def test_load_stops_at_last_committed_offset() -> None:
    bench = await busy()
    before = known(bench.coordinator.shard)
    bench.partition.append(memoryview(build([(b"\0\2\0\1z", None)], timestamp_ms=1)), 1)
    bench.ask(commit_of({("t", 0): 1}, group="new"))
    await ticks()
    bench.log.fail()
    await until(lambda: bench.active)
    assert known(bench.coordinator.shard) == before


async def test_offsets_of_topics_deleted_during_load_are_dropped() -> None:
    bench = await busy()
    del bench.topics["u"]
    await bench.reload()
    assert bench.coordinator.shard.topics() == {"t"}
    bench.log.commit()
    bench.coordinator.timers.clear()
    fresh = bench.make()  # deleted and created again while it loads
    fresh.forget_topic("t")
    loading_task = bench.env.spawn(fresh.load(), "load")
    await loading_task
    assert fresh.shard.topics() == set()
    assert set(fresh.owed) == {"t"}
    bench.log.commit()
    assert not fresh.owed
    fresh.timers.clear()


async def test_failed_deletion_is_repeated_after_next_load() -> None:
    bench = await busy()
    bench.coordinator.forget_topic("t")
    bench.coordinator.forget_topic("t")
    bench.log.fail()
    await until(lambda: bench.active)
    assert bench.coordinator.shard.topics() == {"u"}
    bench.log.commit()
    assert not bench.coordinator.owed
    bench.coordinator.timers.clear()


async def test_rebalancing_group_is_restored_to_previous_generation() -> None:
    bench = await busy()
    bench.ask(join("c-1"))
    assert bench.coordinator.shard.groups["g"].state is GroupState.PREPARING
    await bench.reload()
    group = bench.coordinator.shard.groups["g"]
    assert (group.state, group.generation, len(group.members)) == (GroupState.STABLE, 1, 2)
    rejoin = [bench.ask(join("c-1")), bench.ask(join("c-2"))]
    assert [(await f).generation_id for f in rejoin] == [2, 2]
    assert bench.ask(sync("c-2", 1)).result().error_code == ErrorCode.ILLEGAL_GENERATION
    bench.coordinator.timers.clear()


async def test_snapshot_contains_live_records() -> None:
    bench = await busy()
    shard = Shard(bench.settings)
    for record in bench.coordinator.shard.records():
        assert isinstance(record, GroupRecord | OffsetRecord)
        shard.apply(record)
    assert known(shard) == known(bench.coordinator.shard)
    bench.coordinator.timers.clear()


async def test_load_succeeds_when_log_refuses_writes() -> None:
    bench = await busy()
    before = known(bench.coordinator.shard)

    async def refused() -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no more writes")

    bench.log.wait_until_committed = refused  # type: ignore[method-assign]
    partition: Any = bench.partition
    log: Any = bench.log
    loaded = GroupLoader(bench.env, bench.settings, partition, log, PLACE)
    await loaded.load()
    assert known(loaded.shard) == before
    bench.coordinator.timers.clear()
