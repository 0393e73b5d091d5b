"""Retention and recycling: log starts move in SQL first, unused journals are overwritten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.errors import KafkaError
from kafkawire.codec.types import uuid_text
from kafkawire.log.io.ports import LogError
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.dump import FrameShown, walk
from kafkawire.log.partition.partition import Partition
from kafkawire.log.partition.read_plan import HotRead
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, NewTopic
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.log.logs import FOLDER, World, batch, offload, read_all
from tests.kit.waiting import settle

HOUR_MS = 3_600_000


async def append(world: World, partition: Partition, count: int, at_ms: int) -> None:
    for _ in range(count):
        partition.append(batch(bytes(1000), timestamp_ms=at_ms), at_ms)
        await world.log.commit_log.wait_until_committed()
    await settle()


async def started(**configs: Any) -> tuple[World, Partition]:
    world = World(journal_bytes=4096, recycle_bytes=1 << 20)
    await world.start()
    (partition,) = await world.topic("t", **configs)
    return world, partition


def oldest(world: World) -> int:
    """The number of the oldest journal."""
    return next(iter(world.log.journals)).number


def move_clock(world: World, ms: int) -> None:
    assert isinstance(world.env.clock, SettableClock)
    world.env.clock.ms = EPOCH_MS + ms


async def test_records_older_than_retention_ms_are_deleted_by_journal() -> None:
    world, partition = await started(retention_ms=str(HOUR_MS))
    await append(world, partition, 9, EPOCH_MS)
    await append(world, partition, 9, EPOCH_MS + HOUR_MS)
    move_clock(world, HOUR_MS + 1)
    await world.log.retention.run()
    assert 3 <= partition.log_start <= 9
    journals = len(list(world.log.journals))
    move_clock(world, 2 * HOUR_MS + 1)
    await world.log.checkpoint()
    await world.log.retention.run()
    assert partition.log_start == 18
    assert len(list(world.log.journals)) == 1 < journals
    assert partition.size_bytes == 0
    await append(world, partition, 1, EPOCH_MS + 2 * HOUR_MS)
    for again in (world.crash, world.restart):
        await again()
        assert [offset for offset, _ in await read_all(world.find("t"))] == [18]


async def test_records_beyond_retention_bytes_are_deleted() -> None:
    world, partition = await started(retention_bytes="5000")
    await append(world, partition, 20, EPOCH_MS)
    await world.log.retention.run()
    assert 5000 <= partition.size_bytes < 5000 + 4096
    assert partition.log_start > 10


async def test_compacted_topic_is_not_expired() -> None:
    world, partition = await started(retention_ms="1", cleanup_policy="compact")
    for _ in range(8):
        keyed = batch(b"x" * 1000)
        partition.config.cleanup_compact = False  # the values have no keys
        partition.append(keyed, EPOCH_MS)
        partition.config.cleanup_compact = True
        await world.log.commit_log.wait_until_committed()
    move_clock(world, HOUR_MS)
    await world.log.retention.run()
    assert partition.log_start == 0


async def test_only_journaled_or_changed_partitions_are_scanned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, partition = await started(retention_ms=str(HOUR_MS))
    idle = (await world.topic("idle"))[0]
    await append(world, partition, 1, EPOCH_MS)
    scanned: list[int] = []

    def scan(partition: Partition, _: int) -> int:
        scanned.append(partition.number)
        return partition.log_start

    with monkeypatch.context() as patch:
        patch.setattr("kafkawire.log.maintenance.retention.due", scan)
        await world.log.retention.run()
        assert scanned == [partition.number]
        world.log.retention.touched.add(idle.number)
        await world.log.retention.run()
        assert scanned[1:] == [partition.number, idle.number]
    partition.config.retention_ms = 5  # applies at the next scan
    move_clock(world, 6)
    await world.log.retention.run()
    assert partition.log_start == 1


async def test_pinned_journal_is_not_recycled() -> None:
    world, partition = await started()
    await append(world, partition, 12, EPOCH_MS)
    plan = partition.plan(0, 1 << 20, 3, True)
    assert isinstance(plan, HotRead)
    views, release = partition.log.views(plan)
    before = [bytes(view) for view in views]
    await partition.delete_records(12)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    numbers = [journal.number for journal in world.log.journals]
    assert numbers[0] == 1
    assert world.log.journals.spares
    await append(world, partition, 12, EPOCH_MS)
    assert [bytes(view) for view in views] == before
    release()
    await world.log.retention.reclaim()
    assert oldest(world) > 1


async def test_journal_is_kept_while_one_partition_needs_it() -> None:
    world, one = await started()
    (two,) = await world.topic("u")
    for _ in range(6):
        await append(world, one, 1, EPOCH_MS)
        await append(world, two, 1, EPOCH_MS)
    await one.delete_records(6)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert oldest(world) == 1
    await world.metadata.delete_topics([two.topic_id])
    world.log.remove_topic(world.catalog.remove_topic(two.topic_id))
    await world.log.commit_log.wait_until_committed()
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert len(list(world.log.journals)) == 1
    await world.crash()
    assert world.find("t").log_start == 6


async def test_journal_not_covered_by_checkpoint_is_kept() -> None:
    world, partition = await started()
    await append(world, partition, 6, EPOCH_MS)
    world.log.checkpoints.start(0, due=False)
    await partition.delete_records(6)
    await world.log.retention.reclaim()
    assert oldest(world) == 1


async def test_number_of_spare_journals_is_bounded() -> None:
    world, partition = await started()
    world.log.journals.recycle_bytes = 2 * 4096
    await append(world, partition, 30, EPOCH_MS)
    await partition.delete_records(30)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert len(world.log.journals.spares) == 2
    names = world.fs.listdir(f"{FOLDER}/journals")
    assert sum(name.startswith("spare-") for name in names) == 2


async def test_files_of_dead_journals_are_released_in_thread() -> None:
    """Freeing the blocks of one takes tens of milliseconds, in which nothing would be served."""
    world, partition = await started()
    world.log.journals.recycle_bytes = 4096
    await append(world, partition, 12, EPOCH_MS)
    await partition.delete_records(12)
    await world.log.checkpoint()
    before = world.fs.listdir(f"{FOLDER}/journals")
    offload(world).hold("files")
    reclaiming = asyncio.ensure_future(world.log.retention.reclaim())
    await settle()
    assert world.fs.listdir(f"{FOLDER}/journals") == before
    assert not reclaiming.done()
    assert not world.log.journals.spares
    offload(world).release("files")
    await reclaiming
    assert oldest(world) > 1
    assert len(world.log.journals.spares) == 1
    assert len(world.fs.listdir(f"{FOLDER}/journals")) < len(before)


def topics_in_journals(world: World) -> dict[str, list[str]]:
    """Topic id -> the catalog frames that name it."""
    found: dict[str, list[str]] = {}
    for journal in world.log.journals:
        assert journal.view is not None
        for item in walk(journal.view, journal.number):
            if isinstance(item, FrameShown) and item.head.kind >= journal_format.KIND_TOPIC_CREATED:
                for topic in journal_format.topics_of(item.says):
                    found.setdefault(topic["id"], []).append(item.kind)
    return found


async def test_journals_name_every_topic_after_recycling() -> None:
    world, partition = await started()
    info = world.catalog.by_name["t"]
    for _ in range(2):
        await append(world, partition, 12, EPOCH_MS)
        await partition.delete_records(partition.high_watermark)
        await world.log.checkpoint()
        await world.log.retention.reclaim()
        assert oldest(world) > 1
        assert uuid_text(info.id) in topics_in_journals(world)
        await world.restart()  # positions are not known any more
        partition = world.find("t")
    world.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "t", "retention.ms", "5"))
    world.log.alter_topic(world.catalog.by_name["t"])
    assert partition.config.retention_ms == 5
    await world.log.commit_log.wait_until_committed()
    assert topics_in_journals(world)[uuid_text(info.id)][-1] == "configs"


async def test_only_newest_catalog_frame_of_topic_is_kept() -> None:
    """Topics created together share a frame; one that was changed since is in a later journal."""
    world = World(journal_bytes=4096, recycle_bytes=1 << 20)
    await world.start()
    new = [NewTopic(name, [1], {}) for name in ("t", "changed", "same", "gone")]
    made = await world.metadata.create_topics(new)
    for info in made:
        world.catalog.add_topic(info)
    world.log.add_topics(made)
    await world.log.commit_log.wait_until_committed()
    first = topics_in_journals(world)
    assert [first[uuid_text(info.id)] for info in made] == [["topic created"]] * 4
    partition = world.find("t")
    await append(world, partition, 4, EPOCH_MS)
    world.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "changed", "retention.ms", "5"))
    world.log.alter_topic(world.catalog.by_name["changed"])
    await world.metadata.delete_topics([made[3].id])
    world.log.remove_topic(world.catalog.remove_topic(made[3].id))
    await append(world, partition, 4, EPOCH_MS)
    assert oldest(world) == 1
    assert await world.log.catalog_frames.carry(1, 2)
    await world.log.commit_log.wait_until_committed()
    newest = world.log.journals.active.number
    where = {info.name: world.catalog.described_in(info.id) for info in made[:3]}
    assert where["t"] == where["same"] == newest
    assert where["changed"] > 1
    assert not await world.log.catalog_frames.carry(1, 2)  # nothing is left in it
    frames = topics_in_journals(world)
    assert frames[uuid_text(made[1].id)] == ["topic created", "configs"]
    assert frames[uuid_text(made[2].id)] == ["topic created"] * 2
    assert frames[uuid_text(made[3].id)] == ["topic created", "topic deleted"]


async def test_journal_is_kept_while_its_topics_cannot_be_written_again() -> None:
    """The write batch with them fails, and a later commit succeeds."""
    world, partition = await started(retention_ms="1000")
    for number in range(12):
        await append(world, partition, 1, EPOCH_MS + number)
    (info,) = world.catalog.by_id.values()
    journal = world.catalog.described_in(info.id)
    frames = world.log.catalog_frames
    assert not frames.needs(journal + 1)
    world.fs.faults.failing_writes = 1
    assert await frames.carry(journal, journal + 1)
    assert frames.needs(journal)
    await world.log.commit_log.wait_until_committed()
    assert await frames.carry(journal, journal + 1)
    await world.log.commit_log.wait_until_committed()
    assert not frames.needs(journal)


async def test_failed_catalog_frames_are_written_again_after_the_next_one() -> None:
    """Requests of many topics wait between their frames: the commit before their response may be
    that of a later write batch."""
    world = World()
    await world.start()
    await world.topic("gone")
    gone = world.catalog.by_name["gone"]
    await world.metadata.delete_topics([gone.id])
    (new,) = await world.metadata.create_topics([NewTopic("new", [1], {})])
    world.fs.faults.failing_writes = 1
    world.log.remove_topic(world.catalog.remove_topic(gone.id))
    world.catalog.add_topic(new)
    world.log.add_topics([new])
    with pytest.raises(KafkaError):
        await world.log.commit_log.wait_until_committed()
    frames = topics_in_journals(world)
    assert frames == {uuid_text(gone.id): ["topic created"]}
    await world.topic("next")
    await settle()
    await world.log.commit_log.wait_until_committed()
    frames = topics_in_journals(world)
    assert frames[uuid_text(gone.id)] == ["topic created", "topic deleted"]
    assert frames[uuid_text(new.id)] == ["topic created"]
    await world.topic("last")  # nothing is owed any more
    await settle()
    await world.log.commit_log.wait_until_committed()
    frames.update({uuid_text(world.catalog.by_name["last"].id): ["topic created"]})
    assert topics_in_journals(world) == frames


async def test_idle_producers_expire_by_clock() -> None:
    world, partition = await started()
    partition.append(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await world.log.checkpoint()
    move_clock(world, 25 * HOUR_MS)
    await world.log.upkeep.expire_producers()
    assert partition.producers.states == {}
    await world.restart()
    assert world.find("t").producers.states == {}


def test_error_log_lines_name_cause_and_consequence() -> None:
    assert issubclass(journal_format.JournalFormatError, LogError)
