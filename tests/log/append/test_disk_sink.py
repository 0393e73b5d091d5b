"""Commits: the writes that one fsync covers, who waits for it, and behaviour when it is slow or
fails.

Covers: kafkawire.log.append.disk_sink.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from tests.kit import simloop
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import World, batch, offload, read_all
from tests.kit.waiting import ticks


async def test_failed_fsync_stops_writes_until_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    partition.append(batch(b"kept"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    world.fs.faults.failing_syncs = 1
    partition.append(batch(b"doubtful"), EPOCH_MS)
    with caplog.at_level(logging.CRITICAL), pytest.raises(KafkaError, match="until the broker"):
        await log.commit_log.wait_until_committed()
    assert caplog.text.count("fsync failed") == 1
    assert log.commit_log.failed is not None
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(b"refused"), EPOCH_MS)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        await log.commit_log.wait_until_committed()
    assert not log.commit_log.full
    assert await read_all(partition) == [(0, b"kept")]
    await world.crash(power=False)
    # The kernel still had the bytes, and considers them clean: recovery must write them again.
    found = [(0, b"kept"), (1, b"doubtful")]
    assert await read_all(world.find("t")) == found
    world.find("t").append(batch(b"on"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.crash(power=True)
    assert await read_all(world.find("t")) == [*found, (2, b"on")]


async def test_slow_writes_move_to_thread_and_batches_accumulate() -> None:
    world = World(slow_write_ms=0)
    log = await world.start()
    (partition,) = await world.topic("t")
    commit_log = log.commit_log
    commit_log.writer.slow = True
    offload(world).hold("write")
    order: list[str] = []
    for name in ("first", "second", "third"):
        partition.append(batch(name.encode()), EPOCH_MS)
        commit_log.after_write(lambda failure, name=name: order.append(name))  # type: ignore[misc]
        await ticks(2)
    assert (order, partition.next_offset) == ([], 0)
    assert len(offload(world).held) == 1
    offload(world).release("write")
    await commit_log.wait_until_committed()
    assert order == ["first", "second", "third"]
    assert len(partition.rows) == 2  # the first alone, the others as they accumulated
    assert [value for _, value in await read_all(partition)] == [b"first", b"second", b"third"]


async def test_commit_covers_written_batches_and_next_one_collects() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    offload(world).hold("commit")
    order: list[int] = []
    for n in range(3):
        partition.append(batch(b"x"), EPOCH_MS)
        log.commit_log.after_commit(lambda failure, n=n: order.append(n))  # type: ignore[misc]
        await ticks(2)
    assert (partition.next_offset, partition.high_watermark, order) == (3, 0, [])
    assert len(offload(world).held) == 1
    offload(world).release("commit")
    await ticks()
    assert (partition.high_watermark, order) == (3, [0, 1, 2])


async def test_commit_that_a_caller_waits_for_gets_no_timer() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    sink = log.commit_log.disk_sink
    offload(world).hold("commit")
    timers: list[bool] = []
    log.commit_log.after_write(lambda _: timers.append(sink._timer is not None))
    partition.append(batch(b"x"), EPOCH_MS)
    await ticks()
    log.commit_log.after_write(lambda _: timers.append(sink._timer is not None))
    sink.stop()
    partition.append(batch(b"x"), EPOCH_MS)
    log.commit_log.after_commit(lambda _: None)
    await ticks()
    assert timers == [True, False]
    assert len(offload(world).held) == 1, "it has begun"


def test_watched_partition_is_committed_without_delay() -> None:
    """In virtual time: on a real loop the delay may pass while the machine is busy."""
    simloop.run(simloop.SimLoop(), _commit_watched_and_others())


async def _commit_watched_and_others() -> None:
    world = World(commit_delay_ms=40)
    log = await world.start()
    watched, other = await world.topic("t", 2)
    moved: list[int] = []
    watched.watch(lambda partition: moved.append(partition.high_watermark))
    other.append(batch(b"x"), EPOCH_MS)
    await ticks()
    assert other.high_watermark == 0
    watched.append(batch(b"x"), EPOCH_MS)
    await ticks()
    assert (moved, other.high_watermark) == ([1], 1)
    other.append(batch(b"x"), EPOCH_MS)
    await ticks()
    assert other.high_watermark == 1
    log.commit_log.want_commit()
    await ticks()
    assert other.high_watermark == 2
    other.append(batch(b"x"), EPOCH_MS)
    await asyncio.sleep(0.041)
    assert other.high_watermark == 3


async def test_flush_os_answers_after_write() -> None:
    world = World(flush="os")
    log = await world.start()
    (partition,) = await world.topic("t")
    offload(world).hold("commit")
    partition.append(batch(b"x"), EPOCH_MS)
    await log.commit_log.wait_until_committed()
    assert (partition.high_watermark, log.commit_log.full) == (1, False)
    offload(world).release("commit")


async def test_produces_wait_while_uncommitted_bytes_exceed_bound() -> None:
    world = World(uncommitted_max_bytes=500)
    log = await world.start()
    (partition,) = await world.topic("t")
    offload(world).hold("commit")
    partition.append(batch(bytes(300)), EPOCH_MS)
    assert not log.commit_log.full
    partition.append(batch(bytes(300)), EPOCH_MS)
    assert log.commit_log.full
    room: list[bool] = []
    log.commit_log.when_room(lambda: room.append(log.commit_log.full))
    await ticks()
    assert (room, log.commit_log.full) == ([], True)
    log.commit_log.want_commit()
    await ticks()
    offload(world).release("commit")
    await ticks()
    assert room == [False]


async def test_callback_may_append_while_thread_writes() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    broken: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    log.commit_log.writer.slow = True
    log.commit_log.writer.slow_s = -1.0  # every write counts as slow

    def more(failure: BaseException | None) -> None:
        if partition.offsets.pending < 5:
            partition.append(batch(b"x"), EPOCH_MS)
            log.commit_log.after_write(more)

    more(None)
    await ticks(40)
    assert broken == []
    assert (partition.next_offset, log.commit_log.writer.slow) == (5, True)
