"""Kill -9 at every step of upload, deletion, local retention, the manifest's fold, the owner's
claim, topic deletion and cleaning: each request to the bucket (before it is sent, when it is done
and not yet answered, when it is answered), each transaction, each change of a segment's file.

A scenario runs once to count its points, then once for each of them with the process killed there.
The next process must find everything that was acknowledged, finish interrupted work, and leave
nothing over; tests.kit.tier.checks checks rows, files and manifest at every request.

A run tries every fourth point; with SIM_SEEDS=500 each of them, and a power failure there too. `-s`
prints the number of points.

Covers: kafkawire.tiering.log_listener, kafkawire.tiering.upload.uploader,
kafkawire.tiering.upload.finisher, kafkawire.tiering.upload.candidates,
kafkawire.tiering.upload.recovery, kafkawire.tiering.upload.offsets.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from kafkawire.offsets.catalog.port import COPY_FINISHED
from tests.kit.tier.checks import check_moment, objects_in
from tests.kit.tier.crash_points import Died, Points
from tests.kit.tier.fake_bucket import StoreFaults
from tests.kit.tier.life import SETTLE_S, Life
from tests.kit.tier.world import TierWorld

SEEDS = int(os.environ.get("SIM_SEEDS", "100"))
STRIDE = 1 if SEEDS >= 500 else 4 if SEEDS >= 50 else 40
KEPT_S = 20.0
Act = Callable[[Life], Awaitable[None]]


async def upload(life: Life) -> None:
    """Some rounds of two topics; several segments share a delta."""
    await life.start()
    await life.topic("a", 2)
    await life.topic("b", tiering_min_object_bytes="1000000")
    life.points.on = True
    for _ in range(3):
        await life.produce("a", 1)
        await life.produce("b", 1)
    await life.env.sleep(SETTLE_S / 3)


async def retrying(life: Life) -> None:
    """Requests fail, done or not, so there are unused uploads and deltas of unknown state."""
    await life.start()
    await life.topic("a", 2)
    await life.produce("a", 1)
    life.points.on = True
    life.world.bucket.faults = StoreFaults(error_rate=0.2, lost_rate=0.3, slow_down_rate=0.1)
    await life.produce("a", 4)
    await life.delete_records("a", 9)
    await life.env.sleep(SETTLE_S / 4)


async def deletion(life: Life) -> None:
    """Records are deleted, so objects are deleted after their delay."""
    await life.start()
    await life.topic("a", 2)
    await life.produce("a", 3)
    await life.env.sleep(SETTLE_S / 4)
    assert objects_in(life.world, COPY_FINISHED)
    life.points.on = True
    await life.delete_records("a", 4)
    await life.env.sleep(SETTLE_S / 2)


async def local_retention(life: Life) -> None:
    """Uploaded files are deleted from the disk."""
    await life.start()
    await life.topic("a", 2, local_retention_ms="1")
    await life.produce("a", 1)
    life.points.on = True
    await life.produce("a", 2)
    await life.env.sleep(SETTLE_S / 2)
    rows = life.log.segments.store.by_id.values()
    assert not all(segment.row.local for segment in rows)
    await life.check()


async def folding(life: Life) -> None:
    """Every second delta is folded."""
    life.world.config.tier_manifest_fold = 2
    await life.start()
    await life.topic("a")
    life.points.on = True
    await life.produce("a", 5)
    await life.env.sleep(KEPT_S)  # folded deltas are removed at a later fold
    await life.produce("a", 4)
    await life.env.sleep(SETTLE_S / 3)


async def claiming(life: Life) -> None:
    """A bucket is claimed, and claimed again by the next process."""
    life.points.on = True
    await life.start()
    await life.topic("a")
    await life.produce("a", 1)
    await life.env.sleep(SETTLE_S / 4)


async def topic_deletion(life: Life) -> None:
    """A topic is deleted with all its objects; its neighbour in shared segments is kept."""
    await life.start()
    await life.topic("a", 2)
    await life.topic("b", 2, local_retention_ms="1")
    await life.produce("a")
    await life.produce("b")
    await life.env.sleep(SETTLE_S / 4)
    life.points.on = True
    await life.delete("b")
    await life.env.sleep(SETTLE_S / 2)


async def cleaning(life: Life) -> None:
    """A compacted topic is cleaned, from local and remote segments; new objects replace old
    ones."""
    await life.start()
    configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    await life.topic("c", 1, delete_retention_ms="100000000", **configs)
    await life.topic("r", 1, delete_retention_ms="100000000", local_retention_ms="1", **configs)
    await life.produce("c", 2)
    await life.produce("r", 2)
    life.points.on = True
    await life.produce("c", 2)
    await life.produce("r", 2)
    await life.env.sleep(SETTLE_S / 2)


async def merging(life: Life) -> None:
    """Small segments are merged, of which the older ones have left the local disk."""
    await life.start()
    await life.topic("a", 2, local_retention_ms="1")
    await life.produce("a", 1)
    await life.env.sleep(SETTLE_S / 4)
    life.points.on = True
    for _ in range(3):
        await life.produce("a", 1)
        await life.env.sleep(SETTLE_S / 8)
    await life.env.sleep(SETTLE_S / 4)
    assert life.log.segments.rewriter.merges
    await life.check()


async def disabling(life: Life) -> None:
    """Tiering is disabled for a topic that has records only in the bucket."""
    await life.start()
    await life.topic("a", 2, local_retention_ms="1")
    await life.produce("a")
    await life.env.sleep(SETTLE_S / 4)
    life.points.on = True
    off = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    await life.alter("a", **off)
    await life.env.sleep(SETTLE_S / 2)


SCENARIOS: list[Act] = [
    upload,
    retrying,
    deletion,
    local_retention,
    folding,
    claiming,
    topic_deletion,
    cleaning,
    merging,
    disabling,
]


def run_until(act: Act, fatal: int, how: str) -> Points:
    """One run: the first process dies at a point, the next one finishes."""
    with patch("kafkawire.log.segments.merge.plan.MAX_SMALL", 3 if act is merging else 112):
        return _run_until(act, fatal, how)


def _run_until(act: Act, fatal: int, how: str) -> Points:
    world = TierWorld(1)
    points = Points(fatal)
    first = Life(world, points)

    async def begin() -> None:
        await act(first)
        points.on = False
        world.bucket.faults = StoreFaults()
        await first.settle()
        await first.close()

    first.run(begin, how)
    if fatal < 0 or not points.dead:
        return points
    world.bucket.faults = StoreFaults()
    check_moment(world)
    second = Life(world)

    async def go_on() -> None:
        await second.start()
        await second.check()
        await second.settle()
        await second.close()

    second.run(go_on)
    return points


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what takes an hour to seconds."""
    monkeypatch.setattr("kafkawire.tiering.publishing.bucket.KEPT_MS", int(KEPT_S * 500))


