"""Partitions that are loaded when first used: failures, races, and the loaded state.

Covers: kafkawire.log.partition.stored_rows, kafkawire.log.partition.stored_rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kafkawire.broker.partitions import PartitionTable
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.log.manager import Log
from kafkawire.log.partition.loader import REFUSE_S, Loader, NotLoaded
from kafkawire.log.partition.partition import Partition
from kafkawire.metadata.catalog import TOPIC_RESOURCE, ConfigChange, NewTopic
from kafkawire.metadata.checkpoint import Checkpoint, PartitionCheckpoint
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import PartitionRow
from kafkawire.offsets.storage.memory import MemoryStorage
from tests.kit.env import EPOCH_MS, SettableClock
from tests.kit.log.logs import World, batch, read_all
from tests.kit.waiting import until


class Lazy(World):
    """A world in which a start loads only the partitions in the journals."""

    async def start(self, *, load: bool = False) -> Log:
        log = await super().start(load=load)
        self.table = PartitionTable(self.catalog, self.loader, 1)
        return log

    @property
    def loader(self) -> Loader:
        return self.log.loader

    def number(self, name: str, index: int = 0) -> int:
        return self.catalog.by_name[name].partitions[index].number


class Reads:
    """A layer between loader and storage: counts round trips, delays them, makes them fail."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.trips: list[list[int]] = []
        self.failure: Exception | None = None
        self.open = asyncio.Event()
        self.open.set()
        self._load = storage.load_partitions
        storage.load_partitions = self  # type: ignore[method-assign, assignment]

    async def __call__(self, numbers: list[int]) -> list[PartitionRow]:
        self.trips.append(list(numbers))
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        return await self._load(numbers)


async def quiet(names: int = 3) -> tuple[Lazy, Reads]:
    """Topics t0.. of two partitions, with no records in the journals, after a restart."""
    world = Lazy()
    await world.start()
    new = [NewTopic(f"t{n}", [1, 1], {}) for n in range(names)]
    for info in await world.metadata.create_topics(new):
        world.catalog.add_topic(info)
        world.log.add_topics([info])
    await world.log.commit_log.wait_until_committed()
    await world.restart()
    assert world.log.partitions == {}
    return world, Reads(world.storage)


