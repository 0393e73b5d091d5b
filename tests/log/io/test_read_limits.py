"""The slow lane: one piece of work per event-loop iteration, after urgent work."""

from __future__ import annotations

import asyncio

from kafkawire.log.io.read_limits import MAX_POSTPONED, SHARED_S, SlowLane
from tests.kit.env import SettableClock, memory_env
from tests.kit.waiting import WITHIN_S


async def test_one_job_runs_per_loop_iteration_in_order() -> None:
    env = memory_env()
    lane = SlowLane(env, lambda: False)
    turn, seen = 0, []

    async def work(number: int) -> None:
        await lane.wait()
        seen.append((number, turn))

    def tick() -> None:
        nonlocal turn
        turn += 1
        env.call_soon(tick)

    tick()
    tasks = [env.spawn(work(number), "work") for number in range(5)]
    tasks[2].cancel()
    await asyncio.wait(tasks)
    assert [number for number, _ in seen] == [0, 1, 3, 4]
    turns = [at for _, at in seen]
    assert len(set(turns)) == 4


async def test_slow_lane_yields_to_urgent_work_for_a_bounded_time() -> None:
    env = memory_env()
    urgent, asked = True, 0

    def busy() -> bool:
        nonlocal asked
        asked += 1
        return urgent

    lane = SlowLane(env, busy)
    assert not lane.shared
    await asyncio.wait_for(lane.wait(), WITHIN_S)
    assert asked == MAX_POSTPONED + 1
    assert lane.shared
    urgent, asked = False, 0
    await lane.wait()
    assert asked == 1
    assert isinstance(env.clock, SettableClock)
    env.clock.ms += int(SHARED_S * 1000)
    assert not lane.shared
