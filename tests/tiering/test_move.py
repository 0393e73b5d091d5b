"""Moving a tier while the broker runs, in virtual time: nothing is lost at any crash, reads
continue, the new bucket is complete before the old one is abandoned, and objects that cannot be
copied are named.

Covers: kafkawire.tiering.store.tiers.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from kafkawire.manifest.keys import SEGMENTS, pack_key, segment_key
from kafkawire.offsets.catalog.port import COPY_FINISHED, CURRENT, LEFT, TierRow
from kafkawire.tiering.migrate import MoveError, copy_uuid
from tests.kit.tier import fake_store as fakestore
from tests.kit.tier.checks import check_bucket, check_settled, objects_in
from tests.kit.tier.crash_points import Died, Points
from tests.kit.tier.fake_bucket import FakeBucket, StoreFaults
from tests.kit.tier.fake_store import FakeStore
from tests.kit.tier.world import MEMORY_BYTES, TierProcess, TierWorld, read_partition

OLD, NEW = "s3://bucket/prefix", "s3://elsewhere/x"
SETTLE_S = 60.0
GRACE_S = 30.0
MOVED_S = 600.0
CRASH_EVERY = int(os.environ.get("MOVE_POINTS_EVERY", "13"))
"""One of this many points of a move is tried."""


class Moving(TierProcess):
    """A life in a world with two buckets; `now`: the last one started."""

    now: Moving

    def __init__(self, world: TierWorld, points: Points | None = None) -> None:
        super().__init__(world, points)
        Moving.now = self
        self.opened: list[FakeStore] = []
        for bucket in fakestore.BUCKETS.values():
            bucket.hook = self._on_request

    def open_store(self, url: str) -> FakeStore:
        """Replaces kafkawire.tiering.store.open's function."""
        store = FakeStore(fakestore.BUCKETS[url], self.env.fs, MEMORY_BYTES)
        self.opened.append(store)
        return store

    def die(self, how: str) -> None:
        super().die(how)
        for store in self.opened:
            store.crash()

    def _bury(self) -> None:
        """End the tasks that wait for a copy that died."""
        while not self.loop.is_closed():
            with suppress(Died):
                super()._bury()

    async def fill(self, rounds: int = 4) -> None:
        """A topic whose records are in the bucket only."""
        lag: dict[str, Any] = {"tiering_max_lag_ms": "5000", "tiering_min_object_bytes": "1"}
        if "t" not in self.catalog.by_name:
            await self.create("t", 2, retention_ms="-1", local_retention_ms="1", **lag)
        for _ in range(rounds):
            for partition in await self.partitions():
                self.append(partition, 3)
            await self.log.commit_log.wait_until_committed()
            await self.env.sleep(2.5)

    async def check(self) -> None:
        """Check that everything acknowledged can be read."""
        for partition in await self.partitions():
            found = await read_partition(partition, partition.log_start)
            promises = self.world.promises
            promises.check(partition.number, partition.log_start, partition.high_watermark, found)

    async def moved(self, *states: str) -> None:
        """Wait for the end of the move."""
        until = self.loop.now + MOVED_S
        while self.tiering.mover.progress.state not in states:
            assert self.loop.now < until, self.tiering.mover.report_progress()
            await self.env.sleep(1.0)


@pytest.fixture(name="world")
def two_buckets(monkeypatch: pytest.MonkeyPatch) -> TierWorld:
    """With an old and a new bucket."""
    made = TierWorld(1, file_delete_delay_ms=100)
    new = FakeBucket(made.rng, now_ms=made.bucket.now_ms)
    monkeypatch.setattr(fakestore, "BUCKETS", {OLD: made.bucket, NEW: new})

    monkeypatch.setattr("kafkawire.tiering.migrate.GRACE_MS_AT_LEAST", 20_000)
    monkeypatch.setattr(
        "kafkawire.tiering.service.open_store", lambda url, _: Moving.now.open_store(url)
    )
    return made


def live(
    world: TierWorld, act: Callable[[Moving], Awaitable[None]], points: Points | None = None
) -> Moving:
    """Run a life; it ends cleanly unless it dies at a point."""
    process = Moving(world, points)

    async def main() -> None:
        await process.start()
        await act(process)
        await process.close()

    process.run(main)
    return process


def segments_in(bucket: FakeBucket) -> set[str]:
    return {key for key in bucket.objects if key.startswith(SEGMENTS)}


async def filled(process: Moving) -> None:
    await process.fill()
    await process.env.sleep(SETTLE_S)


def tiers_of(world: TierWorld) -> list[TierRow]:
    rows: list[TierRow] = world.peek(lambda storage: storage.tiers())
    return rows


def started_with(world: TierWorld, url: str) -> None:
    """The next start has this `tier.url`, and its store."""
    world.config.tier_url = url
    world.config.texts["tier.url"] = url
    world.bucket = fakestore.BUCKETS[url]


