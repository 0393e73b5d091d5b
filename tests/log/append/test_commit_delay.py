"""The pause between commits that only parked readers wait for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kafkawire.log.append.disk_sink import MAX_PAUSE_S, SMOOTHING, ReaderPause
from tests.kit import simloop
from tests.kit.env import EPOCH_MS, SimOffload, sim_env
from tests.kit.log.logs import World, batch
from tests.kit.memfs import MemFileSystem


def paused(*durations_s: float, max_s: float = MAX_PAUSE_S) -> tuple[ReaderPause, float]:
    """A pause after commits of these durations, and the time at the end of the last one."""
    pause, now = ReaderPause(max_s), 1000.0
    for duration in durations_s:
        pause.note_commit(now, now + duration)
        now += duration + 1.0
    return pause, now - 1.0 if durations_s else now


def test_first_commit_has_no_pause() -> None:
    pause, now = paused()
    assert pause.remaining_s(now) == 0


@pytest.mark.parametrize("since_s", [0.0, 0.0004, 0.001, 0.0026, 0.003, 1.0])
def test_pause_takes_as_long_as_a_commit(since_s: float) -> None:
    pause, now = paused(*[0.003] * 100)
    assert pause.remaining_s(now + since_s) == pytest.approx(max(0.003 - since_s, 0), abs=0.0005)


def test_commits_shorter_than_timers_resolve_have_no_pause() -> None:
    pause, now = paused(*[0.0004] * 100)
    assert pause.remaining_s(now) == 0


@pytest.mark.parametrize(("max_s", "pause_s"), [(MAX_PAUSE_S, 0.005), (60, 0.005), (0.002, 0.002)])
def test_pause_is_bounded(max_s: float, pause_s: float) -> None:
    pause, now = paused(*[2.0] * 100, max_s=max_s)
    assert pause.remaining_s(now) == pytest.approx(pause_s)


def test_one_slow_commit_counts_as_little_as_a_few_usual_ones() -> None:
    pause, now = paused(*[0.001] * 100, 0.001 + 0.001 * SMOOTHING)
    assert pause.remaining_s(now) == pytest.approx(0.002)
    pause, now = paused(*[0.020] * 100, *[0.001] * 50)
    assert pause.remaining_s(now) == pytest.approx(0.001)


class SlowDisk(SimOffload):
    """Commits take `commit_s`; `begun` are the times at which they started."""

    def __init__(self, loop: simloop.SimLoop, commit_s: float) -> None:
        super().__init__(loop, random.Random(0))
        self._sim = loop
        self._commit_s = commit_s
        self.begun: list[float] = []

    def submit_then(
        self, pool: str, done: Callable[..., None], fn: Callable[..., Any], *args: Any
    ) -> None:
        if pool != "commit":
            super().submit_then(pool, done, fn, *args)
            return
        self.begun.append(self._sim.now)
        self._sim.call_later(self._commit_s, lambda: done(fn(*args), None))


async def one_partition(loop: simloop.SimLoop, commit_s: float) -> tuple[World, SlowDisk, Any]:
    disk = SlowDisk(loop, commit_s)
    fs = MemFileSystem()
    world = World(replace(sim_env(loop, random.Random(0), fs), offload=disk))
    log = await world.start()
    (partition,) = await world.topic("t")
    for _ in range(100):  # its commits become the usual ones
        partition.append(batch(b"x"), EPOCH_MS)
        await log.commit_log.wait_until_committed()
    await asyncio.sleep(1)
    disk.begun.clear()
    return world, disk, partition


@pytest.mark.parametrize("commit_s", [0.0004, 0.002, 0.005, 0.050])
def test_records_with_acks_1_are_committed_for_a_reader_within_the_bound(commit_s: float) -> None:
    loop = simloop.SimLoop()

    async def main() -> None:
        _, disk, partition = await one_partition(loop, commit_s)
        seen: list[tuple[float, int]] = []
        partition.watch(lambda each: seen.append((loop.now, each.high_watermark)))
        first, written = partition.next_offset, []
        for _ in range(400):
            partition.append(batch(b"x"), EPOCH_MS)
            written.append(loop.now)
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0.2)
        assert partition.high_watermark == first + len(written)
        ends = [begun + commit_s for begun in disk.begun]
        # The first one has no pause before it, the others one of a commit's duration at most.
        assert disk.begun[0] == written[0]
        for end, begun in zip(ends, disk.begun[1:], strict=False):
            assert begun - end <= min(commit_s, MAX_PAUSE_S) + 0.0011
        for number, at in enumerate(written):
            visible = next(time for time, mark in seen if mark > first + number)
            assert visible - at <= 2 * commit_s + min(commit_s, MAX_PAUSE_S) + 0.0011
        pause_s = min(commit_s, MAX_PAUSE_S) - 0.0006  # timers have whole milliseconds
        assert len(disk.begun) <= 0.2 / max(commit_s + pause_s, 0.0005) + 3

    simloop.run(loop, main())


def test_commit_that_a_request_waits_for_is_not_delayed() -> None:
    loop = simloop.SimLoop()

    async def main() -> None:
        world, disk, partition = await one_partition(loop, 0.004)
        partition.watch(lambda _: None)
        partition.append(batch(b"acks=1"), EPOCH_MS)
        await asyncio.sleep(0.0041)  # committed just now
        partition.append(batch(b"acks=1"), EPOCH_MS)
        await asyncio.sleep(0.001)
        assert len(disk.begun) == 1  # there is a pause
        partition.append(batch(b"acks=all"), EPOCH_MS)
        begun = loop.now
        await world.log.commit_log.wait_until_committed()
        assert disk.begun[1:] == [begun]
        assert partition.high_watermark == partition.next_offset

    simloop.run(loop, main())


def test_reader_that_parks_later_waits_no_longer() -> None:
    loop = simloop.SimLoop()

    async def main() -> None:
        world, disk, partition = await one_partition(loop, 0.004)
        world.log.commit_log.disk_sink._delay_s = 60.0  # no reader yet: no hurry
        partition.append(batch(b"x"), EPOCH_MS)
        await asyncio.sleep(1)
        assert not disk.begun
        begun = loop.now
        world.log.commit_log.want_commit()
        await asyncio.sleep(0)
        assert disk.begun == [begun]

    simloop.run(loop, main())
