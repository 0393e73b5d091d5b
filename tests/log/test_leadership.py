"""Partitions that are resigned and gained at run time: the log's side.

Covers: kafkawire.log.leadership, kafkawire.log.maintenance.journal_end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.io.callbacks import await_callbacks
from kafkawire.log.manager import Log
from kafkawire.log.partition.loader import NotLoaded
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.offsets.catalog.port import Swap
from tests.kit.env import EPOCH_MS
from tests.kit.leaders import move
from tests.kit.log.logs import World, batch, offload, read_all
from tests.kit.waiting import settle, ticks, until

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Led(World):
    """A world in which broker 2 can be made the leader, in the catalog and in the database."""

    def give(self, *partitions: Partition, leader: int = 2) -> list[int]:
        numbers = [partition.number for partition in partitions]
        move(self.catalog, numbers, leader)
        assert self.database.catalog is not None
        move(self.database.catalog, numbers, leader)
        return numbers

    async def take_back(self, numbers: list[int]) -> list[Partition]:
        """Lead partitions again, after broker 2 has."""
        move(self.catalog, numbers, 1)
        assert self.database.catalog is not None
        move(self.database.catalog, numbers, 1)
        await self.log.lead(numbers)
        await self.log.loader.load(numbers)
        return [self.log.loader.get(number) for number in numbers]


@pytest.fixture
async def world() -> Led:
    made = Led(hot_bytes=0)
    await made.start()
    return made


async def cut_all(log: Log) -> None:
    """Cut everything into segments."""
    log.journals.prepare(again=True)
    await until(lambda: bool(log.journals.ready))
    log.commit_log.roll()
    await log.commit_log.wait_until_committed()
    await until(lambda: all(each.indexed for each in log.journals if each.rolled))
    await settle()
    assert await log.segments.cut()


async def refused(call: Awaitable[object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value.code


def append(partition: Partition, value: bytes = b"x") -> None:
    partition.append(batch(value), EPOCH_MS)


async def test_resigned_partition_refuses_appends_and_wakes_readers(world: Led) -> None:
    (partition,) = await world.topic("t")
    woken: list[bool] = []
    partition.watch(lambda gone: woken.append(gone.resigned))
    await world.log.resign(world.give(partition))
    assert woken == [True]
    for call in (
        lambda: append(partition),
        lambda: partition.append_records(batch(b"x"), EPOCH_MS),
        lambda: world.log.loader.get(partition.number),
    ):
        with pytest.raises((KafkaError, NotLoaded)) as caught:
            call()
        assert getattr(caught.value, "code", NOT_LEADER) == NOT_LEADER
    assert partition.number not in world.log.partitions
    await world.log.loader.load([partition.number])
    assert partition.number not in world.log.partitions


async def test_queued_batches_are_dropped_and_others_written(world: Led) -> None:
    gone, stays = await world.topic("t", 2)
    numbers = world.give(gone)
    resigning = asyncio.ensure_future(world.log.resign(numbers))  # its first step is before a write
    append(gone, b"gone")
    append(stays, b"stays")
    append(gone, b"gone")
    assert len(world.log.commit_log.frames) == 2
    await resigning
    assert not gone.next_offset
    await world.log.commit_log.wait_until_committed()
    assert await read_all(stays) == [(0, b"stays")]
    assert not world.log.leadership.kept


async def test_resign_waits_for_checkpoint_that_has_begun(world: Led) -> None:
    (partition,) = await world.topic("t")
    partition.mark_dirty()
    begun, go_on = asyncio.Event(), asyncio.Event()
    save = world.storage.save_checkpoint
    saved: list[list[PartitionCheckpoint]] = []

    async def slowly(checkpoint: Checkpoint) -> None:
        begun.set()
        await go_on.wait()
        await save(checkpoint)
        saved.append(list(checkpoint.partitions))

    world.storage.save_checkpoint = slowly  # type: ignore[method-assign]
    checkpoint = asyncio.ensure_future(world.log.checkpoint())
    await begun.wait()
    resigning = asyncio.ensure_future(world.log.resign([partition.number]))
    await ticks()
    assert partition.resigned
    assert not resigning.done()
    go_on.set()
    await resigning
    assert [len(each) for each in saved][:1] == [1], "it was stored before resign returned"
    await checkpoint
    partition.mark_dirty()
    await world.log.checkpoint()
    assert not any(saved[1:]), "later ones leave it out"


async def test_resign_waits_for_write_in_progress() -> None:
    world = Led(slow_write_ms=-1)
    await world.start()
    gone, stays = await world.topic("t", 2)
    append(stays)
    await await_callbacks(world.log.commit_log.after_write)  # slow: the next goes to the thread
    offload(world).hold("write")
    append(gone)
    append(stays)
    await ticks()
    resigning = asyncio.ensure_future(world.log.resign(world.give(gone)))
    await ticks()
    assert not resigning.done()
    offload(world).release("write")
    await resigning
    await world.log.commit_log.wait_until_committed()
    assert await read_all(stays) == [(0, b"x"), (1, b"x")]
    assert gone.next_offset == 1
    assert world.log.leadership.kept, "it was written before resign returned"
    assert world.log.commit_log.failed is None


async def test_cut_leaves_out_what_was_resigned_meanwhile(world: Led) -> None:
    gone, stays = await world.topic("t", 2)
    append(gone, b"old")
    append(stays, b"stays")
    await world.log.commit_log.wait_until_committed()
    finish = world.storage.finish_segments
    swaps: list[Swap] = []
    numbers = [gone.number]
    run = world.env.worker.run

    async def meanwhile(kind: str, *arguments: object) -> object:
        result = await run(kind, *arguments)  # type: ignore[arg-type]
        world.give(gone)
        await world.log.resign(numbers)
        (again,) = await world.take_back(numbers)
        append(again, b"new")  # of a later term
        await world.log.commit_log.wait_until_committed()
        return result

    async def note(swap: Swap) -> None:
        swaps.append(swap)
        await finish(swap)

    world.storage.finish_segments = note  # type: ignore[method-assign]
    world.env.worker.run = meanwhile  # type: ignore[method-assign, assignment]
    await cut_all(world.log)
    (swap,) = swaps
    assert {row.number for _, rows in swap.finished for row in rows} == {stays.number}
    again = world.log.loader.get(gone.number)
    assert await read_all(again, 1) == [(1, b"new")], "after the end in its checkpoint"
    assert await read_all(stays) == [(0, b"stays")]


async def test_gained_partition_is_loaded_from_its_rows(world: Led) -> None:
    """Rows that broker 2 stored count; nothing of the earlier term in memory does."""
    (partition,) = await world.topic("t")
    append(partition)
    append(partition)
    await cut_all(world.log)
    assert not partition.rows
    await world.log.checkpoint()
    numbers = world.give(partition)
    await world.log.resign(numbers)
    assert not world.log.leadership.kept, "everything was cut"
    other = world.metadata.storage(world.env.clock.now_ms, 2)
    row = PartitionCheckpoint(partition.number, 7, 1, [(0, 0), (1, 2)])
    await other.save_checkpoint(Checkpoint(2, 0, [row]))
    (again,) = await world.take_back(numbers)
    assert again is not partition
    assert (again.next_offset, again.log_start, again.leader_epoch) == (7, 1, 2)
    assert again.epochs == [(0, 0), (1, 2), (2, 7)]
    done = again.append(batch(b"y"), EPOCH_MS)
    assert done.base_offset == 7
    assert await refused(_append(partition)) == NOT_LEADER


async def _append(partition: Partition) -> None:
    append(partition)


async def test_load_that_began_before_resign_is_repeated(world: Led) -> None:
    (partition,) = await world.topic("t")
    numbers = world.give(partition)
    await world.log.resign(numbers)
    (partition,) = await world.take_back(numbers)
    await world.log.checkpoint()
    world.log.loader.unload(partition)
    read = world.storage.load_partitions
    go_on = asyncio.Event()
    trips: list[int] = []

    async def slowly(wanted: list[int]) -> object:
        rows = await read(wanted)
        trips.append(len(rows))
        if len(trips) == 1:
            await go_on.wait()
        return rows

    world.storage.load_partitions = slowly  # type: ignore[method-assign, assignment]
    loading = asyncio.ensure_future(world.log.loader.load(numbers))
    await until(lambda: bool(trips))
    world.give(partition)
    await world.log.resign(numbers)
    other = world.metadata.storage(world.env.clock.now_ms, 2)
    await other.save_checkpoint(Checkpoint(2, 0, [PartitionCheckpoint(numbers[0], 9, 0)]))
    move(world.catalog, numbers, 1)
    await world.log.lead(numbers)
    go_on.set()
    await loading
    assert world.log.loader.get(numbers[0]).next_offset == 9


async def test_journals_with_records_that_no_segment_has_are_kept(
    world: Led, caplog: pytest.LogCaptureFixture
) -> None:
    gone, stays = await world.topic("t", 2)
    append(gone)
    append(stays)
    await world.log.commit_log.wait_until_committed()
    first = world.log.journals.active
    with caplog.at_level(logging.WARNING):
        await world.log.resign(world.give(gone))
    (line,) = [each.getMessage() for each in caplog.records]
    assert "t-0" in line
    assert "offsets 0-0" in line
    assert first.rolled
    assert first.indexed
    await cut_all(world.log)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert first.number in world.log.journals.by_number
    world.log.remove_topic(world.catalog.remove_topic(gone.topic_id))
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    assert first.number not in world.log.journals.by_number


async def test_journal_that_cannot_be_ended_is_kept(
    world: Led, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkawire.log.maintenance.journal_end.ROLL_TRIES", 2)
    monkeypatch.setattr("kafkawire.log.maintenance.journal_end.ROLL_PAUSE_S", 0.0)
    (gone,) = await world.topic("t")
    append(gone)
    await world.log.commit_log.wait_until_committed()
    monkeypatch.setattr(type(world.log.journals), "prepare", lambda *_, **__: None)
    active = world.log.journals.active
    await world.log.resign(world.give(gone))
    assert world.log.journals.active is active
    assert active.live == 1
    assert world.log.leadership.kept == {gone.number: [active.number]}
    assert any("could not be ended" in each.getMessage() for each in caplog.records)


async def test_delete_records_of_resigned_partition(world: Led) -> None:
    (partition,) = await world.topic("t")
    append(partition)
    await world.log.commit_log.wait_until_committed()
    await world.log.resign(world.give(partition))
    assert await refused(partition.delete_records(1)) == NOT_LEADER


async def test_lead_replaces_what_is_of_an_earlier_term(world: Led) -> None:
    """Even if the change to the other leader was not seen here."""
    (partition,) = await world.topic("t")
    append(partition)
    await world.log.commit_log.wait_until_committed()
    numbers = world.give(partition)
    (again,) = await world.take_back(numbers)
    assert partition.resigned
    assert again.leader_epoch == 2
    assert again is world.log.partitions[partition.number]


async def test_nothing_happens_without_partitions(world: Led) -> None:
    before = world.log.row_version.number
    await world.log.resign([])
    await world.log.lead([])
    assert world.log.row_version.number == before
