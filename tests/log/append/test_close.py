"""The end of a log under load, at every step: what is in flight ends before its file is closed.

Covers: kafkawire.log.append.commit_log, kafkawire.log.append.disk_sink,
kafkawire.log.manager.
"""

from __future__ import annotations

import logging
import random

import pytest

from kafkawire.codec.errors import KafkaError
from kafkawire.log.journal.format import KIND_ROLL, write_catalog
from kafkawire.log.journal.run_file import read_run
from tests.kit.env import EPOCH_MS, sim_env
from tests.kit.log.logs import FOLDER, World, batch, offload, read_all
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.kit.waiting import ticks

STEPS = 40
STEP_S = 0.0007
"""Less than the simulated offload takes for an fsync, so that steps are before, in and after it."""


@pytest.mark.parametrize("fault", ["none", "sync", "sql"])
@pytest.mark.parametrize("threaded", [False, True])
def test_close_at_every_step(threaded: bool, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(STEPS):
        loop, rng = SimLoop(), random.Random(step)
        world = World(sim_env(loop, rng, MemFileSystem(rng)))
        caplog.clear()
        run(loop, _close_under_load(world, step, threaded, fault))
        texts = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        expected = {"none": [], "sync": ["fsync failed"], "sql": ["closing the log failed"]}[fault]
        assert len(texts) == len(expected), texts
        assert all(map(str.startswith, texts, expected)), texts


async def _close_under_load(world: World, step: int, threaded: bool, fault: str) -> None:
    log = await world.start()
    (partition,) = await world.topic("t")
    commit_log = log.commit_log
    if threaded:
        commit_log.writer.slow, commit_log.writer.slow_s = True, -1.0  # every write counts as slow
    acknowledged: list[bytes] = []

    async def write(writer: int) -> None:
        """Append batches with acks=all until they are refused."""
        for n in range(1_000_000):
            value = b"%d %d" % (writer, n)
            try:
                partition.append(batch(value), EPOCH_MS)
                await commit_log.wait_until_committed()
            except KafkaError:
                return
            acknowledged.append(value)

    async def create_topics() -> None:
        """Append catalog frames, as requests do that came before the end, for a while."""
        for _ in range(step):
            commit_log.append_catalog(KIND_ROLL, write_catalog({}))
            await world.env.sleep(STEP_S * 1.3)

    for writer in range(4):
        world.env.spawn(write(writer), "writer")
    world.env.spawn(create_topics(), "creator")
    await world.env.sleep(step * STEP_S)
    while fault == "sync" and not commit_log.failed:
        world.fs.faults.failing_syncs = 1  # the first may be one of another file
        await world.env.sleep(STEP_S)
    world.fs.faults.failing_syncs = 0
    if fault == "sql":
        world.metadata.crash()
    await log.close()
    end = read_run(world.fs, FOLDER)
    assert end is not None
    assert (end.end == commit_log.written) is (fault == "none"), f"unclean at step {step}"
    await world.env.sleep(1)  # what still used a file would fail now
    world.fs.kill()
    await world.start()
    stored = [value for _, value in await read_all(world.find("t"))]
    assert set(acknowledged) <= set(stored), f"step {step}"
    await world.log.close()


@pytest.mark.parametrize("pool", ["write", "commit"])
async def test_end_waits_for_what_is_in_flight(pool: str) -> None:
    """At the end of `Log.close` the files are closed, also if a step of it failed."""
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    log.commit_log.writer.slow = pool == "write"
    offload(world).hold(pool)
    partition.append(batch(b"x"), EPOCH_MS)
    log.commit_log.want_commit()
    await ticks()
    log.commit_log.want_commit()
    await ticks()
    assert len(offload(world).held) == 1
    ending = world.env.spawn(log.commit_log.drain(), "end")
    await ticks()
    assert not ending.done()
    offload(world).release(pool)
    await ending
    await log.close()