def check_moved(world: TierWorld) -> None:
    """Check that everything is in the new bucket, and nothing else."""
    new = fakestore.BUCKETS[NEW]
    rows = objects_in(world, COPY_FINISHED)
    tiers = tiers_of(world)
    states = {row.url: row.state for row in tiers}
    assert states == {OLD: LEFT, NEW: CURRENT}
    assert {row.tier for row in rows} == {next(row.id for row in tiers if row.url == NEW)}
    assert segments_in(new) == {segment_key(row.uuid) for row in rows}
    assert not [key for key in new.objects if key.startswith("probe")]
    world.bucket = new  # the bucket checks apply to this one
    assert check_bucket(world)
    check_settled(world)


def test_move_copies_everything_and_empties_old_bucket(world: TierWorld) -> None:
    async def act(process: Moving) -> None:
        await filled(process)
        before = segments_in(world.bucket)
        assert len(before) >= 2
        world.bucket.store(pack_key(1), b"a filter pack")
        await process.tiering.mover.start_move(NEW)
        await process.moved("waiting")
        assert segments_in(world.bucket) == before  # a reader may still use it
        state = process.tiering.mover.report_progress()
        assert (state["objects"], state["left"], state["failed"]) == (len(before), 0, [])
        assert state["bytes"] == sum(len(world.bucket.objects[key]) for key in before)
        await process.check()
        await process.fill(2)
        await process.env.sleep(SETTLE_S)
        assert segments_in(world.bucket) == before  # new records go to the new tier
        assert process.tiering.tiers.moving
        await process.env.sleep(GRACE_S)
        await process.moved("done")
        assert world.bucket.objects == {}
        assert not process.tiering.tiers.moving
        with pytest.raises(MoveError, match="all objects are in"):
            await process.tiering.mover.start_move("")
        await process.check()

    live(world, act)
    check_moved(world)


def test_start_with_old_url_serves_without_uploading(world: TierWorld) -> None:
    async def move(process: Moving) -> None:
        await filled(process)
        await process.tiering.mover.start_move(NEW)
        await process.moved("waiting")

    async def after(process: Moving) -> None:
        await process.env.sleep(5)
        assert process.tiering.state == "refused"
        assert f"everything was moved from {OLD} to {NEW}" in str(process.tiering.error)
        seen = segments_in(fakestore.BUCKETS[NEW])
        await process.fill(2)
        await process.env.sleep(SETTLE_S)
        assert segments_in(fakestore.BUCKETS[NEW]) == seen
        await process.check()
        with pytest.raises(MoveError, match="nothing is uploaded"):
            await process.tiering.mover.start_move("s3://third/x")

    live(world, move)
    live(world, after)


@pytest.mark.slow
@pytest.mark.usefixtures("world")
def test_crash_at_any_point_of_move_loses_nothing() -> None:
    """Every CRASH_EVERY-th point is tried in worlds that are the same up to there."""
    fatal = tried = 0
    while True:
        again = _fresh()
        points = Points(fatal)

        async def act(process: Moving, points: Points = points) -> None:
            await filled(process)
            points.on = True
            await process.tiering.mover.start_move(NEW)
            await process.moved("waiting")
            await process.env.sleep(5)

        if not live(again, act, points).points.dead:
            break
        if any(row.state == LEFT for row in tiers_of(again)):
            started_with(again, NEW)  # as the command reported to its caller
        live(again, _resumed)
        check_moved(again)
        fatal, tried = fatal + CRASH_EVERY, tried + 1
    assert tried * CRASH_EVERY >= 100


def _fresh() -> TierWorld:
    """A world like the first, with buckets of its own."""
    again = TierWorld(7)
    fakestore.BUCKETS[OLD] = again.bucket
    fakestore.BUCKETS[NEW] = FakeBucket(again.rng, now_ms=again.bucket.now_ms)
    return again


async def _resumed(process: Moving) -> None:
    """The next life: a move that has begun continues by itself, otherwise it is started."""
    if not process.tiering.tiers.moving:
        await process.env.sleep(5)
        await process.tiering.mover.start_move(NEW)
    await process.moved("waiting")
    await process.env.sleep(GRACE_S)
    await process.moved("done")
    await process.check()


@pytest.mark.parametrize("harm", ["forget", "truncate", "change"])
def test_uncopyable_object_is_named_and_others_are_moved(world: TierWorld, harm: str) -> None:
    async def act(process: Moving) -> None:
        await filled(process)
        bucket = world.bucket
        keys = sorted(segments_in(bucket))
        sound = bucket.objects[keys[0]]
        if harm == "forget":
            bucket.forget(keys[0])
        elif harm == "truncate":
            bucket.truncate(keys[0], 500)
        else:
            bucket.store(keys[0], bytes(len(sound)))
        await process.tiering.mover.start_move(NEW)
        await process.moved("stuck")
        progress = process.tiering.mover.progress
        (failed,) = progress.failed
        assert failed.startswith(keys[0])
        assert progress.error == "1 objects could not be copied"
        assert progress.objects == len(keys) - 1
        bucket.store(keys[0], sound)
        await process.tiering.mover.start_move("")  # and now it can
        await process.moved("waiting")
        await process.check()

    live(world, act)