@pytest.mark.slow
@pytest.mark.parametrize("act", SCENARIOS, ids=lambda act: act.__name__)
def test_kill_at_every_step(act: Act) -> None:
    logging.disable(logging.CRITICAL)
    try:
        points = run_until(act, -1, "kill")
        tried: Counter[str] = Counter()
        for fatal in range(0, len(points.names), STRIDE):
            for how in ("kill", "power") if SEEDS >= 500 else ("kill",):
                try:
                    died = run_until(act, fatal, how)
                except BaseException as failure:
                    name = points.names[fatal]
                    failure.add_note(f"{act.__name__}: {how} at point {fatal}, {name!r}")
                    raise
                assert died.dead, f"point {fatal} was not reached again"
                tried[points.names[fatal]] += 1
    finally:
        logging.disable(logging.NOTSET)
    assert len(points.names) > 10
    print(f"{act.__name__}: {sum(tried.values())} of {len(points.names)} points {dict(tried)}")


def test_fatal_point_ends_process_at_once() -> None:
    """After a fatal point no step has an effect."""
    points = Points(1)
    points.on = True
    points.hit("first")
    with pytest.raises(Died):
        points.hit("second")
    with pytest.raises(Died):
        points.hit("third")
    points.buried = True
    with pytest.raises(OSError, match="crashed"):
        points.hit("fourth")
    assert points.names == ["first", "second"]
