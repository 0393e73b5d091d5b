"""Appending, committing and reading, start to end, on a disk in memory."""

from __future__ import annotations

from tests.kit.logs import World, batch, read_all


async def test_what_is_appended_is_read_after_the_commit() -> None:
    world = World()
    log = await world.start()
    (partition,) = await world.topic("t")
    done = partition.append(batch(b"a", b"b"), 1_700_000_000_000)
    assert done.base_offset == 0
    assert partition.append(batch(b"c"), 1_700_000_000_000).base_offset == 2
    assert partition.next_offset == 0
    await log.commit_log.committed()
    assert (partition.next_offset, partition.high_watermark) == (3, 3)
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    await world.restart()
    partition = world.find("t")
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert partition.leader_epoch == 0
    await world.crash(power=True)
    partition = world.find("t")
    assert await read_all(partition) == [(0, b"a"), (1, b"b"), (2, b"c")]
    await world.log.close()
