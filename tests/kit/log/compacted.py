"""Compacted topics in a whole Log with tiny journals: fill, cut, clean and read them."""

from __future__ import annotations

from typing import Any

from kafkawire.codec.batches import Record, build, iter_batches, records
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead
from tests.kit.env import EPOCH_MS
from tests.kit.log.logs import FOLDER, World
from tests.kit.waiting import settle

JOURNAL = 8192


async def started(**more: Any) -> World:
    """A broker whose journals are small and can be cut as soon as they are rolled."""
    world = World(journal_bytes=JOURNAL, hot_bytes=0, **more)
    await world.start()
    return world


async def update(
    partition: Partition, *pairs: tuple[bytes | None, bytes | None], ms: int = 0, **more: Any
) -> int:
    """Append one batch; return its base offset."""
    batch = build(list(pairs), timestamp_ms=EPOCH_MS + ms, **more)
    done = partition.append(memoryview(batch), EPOCH_MS)
    await partition.log.wait_until_committed()
    await settle()
    return done.base_offset


async def fill(partition: Partition, count: int, keys: int = 5, size: int = 300) -> None:
    """Append updates of a few keys, in batches of two; the value of a record contains its
    offset."""
    for _ in range(count):
        at = partition.next_offset
        pairs = [(b"k%d" % (n % keys), b"%d:" % n + bytes(size)) for n in (at, at + 1)]
        await update(partition, *pairs, ms=at)


async def cut(world: World) -> None:
    await settle()
    await world.log.segments.cut()
    await world.log.checkpoint()


async def cut_all(world: World) -> None:
    """Cut also what is in the active journal."""
    if not world.log.journals.ready:
        world.log.journals.prepare()
        await settle()
    world.log.commit_log.roll()
    await settle()
    await world.log.segments.cut()
    assert all(p.cut_offset == p.next_offset for p in world.log.partitions.values())


async def clean(world: World) -> None:
    await world.log.segments.cleaner.run()
    await settle()


async def read(partition: Partition, start: int | None = None, room: int = 1 << 20) -> list[Record]:
    """Every record from an offset on, as a consumer reads them: each fetch continues after the last
    batch."""
    found: list[Record] = []
    offset = partition.log_start if start is None else start
    while offset < partition.high_watermark:
        plan = partition.plan(offset, room, partition.high_watermark, True)
        if isinstance(plan, HotRead):
            views, release = partition.log.views(plan)
            buffers = [bytes(view) for view in views]
            release()
        else:
            buffers = [bytes(buffer) for buffer in await partition.log.read(plan)]
        before = offset
        for buffer in buffers:
            for position, head in iter_batches(buffer):
                found += [r for r in records(buffer, position) if r.offset >= offset]
                offset = max(offset, head.last_offset + 1)
        assert offset > before, f"nothing at {before}, before {partition.high_watermark}"
    return found


def latest(found: list[Record]) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {record.key: (record.offset, record.value) for record in found}


def files(world: World) -> list[str]:
    return [name for name in world.fs.listdir(f"{FOLDER}/segments") if name.endswith(".segment")]