@pytest.mark.slow
def test_move_continues_after_outage_of_new_bucket(world: TierWorld) -> None:
    new = fakestore.BUCKETS[NEW]

    async def act(process: Moving) -> None:
        await filled(process)
        await process.tiering.mover.start_move(NEW)
        new.faults = StoreFaults(down=True, timeout_s=1.0)
        await process.env.sleep(200)
        assert process.tiering.mover.progress.state == "copying"
        await process.check()
        new.faults = StoreFaults(error_rate=0.2, slow_down_rate=0.1, lost_rate=0.1)
        await process.moved("waiting")
        new.faults = StoreFaults()
        await process.env.sleep(GRACE_S)
        await process.moved("done")

    live(world, act)
    check_moved(world)


def test_pause_also_stops_move(world: TierWorld) -> None:
    async def act(process: Moving) -> None:
        await filled(process)
        world.config.tier_paused = True
        await process.env.sleep(2)
        await process.tiering.mover.start_move(NEW)
        await process.env.sleep(100)
        assert not segments_in(fakestore.BUCKETS[NEW])
        world.config.tier_paused = False
        await process.moved("waiting")

    live(world, act)


@pytest.mark.parametrize("why", ["refused", "foreign", "url"])
def test_move_to_unusable_tier_is_refused(world: TierWorld, why: str) -> None:
    new = fakestore.BUCKETS[NEW]
    expected = {"refused": "AccessDenied", "foreign": "the cluster other", "url": "no tier"}[why]
    if why == "refused":
        new.faults.refused = "AccessDenied"
    owner = b'{"format": 1, "cluster_id": "other", "node_id": 1, "epoch": 2, "nonce": "", '
    if why == "foreign":
        new.store("owner", owner + b'"claimed_ms": 0}')

    async def act(process: Moving) -> None:
        await filled(process)
        with pytest.raises(MoveError, match=expected):
            await process.tiering.mover.start_move("s4://x" if why == "url" else NEW)
        assert not process.tiering.tiers.moving
        assert (process.tiering.state, process.tiering.tiers.current.url) == ("attached", OLD)
        await process.check()

    live(world, act)


@pytest.mark.slow
def test_old_tier_is_readable_after_url_change_until_moved(world: TierWorld) -> None:
    async def after(process: Moving) -> None:
        await process.env.sleep(SETTLE_S)
        assert process.tiering.state == "attached"
        await process.fill(2)
        await process.env.sleep(SETTLE_S)
        await process.check()
        assert segments_in(fakestore.BUCKETS[NEW])
        assert process.tiering.mover.progress.state == "idle"
        await process.tiering.mover.start_move("")
        await process.moved("waiting")
        await process.env.sleep(GRACE_S)
        await process.moved("done")

    live(world, filled)
    old = world.bucket
    started_with(world, NEW)
    live(world, after)
    assert old.objects == {}
    check_moved(world)


def test_move_to_nested_tier_or_data_folder_is_refused(world: TierWorld) -> None:
    """A scrub of the outer one would delete the objects of the inner one."""

    async def act(process: Moving) -> None:
        await filled(process)
        folder = process.tiering.tiers.data_folder
        for url in (f"{OLD}/new", "s3://bucket", f"{OLD}?sse=AES256", f"file://{folder}/tier"):
            with pytest.raises(MoveError, match="lie in one another"):
                await process.tiering.mover.start_move(url)
        assert process.tiering.tiers.current.url == OLD

    live(world, act)


def test_start_with_nested_tier_uploads_nothing(world: TierWorld) -> None:
    async def after(process: Moving) -> None:
        await process.env.sleep(SETTLE_S)
        assert "lie in one another" in str(process.tiering.error)
        assert process.tiering.tiers.current.url == OLD
        await process.check()

    live(world, filled)
    fakestore.BUCKETS[f"{OLD}/new"] = FakeBucket()
    started_with(world, f"{OLD}/new")
    live(world, after)
    assert fakestore.BUCKETS[f"{OLD}/new"].objects == {}


def test_changed_url_options_are_the_same_tier(world: TierWorld) -> None:
    async def after(process: Moving) -> None:
        await process.env.sleep(SETTLE_S)
        assert process.tiering.state == "attached"
        assert [row.url for row in process.tiering.tiers.rows] == [f"{OLD}?sse=AES256"]
        await process.fill(2)
        await process.check()

    live(world, filled)
    fakestore.BUCKETS[f"{OLD}?sse=AES256"] = fakestore.BUCKETS[OLD]
    started_with(world, f"{OLD}?sse=AES256")
    live(world, after)


def test_keys_of_copies_are_derived_from_target() -> None:
    uuid = bytes(range(16))
    assert copy_uuid(uuid, NEW) == copy_uuid(uuid, NEW) != copy_uuid(uuid, OLD)
    assert len(copy_uuid(uuid, NEW)) == 16
