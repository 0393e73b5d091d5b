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
from tests.kit.sinks.object_simulation import ObjectLife, ObjectSimulation
from tests.kit.tier.crash_points import Points

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
STRIDES = {True: 1, False: 10} if SEEDS >= 500 else {True: 12, False: 160}
"""By whether the life ends at its start; while it serves, calls repeat."""
MIN_POINTS = 150


class Scenario(ObjectSimulation):
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
            creating = self.create_with_two_producers(life, 2, local_retention_ms="1")
            await self.until_ended(life, creating)
        if not life.over:
            await self.until_ended(life, asyncio.sleep(seconds))

    async def until_ended(self, life: ObjectLife, work: object) -> None:
        """Run something of a life, until it is done or the life has ended."""
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        life.env.tasks[task] = None
        while not (task.done() or life.over):  # noqa: ASYNC110 (a point sets no event)
            await asyncio.sleep(0.01)
        if not life.over:
            task.result()


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
