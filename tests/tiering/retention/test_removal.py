"""Deletion of objects when no reader needs them, not before: coverage, delays, failures.

Covers: kafkawire.tiering.retention.disable_topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kafkawire.log.partition.partition import Partition
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.keys import SEGMENTS, segment_key
from kafkawire.manifest.reader import read_manifest
from kafkawire.offsets.catalog.port import COPY_FINISHED, COPY_STARTED, DELETE_STARTED, ObjectRow
from kafkawire.tiering.retention import object_deletion as removal
from tests.kit.tier.checks import check_moment
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.world import TierProcess, TierWorld

Act = Callable[[TierProcess], Awaitable[None]]
LAG_MS = "5000"


def live(act: Act, world: TierWorld | None = None) -> TierWorld:
    """One life that runs `act` and ends cleanly."""
    world = world or TierWorld(3)
    life = TierProcess(world)

    async def main() -> None:
        await life.start()
        await act(life)
        await life.close()

    life.run(main)
    return world


def objects(world: TierWorld) -> set[str]:
    return {key for key in world.bucket.objects if key.startswith(SEGMENTS)}


def manifest(world: TierWorld) -> Manifest:
    return read_manifest(world.bucket.objects.__getitem__)


async def rows(life: TierProcess, *states: int) -> list[ObjectRow]:
    return await life.storage.objects(
        1, states or (COPY_STARTED, COPY_FINISHED, DELETE_STARTED), 99
    )


async def until(life: TierProcess, true: Callable[[], bool], seconds: float = 120) -> None:
    end = life.loop.now + seconds
    while not true():
        assert life.loop.now < end, "the condition is never true"
        await life.env.sleep(0.1)


async def produce(life: TierProcess, partition: Partition, count: int = 5) -> None:
    """Append some records, which are in the tier when this returns."""
    life.append(partition, count)
    await life.log.commit_log.wait_until_committed()
    await until(life, lambda: partition.commit_offset == partition.high_watermark)


def test_objects_of_deleted_records_are_removed_after_delay() -> None:
    async def act(life: TierProcess) -> None:
        (partition,) = await life.create("t", tiering_max_lag_ms=LAG_MS)
        await produce(life, partition)
        (key,) = objects(life.world)
        await partition.delete_records(5)
        await until(life, lambda: bool(manifest(life.world).deleted))
        notified_at = life.loop.now
        # The manifest first has the new log start and lists the object as deleted.
        row = manifest(life.world).get_partition(partition.number)
        assert row is not None
        assert row.log_start == 5
        assert key in objects(life.world)
        await until(life, lambda: not objects(life.world))
        assert (
            life.loop.now - notified_at >= 1
        )  # tier.delete.delay.ms is 2 s, noticed within a second
        await until(life, lambda: life.tiering.remover.removed == 1)
        assert await rows(life) == []

    live(act)


@pytest.mark.parametrize("by_ms", [-7_200_000, 7_200_000])
def test_delay_is_the_same_when_the_wall_clock_is_set(by_ms: int) -> None:
    world = TierWorld(1, tier_delete_delay_ms=20_000)

    async def act(life: TierProcess) -> None:
        (partition,) = await life.create("t", tiering_max_lag_ms=LAG_MS)
        await produce(life, partition)
        await until(life, lambda: bool(objects(world)))
        await partition.delete_records(5)
        await until(life, lambda: bool(manifest(world).deleted))
        since_s = life.loop.now
        world.set_clock(by_ms)
        await until(life, lambda: not objects(world))
        assert 19 < life.loop.now - since_s < 25

    live(act, world)


def test_object_is_kept_until_its_replacement_is_uploaded() -> None:
    """The cleaner rewrites a compacted partition; until that is uploaded, the bucket keeps the old
    objects."""

    async def act(life: TierProcess) -> None:
        (partition,) = await life.create(
            "t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01",
            tiering_max_lag_ms=LAG_MS,
        )  # fmt: skip
        for value in (b"1", b"2", b"3"):
            life.send(partition, [(b"key", value)] * 20)
            await life.log.commit_log.wait_until_committed()
        await until(life, lambda: partition.commit_offset == partition.high_watermark)
        before = objects(life.world)
        life.world.config.tier_paused = True
        life.tiering.broker_changed()
        generation = set(partition.segments.segment)
        committed = partition.commit_offset
        life.send(partition, [(b"key", b"4")] * 20)
        await life.log.commit_log.wait_until_committed()
        await until(
            life, lambda: generation.isdisjoint(partition.segments.segment), seconds=300
        )  # all of it was cleaned
        await life.env.sleep(60)
        assert before <= objects(life.world)
        there = manifest(life.world)
        assert not there.deleted
        spans = list(there.spans(partition.number))
        assert (spans[0][0], spans[-1][1]) == (0, committed)
        life.world.config.tier_paused = False
        life.tiering.broker_changed()
        await until(life, lambda: before.isdisjoint(objects(life.world)))
        spans = list(manifest(life.world).spans(partition.number))
        assert (spans[0][0], spans[-1][1]) == (0, partition.commit_offset)

    live(act)


def test_failed_uploads_leave_no_objects() -> None:
    """Responses are lost, so there are objects that no row has as finished."""

    async def act(life: TierProcess) -> None:
        (partition,) = await life.create("t", tiering_max_lag_ms=LAG_MS)
        await produce(life, partition)
        life.world.bucket.faults = StoreFaults(lost_rate=1.0, timeout_s=0.5)
        life.append(partition, 5)
        await life.log.commit_log.wait_until_committed()
        await until(life, lambda: len(objects(life.world)) >= 4)
        assert life.tiering.uploader.dispatcher.failures.total() >= 3
        life.world.bucket.faults = StoreFaults()
        await until(life, lambda: partition.commit_offset == 10)
        await until(life, lambda: len(objects(life.world)) == 2)
        finished = await rows(life)
        assert {row.state for row in finished} == {COPY_FINISHED}
        assert objects(life.world) == {segment_key(row.uuid) for row in finished}

    live(act)


def test_upload_interrupted_by_crash_is_restarted() -> None:
    world = TierWorld(3)
    first = TierProcess(world)

    async def half() -> None:
        await first.start()
        (partition,) = await first.create("t", tiering_max_lag_ms=LAG_MS)
        await produce(first, partition)
        first.append(partition, 5)
        await first.log.commit_log.wait_until_committed()
        done = asyncio.get_running_loop().create_future()
        hook = world.bucket.hook

        def watch(moment: str, kind: str, key: str) -> None:
            hook(moment, kind, key)
            if moment == "done" and kind == "put" and key.startswith(SEGMENTS) and not done.done():
                done.set_result(None)

        world.bucket.hook = watch
        await done
        first.die("kill")

    first.run(half)
    left = objects(world)
    assert len(left) == 2

    async def again(life: TierProcess) -> None:
        (started,) = await rows(life, DELETE_STARTED)
        (partition,) = await life.partitions()
        await until(life, lambda: partition.commit_offset == 10)
        await until(life, lambda: segment_key(started.uuid) not in objects(world))
        finished = await rows(life)
        assert {segment_key(row.uuid) for row in finished} == objects(world)
        assert {row.state for row in finished} == {COPY_FINISHED}

    live(again, world)


def test_delete_on_disable_removes_objects_of_topic() -> None:
    """remote.log.delete.on.disable: records that are only there are dropped, local ones are kept; a
    topic that shares its segments keeps them."""

    async def act(life: TierProcess) -> None:
        (leaves,) = await life.create("leaves", tiering_max_lag_ms=LAG_MS, local_retention_ms="1")
        (stays,) = await life.create("stays", tiering_max_lag_ms=LAG_MS)
        await produce(life, leaves)
        store = life.log.segments.store
        await until(life, lambda: not any(map(store.is_local, leaves.segments.segment)))
        life.append(leaves, 5)
        await produce(life, stays)
        await life.alter(
            "leaves", remote_storage_enable="false", remote_log_delete_on_disable="true",
            local_retention_ms="-2",
        )  # fmt: skip
        await until(life, lambda: leaves.log_start >= 5)
        await until(life, lambda: len(objects(life.world)) == 1)
        await life.env.sleep(30)
        assert len(objects(life.world)) == 1
        assert leaves.high_watermark == 10
        assert stays.log_start == 0
        spans = list(manifest(life.world).spans(stays.number))
        assert (spans[0][0], spans[-1][1]) == (0, 5)

    live(act)


def test_a_segment_that_lost_its_file_keeps_its_object_until_the_log_start_moves() -> None:
    """The answer to local retention was lost: SQL has the segment as remote only, and the broker as
    local."""

    async def act(life: TierProcess) -> None:
        (partition,) = await life.create("t", tiering_max_lag_ms=LAG_MS)
        await produce(life, partition)
        ids = list(partition.segments.segment)
        store = life.log.segments.store
        await until(life, lambda: all(store.by_id[each].row.object for each in ids))
        await life.storage.set_local(ids, False)
        await life.alter("t", remote_storage_enable="false", remote_log_delete_on_disable="true")
        await until(life, lambda: not objects(life.world))
        assert partition.log_start == partition.high_watermark == 5
        check_moment(life.world)

    live(act)


def test_objects_that_must_stay_do_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PAGE", 2)

    async def act(life: TierProcess) -> None:
        (partition,) = await life.create("t", tiering_max_lag_ms=LAG_MS)
        await produce(life, partition)
        (wanted,) = await rows(life, COPY_FINISHED)
        remover = life.tiering.remover
        needed = [bytes([n]) * 16 for n in range(5)]  # before any other, by uuid
        real = life.storage.unneeded_objects

        async def crowd(node_id: int, limit: int, after: bytes = b"") -> list[ObjectRow]:
            some = [ObjectRow(each, 0, 1) for each in needed if each > after]
            return (some + await real(node_id, 99, after))[:limit]

        async def covered(row: ObjectRow) -> bool:
            return row.uuid not in needed

        monkeypatch.setattr(life.storage, "unneeded_objects", crowd)
        monkeypatch.setattr(remover, "is_covered", covered)
        await partition.delete_records(5)
        await until(life, lambda: segment_key(wanted.uuid) not in objects(life.world))

    live(act)
