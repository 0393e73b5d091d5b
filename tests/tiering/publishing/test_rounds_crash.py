"""A broker that dies at every single request of its manifest, before and after it was done; and
seeds of brokers with errors, lost responses, and concurrent owners."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest

from kafkawire.manifest.keys import segment_key
from kafkawire.manifest.reader import NoManifest
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import COPY_FINISHED, COPY_STARTED
from kafkawire.tiering.publishing.publisher import OwnedByOther
from tests.kit.tier.fake_bucket import FakeBucket, StoreFaults
from tests.kit.tier.rounds import RoundsBroker, RoundsWorld

SEEDS = int(os.environ.get("SIM_SEEDS", "5"))


class Died(Exception):
    """The process was killed."""


async def life(broker: RoundsBroker, steps: int) -> None:
    """Some uploads, deletions, new topics and log starts that move, with folds in between."""
    world = broker.world
    await broker.rounds.open()
    for n in range(steps):
        number = 1 + n % 3
        ends = await broker.storage.load_partitions([number])
        at = ends[0].commit_offset
        added = await broker.upload((number, at, at + 10))
        if n % 3 == 1:
            broker.rounds.topic_changed(world.topic(f"t{world.catalog.version}"))
        if n % 3 == 2:
            await broker.start_log_at(number, at)
            broker.rounds.log_start_moved(number)
            await broker.rounds.publish()
            await broker.storage.delete_objects([added[0].uuid], 1)
            await broker.rounds.publish([], {added[0].uuid: broker.env.clock.now_ms() + 9999})
        await broker.env.sleep(700)


async def check(world: RoundsWorld) -> None:
    """Check that a reader of the bucket finds everything that is finished in SQL, at any time."""
    manifest = world.manifest()
    storage = RoundsBroker(world).storage
    for each in await storage.objects(1, [COPY_FINISHED], 1000):
        assert manifest.find_object(each.uuid) is not None
    for row in await storage.load_partitions([1, 2, 3]):
        said = manifest.get_partition(row.number)
        if row.commit_offset:
            assert said is not None
            assert said.end >= row.commit_offset


async def check_settled(world: RoundsWorld) -> None:
    """Check a broker that has started again and written what was missing."""
    await check(world)
    manifest = world.manifest()
    assert set(manifest.topics) == set(world.catalog.by_name)
    for row in await RoundsBroker(world).storage.load_partitions([1, 2, 3]):
        said = manifest.get_partition(row.number)
        if said is not None and row.checkpoint is not None:
            assert said.log_start == row.checkpoint.log_start
    names = {segment_key(uuid) for uuid in manifest.deleted}
    assert not names & {segment_key(row.uuid) for row in manifest.objects}


def crash_at(point: int, moment: str) -> bool:
    """One life that ends at this request, and one after it. Return whether the first reached it."""
    world = RoundsWorld(seed=point, fold=3)
    world.topic("a", 3)
    happened = asyncio.Event()
    checked = False
    count = 0

    def hook(what: str, kind: str, key: str) -> None:
        nonlocal count
        count += what == moment
        if what == moment and count == point:
            happened.set()
            raise Died

    async def main() -> None:
        nonlocal checked
        broker = RoundsBroker(world)
        world.bucket.hook = hook
        task = broker.env.spawn(life(broker, 9), "life")
        crash = broker.env.spawn(happened.wait(), "crash")
        await asyncio.wait([task, crash], return_when=asyncio.FIRST_COMPLETED)
        world.bucket.hook = lambda what, kind, key: None
        if not happened.is_set():
            await task
        task.cancel()
        crash.cancel()
        await broker.die()
        await asyncio.gather(task, crash, return_exceptions=True)
        if broker.rounds.sequence:
            await check(world)
        broker = RoundsBroker(world)
        await broker.rounds.open()
        started = await broker.storage.objects(1, [COPY_STARTED], 100)
        await broker.rounds.publish([], {row.uuid: 1 << 50 for row in started})
        await check_settled(world)
        await broker.rounds.close()
        # A third one has nothing to write.
        puts = world.bucket.requests["put"]
        third = RoundsBroker(world)
        await third.rounds.open()
        await third.rounds.publish()
        assert world.bucket.requests["put"] == puts + 1
        checked = True

    with contextlib.suppress(Died):  # of a callback of the loop, kept until the end
        world.run(main)
    assert checked, f"{moment} {point}"
    return happened.is_set()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["call", "done"])
def test_crash_at_every_request(moment: str) -> None:
    point = 1
    while crash_at(point, moment):
        point += 1
    assert point > 60


@pytest.mark.slow
def test_manifest_matches_sql_despite_faults() -> None:
    for seed in range(SEEDS):
        faulty(seed)


def faulty(seed: int) -> None:
    rng = random.Random(seed)
    rates = (rng.choice((0.0, 0.1, 0.3)) for _ in range(4))
    error, slow, lost, partial = rates
    faults = StoreFaults((0.0, 0.2), error, slow, lost, partial)
    world = RoundsWorld(seed, 3, FakeBucket(faults=faults))
    world.topic("a", 3)

    async def main() -> None:
        for _ in range(4):
            broker = RoundsBroker(world)
            task = broker.env.spawn(steady(broker), "life")
            await broker.env.sleep(rng.random() * 100)
            await broker.die()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                await check(world)
            except NoManifest:
                assert not await broker.storage.objects(1, [COPY_FINISHED], 1)
        world.bucket.faults = StoreFaults()
        broker = RoundsBroker(world)
        await broker.rounds.open()
        await broker.rounds.publish()
        await check_settled(world)

    world.run(main)


async def steady(broker: RoundsBroker) -> None:
    """A life that retries."""
    while True:
        try:
            await broker.rounds.open()
            break
        except StoreError:
            await broker.env.sleep(1)
    for n in range(1000):
        number = 1 + n % 3
        (row,) = await broker.storage.load_partitions([number])
        at = row.commit_offset
        added = await broker.object([(number, at, at + 10)])
        if n % 7 == 3:
            broker.rounds.topic_changed(broker.world.topic(f"t{broker.world.catalog.version}"))
        while True:
            try:
                await broker.rounds.publish([added], {}, {number: at + 10})
                break
            except OwnedByOther:
                raise
            except StoreError:
                await broker.env.sleep(0.3)
        assert await broker.storage.finish_objects([added[0].uuid], {number: at + 10})
        if n % 10 == 0:
            await check(broker.world)
        await broker.env.sleep(1)
