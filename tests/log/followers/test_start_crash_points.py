"""Ends of a start of a broker with topics of durability=replicated, at every step: each request to
a follower and each answer, each transaction, each change of a file.

One start has an empty folder, and copies the journals of a follower. The other one finds that its
folder is an older copy of the volume, which lacks records that followers have: it marks the folder,
and the next start moves its files and copies a follower's journals. A run counts the points, then
each one is tried: the process is killed there, or the machine loses its power. The next start, on
that machine or on another one, must have everything that was acknowledged, and the machine of the
ended one must be able to start the broker afterwards, too.

A run tries some points, with SIM_SEEDS=500 each one on each machine. `-s` prints the number.

Covers: kafkawire.log.fresh_folder, kafkawire.log.followers.source,
kafkawire.broker.objects.fresh, kafkawire.broker.followers.install.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from unittest.mock import patch

import pytest

from kafkawire.log import fresh_folder
from kafkawire.log.followers.source import LogBehindCopies
from kafkawire.replication import journal_copy
from tests.kit.memfs import MemFileSystem, Node
from tests.kit.seeds import quiet
from tests.kit.sinks.follower_lives import Machine, ReplicatedLife
from tests.kit.sinks.follower_simulation import FollowerSimulation
from tests.kit.tier.crash_points import Points

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
TRIED = 24
"""Points of each kind of start that a short run tries."""
MIN_POINTS = 100
MAX_POINTS = 1000
"""More than there are."""
OLD, STARTING, OTHER = 0, 3, 1
"""Machines: with the folder of the first process; where a start ends; with a follower."""


class Scenario(FollowerSimulation):
    """`ends`: where starts end, one after the other; `is_older`: with an older copy of the folder,
    not an empty one; `how` they end: "kill" or "power"; `after`: the machine that starts next."""

    def __init__(self, ends: list[Points], *, is_older: bool, how: str, after: int) -> None:
        super().__init__(1)
        self.ends, self.is_older, self.how = ends, is_older, how
        self.replaced = False
        world, config = self.world, self.world.config
        config.replica_group_size, config.min_insync_replicas = 3, 2
        config.log_unreleased_max_bytes = 1 << 30
        config.journal_bytes, config.replica_lag_time_max_ms = 1 << 14, 2000
        self.site = world.sites[OLD if is_older else STARTING]
        self.after = world.sites[after]

    async def main(self) -> None:
        world = self.world
        life = ReplicatedLife(world, world.sites[OLD])
        await life.begin()
        life.serve()
        await self.create_with_two_producers(life)
        await self.complete(life)
        await asyncio.sleep(1)
        older = copy_of(life.disk)
        await asyncio.sleep(2)
        life.die("power")
        await life.bury()
        if self.is_older:
            self.site.disk = older
        for points in self.ends:
            life = await self.begin(self.site, points)
            if not life.over:
                await asyncio.sleep(0.5)
            await self.end_all()
            if self.how == "power":
                self.site.follower.end("power", 0.5)
        await self.begin(self.after)
        await asyncio.sleep(1)
        await self.end_all()
        await self.finish(await self.begin(self.site))
        if self.ends[0].fatal < 0:
            assert self.replaced == self.is_older

    async def begin(self, site: Machine, points: Points | None = None) -> ReplicatedLife:
        """Start the broker; in a folder that is replaced, again. With `points` it may have ended
        when this returns."""
        for again in (False, True):
            life = ReplicatedLife(self.world, site, points)
            if points is not None:
                points.on = True
            starting = life.begin()
            while not (starting.done() or life.over):  # noqa: ASYNC110 (a point sets no event)
                await asyncio.sleep(0.01)
            if life.over:
                return life
            failure = starting.exception()
            if failure is None:
                if points is None:
                    await self.check(life)
                life.serve()
                return life
            assert isinstance(failure, LogBehindCopies), repr(failure)
            assert not again, "the folder is not replaced"
            self.replaced = True
            life.die("kill")
            await life.bury()
            if points is not None:
                points.dead = points.buried = False
        raise AssertionError

    async def end_all(self) -> None:
        for life in self.world.lives:
            life.die(self.how)
            await life.bury()

    async def finish(self, life: ReplicatedLife) -> None:
        """Let everything come to its end, and check it."""
        await self.complete(life)
        await self.finish_clients()
        await self.check(life)
        self.raise_failures()
        await life.close()
        await life.bury()


def copy_of(disk: MemFileSystem) -> MemFileSystem:
    """Return a copy of a volume, with what programs see."""
    made = MemFileSystem(disk.rng)
    made.folders = set(disk.folders)
    for path, node in disk.files.items():
        made.files[path] = made.durable[path] = same = Node()
        same.data, same.durable = bytearray(node.data), bytearray(node.data)
    return made


def run_until(*fatal: int, is_older: bool, how: str, after: int) -> Points:
    """Run once, with starts that end at these points; return the points of the first one."""
    ends = [Points(each) for each in fatal]
    with patch.object(journal_copy, "RECORD_EVERY_BYTES", 3000):
        Scenario(ends, is_older=is_older, how=how, after=after).run_to_point(how)
    return ends[0]


def chosen(count: int) -> list[tuple[int, str, int]]:
    """Return the points to try, how each one ends, and which machine starts next."""
    machines = (STARTING, OLD, OTHER)
    if SEEDS >= 500:
        hows = ("kill", "power")
        return [(at, how, each) for at in range(count) for how in hows for each in machines]
    step = max(1, count // TRIED)
    points = range(0, count, step)
    return [
        (at, ("kill", "power")[i % 2], machines[i // 2 % len(machines)])
        for i, at in enumerate(points)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_older", [False, True], ids=["empty", "older"])
def test_acknowledged_records_survive_an_end_of_a_start_at_any_point(is_older: bool) -> None:
    with quiet():
        counted = run_until(-1, is_older=is_older, how="kill", after=OTHER)
        assert len(counted.names) > MIN_POINTS
        tried: Counter[str] = Counter()
        for fatal, how, after in chosen(len(counted.names)):
            name = counted.names[fatal]
            try:
                points = run_until(fatal, is_older=is_older, how=how, after=after)
            except BaseException as failure:
                failure.add_note(f"{how} at point {fatal}, {name!r}, then machine {after}")
                raise
            assert len(points.names) == fatal + 1, f"point {fatal} was not reached again"
            tried[name] += 1
    print(f"{sum(tried.values())} of {len(counted.names)} points {dict(tried)}")


@pytest.mark.slow
def test_starts_end_one_after_the_other() -> None:
    """The start after one that has ended ends, too, earlier or later."""
    rng = random.Random(1)
    with quiet():
        for _ in range(SEEDS // 4):
            first, second, third = (rng.randrange(rng.choice((50, 380))) for _ in range(3))
            is_older, how = rng.random() < 0.5, rng.choice(("kill", "power"))
            after = rng.choice((STARTING, OLD, OTHER))
            try:
                run_until(first, second, third, is_older=is_older, how=how, after=after)
            except BaseException as failure:
                failure.add_note(f"{first}, {second}, {third}, {is_older=}, {how}, {after}")
                raise


def no_mark(patch: pytest.MonkeyPatch) -> None:
    """A start takes a folder that an ended start has not completed for a complete one."""
    patch.setattr(fresh_folder, "is_begun", lambda *_: False)


@pytest.mark.slow
def test_crash_points_find_a_mark_that_is_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    no_mark(monkeypatch)
    with quiet():
        for fatal in range(0, MAX_POINTS, 3):
            try:
                points = run_until(fatal, is_older=False, how="power", after=STARTING)
            except AssertionError as failure:
                print(f"point {fatal}: {failure}")
                return
            if len(points.names) <= fatal:
                break
    pytest.fail("no point finds it")