async def test_new_topic_is_used_without_reading_sql() -> None:
    world = Lazy()
    await world.start()
    reads = Reads(world.storage)
    (partition,) = await world.topic("t")
    assert world.table.find_by_name("t", 0) is partition
    partition.append(batch(b"a"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    assert reads.trips == []


async def test_new_topic_that_another_broker_has_led_is_loaded() -> None:
    """It was taken for empty because it was created in this run: its offsets began at 0 again."""
    world = Lazy()
    await world.start()
    (info,) = await world.metadata.create_topics([NewTopic("t", [1], {})])
    world.catalog.add_topic(info)
    number = info.partitions[0].number
    elsewhere = PartitionCheckpoint(number, next_offset=17, log_start=3)
    await world.storage.save_checkpoint(Checkpoint(1, 0, [elsewhere]))
    world.catalog.set_leader_epochs({number: 2})
    with pytest.raises(NotLoaded):
        world.loader.get(number)
    await world.loader.load([number])
    partition = world.loader.get(number)
    assert (partition.log_start, partition.next_offset, partition.leader_epoch) == (3, 17, 2)


async def test_concurrent_requests_load_partition_once() -> None:
    world, reads = await quiet()
    with pytest.raises(NotLoaded) as missing:
        world.table.find_by_name("t0", 0)
    assert missing.value.numbers == (world.number("t0"),)
    reads.open.clear()
    first = asyncio.gather(*(world.table.load([("t0", 0)]) for _ in range(5)))
    await until(lambda: len(reads.trips) == 1)
    second = asyncio.gather(*(world.table.load([("t0", 0), ("t1", n % 2)]) for n in range(4)))
    await until(lambda: world.loader._next is not None and len(world.loader._next.numbers) == 2)
    reads.open.set()
    await asyncio.gather(first, second)
    assert reads.trips == [
        [world.number("t0")], [world.number("t1", 0), world.number("t1", 1)]
    ]  # fmt: skip
    assert world.table.find_by_name("t0", 0) is world.log.partitions[world.number("t0")]
    assert world.table.find_by_id(world.catalog.by_name["t1"].id, 1).index == 1
    with pytest.raises(NotLoaded):
        world.table.find_by_name("t2", 0)


async def test_missing_partition_is_reported_at_once() -> None:
    world, _ = await quiet(1)
    refusals: list[tuple[Callable[[], Partition], ErrorCode]] = [
        (lambda: world.table.find_by_name("t0", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: world.table.find_by_name("t0", -1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: world.table.find_by_name("no", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: world.table.find_by_id(b"i" * 16, 0), ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    for find, code in refusals:
        with pytest.raises(KafkaError) as refused:
            find()
        assert refused.value.code is code
    (other,) = await world.metadata.create_topics([NewTopic("far", [2, 1], {})])
    world.catalog.add_topic(other)
    with pytest.raises(KafkaError) as refused:
        world.table.find_by_name("far", 0)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.table.find_by_name("far", 1).index == 1


async def test_failed_load_is_reported_and_retried() -> None:
    world, reads = await quiet()
    reads.failure = MetadataError("the database is gone")
    with pytest.raises(MetadataError):
        await world.loader.load([world.number("t0")])
    for _ in range(3):
        await world.table.load([("t0", 0)])  # raises nothing, reads nothing
        with pytest.raises(KafkaError, match="the database is gone") as refused:
            world.table.find_by_name("t0", 0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(reads.trips) == 1
    with pytest.raises(NotLoaded):
        world.table.find_by_name("t1", 0)  # only what failed is refused
    reads.failure = None
    clock = world.env.clock
    assert isinstance(clock, SettableClock)
    clock.ms += int(REFUSE_S * 1000) + 10
    await world.table.load([("t0", 0)])
    assert world.table.find_by_name("t0", 0).next_offset == 0


async def test_change_of_the_leader_during_a_load_is_reported_as_that() -> None:
    """SQL has a change of the leader that the catalog has not: clients look for the new leader."""
    world, reads = await quiet()
    number = world.number("t0")
    reads.failure = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await world.table.load([("t0", 0)])
    for _ in range(3):
        with pytest.raises(KafkaError, match="leader changed") as refused:
            world.table.find_by_name("t0", 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    reads.failure = None
    await world.log.lead([number])  # it came back
    await world.table.load([("t0", 0)])
    assert world.table.find_by_name("t0", 0).next_offset == 0


async def test_topic_deleted_during_load_stays_deleted() -> None:
    world, reads = await quiet()
    number = world.number("t0")
    reads.open.clear()
    loading = asyncio.ensure_future(world.table.load([("t0", 0), ("t1", 0)]))
    while not reads.trips:  # noqa: ASYNC110
        await asyncio.sleep(0)
    info = world.catalog.by_name["t0"]
    await world.metadata.delete_topics([info.id])
    gone = world.catalog.remove_topic(info.id)
    world.table.remove(gone)
    world.log.remove_topic(gone)
    (made,) = await world.topic("t0")  # created again, with the same name
    reads.open.set()
    await loading
    assert number not in world.log.partitions
    assert world.table.find_by_name("t0", 0) is made
    assert world.table.find_by_name("t1", 0).index == 0
    with pytest.raises(KafkaError):
        world.table.find_by_id(info.id, 0)


async def test_rows_replaced_during_load_are_read_again() -> None:
    world, reads = await quiet()
    reads.open.clear()
    loading = asyncio.ensure_future(world.table.load([("t0", 0)]))
    while not reads.trips:  # noqa: ASYNC110
        await asyncio.sleep(0)
    world.log.row_version.note_replacement()
    reads.open.set()
    await loading
    assert len(reads.trips) == 2
    assert world.table.find_by_name("t0", 0).index == 0


async def test_load_restores_stored_state() -> None:
    """Offsets, log start, epochs and producers of a partition whose journals are recycled."""
    world = Lazy(journal_bytes=4096, recycle_bytes=1 << 20)
    await world.start()
    (partition,) = await world.topic("t", retention_ms="123456")
    (other,) = await world.topic("u")
    producer = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 0}
    partition.append(batch(b"a", b"b", **producer), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    await partition.delete_records(2)
    for _ in range(12):
        other.append(batch(bytes(1000)), EPOCH_MS)
        await world.log.commit_log.wait_until_committed()
    await other.delete_records(12)
    await world.log.checkpoint()
    await world.log.retention.reclaim()
    await world.restart()
    assert world.number("t") not in world.log.partitions
    await world.table.load([("t", 0)])
    found = world.table.find_by_name("t", 0)
    assert (found.next_offset, found.log_start, found.high_watermark) == (2, 2, 2)
    assert (found.epochs, list(found.producers.states)) == ([(0, 0)], [7])
    assert found.config.retention_ms == 123456
    assert found in world.log.commit_log.producing
    assert not found.dirty
    found.append(batch(b"c"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    assert await read_all(found) == [(2, b"c")]


async def test_raised_epochs_apply_to_partitions_loaded_later() -> None:
    world, _ = await quiet()
    world.config.flush = "os"
    await world.restart()
    await world.crash(power=False)
    assert [p.leader_epoch for p in world.catalog.by_name["t0"].partitions] == [1, 1]
    await world.table.load([("t0", 0)])
    found = world.table.find_by_name("t0", 0)
    assert (found.leader_epoch, found.epochs) == (1, [(1, 0)])


async def test_checkpoint_has_dirty_partitions_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkawire.log.maintenance.checkpoints.ROWS_AT_ONCE", 2)
    world = Lazy()
    await world.start()
    partitions = await world.topic("t", partitions=5)
    await world.topic("untouched")
    for partition in partitions:
        partition.append(batch(b"x"), EPOCH_MS)
    await world.log.commit_log.wait_until_committed()
    saved: list[tuple[int, list[int]]] = []
    save = world.storage.save_checkpoint

    async def note(checkpoint: Checkpoint) -> None:
        saved.append((checkpoint.log_position, [row.number for row in checkpoint.partitions]))
        if len(saved) == 2:
            raise MetadataError("just once")
        await save(checkpoint)

    monkeypatch.setattr(world.storage, "save_checkpoint", note)
    before = world.log.checkpoints.log_position
    with pytest.raises(MetadataError):
        await world.log.checkpoint()
    assert world.log.checkpoints.log_position == before
    await world.log.checkpoint()
    parts = saved[2:]
    assert [len(numbers) for _, numbers in parts] == [2, 1]  # two were stored before
    assert [log_position for log_position, _ in parts] == [before, world.log.commit_log.written]
    stored = {n for at, (_, numbers) in enumerate(saved) if at != 1 for n in numbers}
    assert stored == {partition.number for partition in partitions}
    assert world.log.commit_log.dirty == []


async def test_topics_without_settings_share_one_object() -> None:
    world = Lazy()
    await world.start()
    (one,) = await world.topic("a")
    (two,) = await world.topic("b")
    assert one.config is two.config
    for value in ("5", "6"):
        world.catalog.apply_config(ConfigChange(TOPIC_RESOURCE, "a", "retention.ms", value))
        world.log.alter_topic(world.catalog.by_name["a"])
        assert (one.config.retention_ms, two.config.retention_ms) == (int(value), 604800000)
    held: Partition = one
    config = held.config
    world.config.texts["log.retention.ms"] = "9"
    await world.log.alter_defaults()
    assert (held.config, held.config.retention_ms, two.config.retention_ms) == (config, 6, 9)


@pytest.mark.parametrize(("durability", "reported"), [("s3", False), ("local", True)])
async def test_records_may_be_in_log_objects(
    caplog: pytest.LogCaptureFixture, durability: str, reported: bool
) -> None:
    """Log objects and followers are read after the rows: their offsets were reported as lost."""
    world = Lazy()
    await world.start()
    (info,) = await world.metadata.create_topics([NewTopic("t", [1], {"durability": durability})])
    world.catalog.add_topic(info)
    number = info.partitions[0].number
    await world.storage.save_checkpoint(
        Checkpoint(1, 0, [PartitionCheckpoint(number, next_offset=17, log_start=3)])
    )
    await world.loader.load([number])
    assert ("has no row of the offsets 3-16" in caplog.text) is reported
