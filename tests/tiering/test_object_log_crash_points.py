"""Ends of a broker with topics of durability=s3 at every call to disk, SQL and bucket: while it
stores objects, saves checkpoints, cuts, uploads and releases; and while it starts with an empty
folder, from the fence to the removal of the mark.

Each end is followed by a start with the folder kept, or with another empty one. It must serve
everything that was acknowledged, and release all objects in the end.

A run tries some points; with SIM_SEEDS=500 each one of a start. `-s` prints the number of points.

Covers: kafkawire.log.object_logs, kafkawire.broker.objects.fresh.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.kit.memfs import MemFileSystem
from tests.kit.seeds import quiet
from tests.kit.tier.crash_points import Died, Points
from tests.kit.tier.object_clients import Producer
from tests.kit.tier.object_lives import ObjectLife
from tests.tiering.test_object_log_simulation import TIERED, Simulation

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
STRIDES = {True: 1, False: 10} if SEEDS >= 500 else {True: 12, False: 160}
"""By whether the life ends at its start; while it serves, calls repeat."""
MIN_POINTS = 150


class Scenario(Simulation):
    """`points`: where the life ends that has them: the first one, or with `starts` the second one,
    which begins with an empty folder. `kept`: the next life has the folder of the ended one."""

    def __init__(self, points: Points, *, starts: bool, kept: bool) -> None:
        super().__init__(1)
        self.points, self.starts, self.kept = points, starts, kept
        self.has_local = False
        config = self.world.config
        config.log_object_linger_ms = 0
        config.log_unreleased_max_bytes = 1 << 30

    async def main(self) -> None:
        world = self.world
        life = await self.begin(world.fs, None if self.starts else self.points)
        if life is not None and self.starts:
            await self.scenario(life, 1.0)
            life.die("kill")
            await life.bury()
            life = await self.begin(world.new_machine(), self.points)
        if life is not None:
            await self.scenario(life, 0.2 if self.starts else 20.0)
        dead = world.lives[-1]
        if not dead.over:
            dead.die("kill")
        await dead.bury()
        await self.end(await self.start(dead.disk if self.kept else world.new_machine()))

    async def begin(self, fs: MemFileSystem, points: Points | None) -> ObjectLife | None:
        """Start a life that ends at a point; None if it has ended already."""
        life = ObjectLife(self.world, fs, points)
        if points is not None:
            points.on = True
        await self.until_ended(life, life.start())
        if life.over:
            return None
        life.serve()
        return life

    async def scenario(self, life: ObjectLife, seconds: float) -> None:
        """Let producers produce, for so long or until a point."""
        if not self.producers:
            await self.until_ended(life, self.create_two(life))
        if not life.over:
            await self.until_ended(life, asyncio.sleep(seconds))

    async def create_two(self, life: ObjectLife) -> None:
        partitions = await life.create("t", 2, durability="s3", local_retention_ms="1", **TIERED)
        self.producers = [
            Producer(self.world, 100 + at, each.number, self.rng, b"p%d" % at)
            for at, each in enumerate(partitions)
        ]
        self.clients = [self.world.loop.create_task(each.run()) for each in self.producers]

    async def until_ended(self, life: ObjectLife, work: object) -> None:
        """Run something of a life, until it is done or the life has ended."""
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        life.env.tasks[task] = None
        while not (task.done() or life.over):  # noqa: ASYNC110 (a point sets no event)
            await asyncio.sleep(0.01)
        if not life.over:
            task.result()

    def run_to_point(self) -> None:
        """Run; a point raises out of the loop, which continues without that life."""
        loop = self.world.loop
        asyncio.set_event_loop(None)
        task = loop.create_task(self.main())
        try:
            while not task.done():
                try:
                    loop.run_until_complete(task)
                except Died:
                    self.world.lives[-1].die("kill")
            task.result()
        finally:
            left = loop.tasks()
            for each in left:
                each.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=1))
            loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "lost"])
@pytest.mark.parametrize("starts", [False, True], ids=["serving", "starting"])
def test_everything_acknowledged_survives_an_end_at_any_point(starts: bool, kept: bool) -> None:
    with quiet():
        points = Points()
        Scenario(points, starts=starts, kept=kept).run_to_point()
        assert len(points.names) > MIN_POINTS
        chosen = range(0, len(points.names), STRIDES[starts])
        for number in chosen:
            tried = Points(number)
            try:
                Scenario(tried, starts=starts, kept=kept).run_to_point()
            except BaseException as failure:
                failure.add_note(f"point {number}: {points.names[number]}")
                raise
            assert tried.dead, f"point {number} was not reached again"
    print(f"{len(chosen)} of {len(points.names)} points")
