"""What leaves the local disk once it is in the remote tier: when, in order, through failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.codec.configs import TopicConfig
from kafkawire.metadata.store import MetadataError
from log.fsck.check import check
from log.segments import store as segment_store
from log.segments.store import NotLocal
from offsets.storage import DELETE_STARTED, NEVER, Mapping
from tests.kit.localtier import GRACE_MS, SEGMENTS, LocalWorld
from tests.kit.logs import FOLDER, read_all, values
from tiering.localplan import LocalBytes, by_size, may_be_remote, stays_ms

HOUR_MS = 3_600_000
BROKER = {"tier.url": "s3://b/p"}


def row(number: int, base: int, end: int, newest: int = 1000, segment_id: int = 1) -> Mapping:
    length = 10 * (end - base)
    return Mapping(number, segment_id, base, end, 64, length, 0, 0, 0, newest, 1, end - base)


def config(**texts: str) -> TopicConfig:
    return TopicConfig({name.replace("_", "."): text for name, text in texts.items()}, BROKER)


def test_a_file_stays_as_long_as_one_partition_keeps_its_part() -> None:
    configs = {1: config(local_retention_ms="100"), 2: config(local_retention_ms="500")}
    rows = [row(1, 0, 5), row(2, 0, 5)]
    assert stays_ms(rows, configs.get, {}, 1000) == 501
    assert stays_ms(rows, configs.get, {}, 1500) == 1
    assert stays_ms(rows, configs.get, {}, 1501) == 0
    assert stays_ms([], configs.get, {}, 0) == 0, "nothing is in it"
    assert stays_ms([row(3, 0, 5)], configs.get, {}, 0) == 0, "its topic is deleted"
    assert stays_ms([row(1, 0, 5, newest=-1)], configs.get, {}, 9999) == NEVER
    assert stays_ms([row(1, 5, 5, newest=-1)], configs.get, {}, 9999) == 0, "compacted away"
    configs[2] = TopicConfig({"remote.storage.enable": "false"}, BROKER)
    assert stays_ms(rows, configs.get, {}, NEVER // 2) == NEVER, "it is to be here"


def test_local_retention_follows_retention_where_that_has_an_effect() -> None:
    plain = config(retention_ms="100", retention_bytes="7")
    assert (plain.local_retention_ms, plain.local_retention_bytes) == (100, 7)
    compacted = config(retention_ms="100", retention_bytes="7", cleanup_policy="compact")
    assert (compacted.local_retention_ms, compacted.local_retention_bytes) == (-1, -1)
    both = config(retention_ms="100", cleanup_policy="compact,delete")
    assert both.local_retention_ms == 100
    asked = config(local_retention_ms="50", cleanup_policy="compact")
    assert asked.local_retention_ms == 50


def test_bytes_are_counted_from_the_end_where_they_are_here() -> None:
    rows = [row(1, 0, 10, segment_id=1), row(1, 10, 20, segment_id=2), row(1, 20, 30, segment_id=3)]
    sizes = LocalBytes(rows, lambda segment_id: segment_id != 2, 7)
    assert [sizes.after(end) for end in (10, 20, 30, 15, 40)] == [107, 107, 7, 0, 0]
    assert LocalBytes([], lambda _: True, 7).after(10) == 0
    configs = {1: config(local_retention_bytes="107"), 2: config()}
    assert by_size([row(1, 0, 1), row(2, 0, 1), row(3, 0, 1)], configs.get) == {1}
    assert stays_ms(rows[:1], configs.get, {1: sizes}, 0) == 0
    configs[1] = config(local_retention_bytes="108", retention_ms="-1")
    assert stays_ms(rows[:1], configs.get, {1: sizes}, 0) == NEVER
    configs[1] = config(local_retention_bytes="0")
    assert stays_ms(rows[2:], configs.get, {1: sizes}, 0) == 0


def test_a_full_disk_takes_only_what_is_read_from_the_remote_tier() -> None:
    configs = {
        1: config(),
        2: config(tieredStorageLevel="disable"),
        3: TopicConfig({"remote.storage.enable": "false"}, BROKER),
    }
    assert may_be_remote([row(1, 0, 5), row(9, 0, 5)], configs.get)
    assert not may_be_remote([row(1, 0, 5), row(2, 0, 5)], configs.get)
    assert not may_be_remote([row(3, 0, 5)], configs.get)
    assert may_be_remote([row(3, 5, 5)], configs.get)


async def two_uploaded(**configs: str) -> LocalWorld:
    """Two segments of `t`, both in the bucket, and something in the journals."""
    world = LocalWorld()
    partition = await world.begin(**configs)
    for _ in range(2):
        await world.fill(partition, 40)
        await world.cut()
    assert len(await world.upload()) == 2
    return world


async def test_only_what_is_uploaded_leaves_and_readers_are_told_first() -> None:
    world = LocalWorld()
    partition = await world.begin(local_retention_ms="1000")
    await world.fill(partition, 40)
    await world.cut()
    world.later(HOUR_MS)
    await world.look()
    assert await world.locals() == [True], "it is nowhere else"
    await world.upload()
    await world.look()
    assert await world.locals() == [False]
    assert len(world.files()) == 1, "a reader may be at it"
    with pytest.raises(NotLocal):
        await read_all(partition)
    world.later(GRACE_MS - 1)
    await world.look()
    assert len(world.files()) == 1
    world.later(1)
    await world.look()
    assert world.files() == []
    assert (world.local.let_go, world.local.files.removed) == (1, 1)
    partition = await world.again()
    assert await world.locals() == [False]
    assert await read_all(partition, partition.cut_offset)


async def test_what_is_not_past_its_local_retention_stays() -> None:
    world = await two_uploaded(local_retention_ms=str(HOUR_MS))
    await world.look()
    assert await world.locals() == [True, True]
    border = world.find("t").segments.end[0]
    world.later(HOUR_MS + border)
    await world.look()
    assert await world.locals() == [False, True]
    world.later(HOUR_MS)
    await world.look()
    assert await world.locals() == [False, False]


async def test_a_shared_file_waits_for_the_last_of_its_partitions() -> None:
    world = LocalWorld()
    one = await world.begin(local_retention_ms="1000")
    (two,) = await world.topic("u", local_retention_ms=str(HOUR_MS))
    await world.fill(one, 5)
    await world.fill(two, 5)
    await world.cut_all()
    assert len(await world.upload()) == 1
    world.later(HOUR_MS // 2)
    await world.look()
    assert await world.locals() == [True]
    world.later(HOUR_MS)
    await world.look()
    assert await world.locals() == [False]


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_partition_keeps_as_many_bytes_as_it_is_to_have(loaded: bool) -> None:
    world = await two_uploaded()
    partition = world.find("t")
    await world.cut_all()
    await world.upload()
    sizes = list(partition.segments.length)
    assert len(sizes) == 3
    partition.config.local_retention_bytes = sizes[1] + sizes[2] + 1
    if not loaded:
        world.local._config_of = {partition.number: partition.config}.get
        del world.log.partitions[partition.number]
    await world.look()
    assert await world.locals() == [True, True, True]
    partition.config.local_retention_bytes -= 1
    world.local.settings_changed()
    await world.look()
    assert await world.locals() == [False, True, True]
    partition.config.local_retention_bytes = 0
    world.later(world.config.log_retention_check_interval_ms)
    await world.look()
    assert await world.locals() == [False, False, False], "it is looked at again by itself"


async def test_other_settings_count_at_the_next_look() -> None:
    world = await two_uploaded(local_retention_ms=str(24 * HOUR_MS))
    await world.look()
    partition = world.find("t")
    partition.config.local_retention_ms = 1000
    world.later(HOUR_MS // 2)
    await world.look()
    assert await world.locals() == [True, True], "nobody has said that they changed"
    world.local.settings_changed()
    await world.look()
    assert await world.locals() == [False, False]


async def test_a_change_that_nobody_told_of_is_found_within_an_hour() -> None:
    world = await two_uploaded(local_retention_ms=str(24 * HOUR_MS))
    await world.look()
    world.find("t").config.local_retention_ms = 1000
    world.later(HOUR_MS)
    await world.look()
    assert await world.locals() == [False, False]


async def test_a_file_outlives_its_grace_while_it_is_read() -> None:
    world = await two_uploaded(local_retention_ms="1000")
    segment = next(iter(world.log.segments.store.by_id.values()))
    segment.pins += 1
    world.later(HOUR_MS)
    for _ in range(3):
        world.later(GRACE_MS)
        await world.look()
    assert len(world.files()) == 1
    segment.pins -= 1
    await world.look()
    assert len(world.files()) == 1, "the grace is of the last reader"
    world.later(GRACE_MS)
    await world.look()
    assert world.files() == []


async def two_looks(world: LocalWorld) -> None:
    await world.look()
    world.later(GRACE_MS)
    await world.look()


async def failing(world: LocalWorld, step: str, patch: pytest.MonkeyPatch) -> None:
    """A look in which one step fails."""

    def fail(*_: Any) -> None:
        raise OSError(5, "input/output error") if step == "remove" else MetadataError("locked")

    async def fail_later(*_: Any) -> None:
        fail()

    done = world.storage.set_local

    async def done_all_the_same(*arguments: Any) -> None:
        await done(*arguments)
        fail()

    with patch.context() as broken:
        if step == "remove":
            broken.setattr(segment_store, "remove", fail)
        elif step == "answer":
            broken.setattr(world.storage, "set_local", done_all_the_same)
        else:
            broken.setattr(world.storage, step, fail_later)
        with pytest.raises((OSError, MetadataError)):
            await two_looks(world)


@pytest.mark.parametrize(
    "step", ["segment_mappings", "set_local", "answer", "segments_by_id", "remove"]
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_step_that_fails_is_done_at_a_later_look(
    step: str, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await two_uploaded(local_retention_ms="1000")
    world.later(HOUR_MS)
    await failing(world, step, monkeypatch)
    if restarted:
        await world.again()
    for _ in range(2):
        await world.look()
        world.later(GRACE_MS)
    await world.look()
    assert await world.locals() == [False, False]
    assert world.files() == []


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("power", [True, False])
async def test_a_crash_between_two_steps_leaves_no_file_and_no_dangling_row(
    looks: int, power: bool
) -> None:
    world = await two_uploaded(local_retention_ms="1000")
    world.later(HOUR_MS)
    for _ in range(looks):
        await world.look()
        world.later(GRACE_MS)
    partition = await world.again(power)
    assert await world.locals() == [False, False]
    assert world.files() == [], "the start removes what is left"
    assert await read_all(partition, partition.cut_offset)
    await world.look()
    await world.log.close()
    report = await check(world.env, FOLDER, 1, world.catalog, world.storage)
    assert [problem.text for problem in report.problems] == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_file_is_kept_when_its_object_is_lost_meanwhile(restarted: bool) -> None:
    world = await two_uploaded(local_retention_ms="1000")
    before = await read_all(world.find("t"))
    world.later(HOUR_MS)
    await world.look()
    uuids = [row.object for row in await world.rows()]
    await world.storage.delete_objects(uuids[:1], 5)
    if restarted:
        await world.again()
    else:
        world.later(GRACE_MS)
        await world.look()
    assert await world.locals() == [True, False]
    assert len(world.files()) == 1
    partition = world.find("t")
    border = partition.segments.end[0]
    plan = partition.plan(0, 1 << 20, border, True)
    assert values(await partition.log.read(plan)) == before[:border]
    (gone,) = await world.storage.objects(1, [DELETE_STARTED], 9)
    assert gone.uuid == uuids[0]


class Disk:
    """The volume of a world: so large that its segments use this much of it."""

    def __init__(self, world: LocalWorld, patch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.total = 1 << 40
        self.other = 0
        patch.setattr(world.fs, "free_bytes", self.free_bytes)

    def used(self) -> int:
        names = (f"{SEGMENTS}/{name}" for name in self.world.files())
        return self.other + sum(len(self.world.fs.files[name].data) for name in names)

    def free_bytes(self, path: str) -> tuple[int, int]:
        return self.total, self.total - self.used()


async def test_a_full_disk_takes_the_oldest_first_and_no_more_than_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded()
    await world.fill(world.find("t"), 40)
    await world.cut()
    disk = Disk(world, monkeypatch)
    sizes = [row.size_bytes for row in await world.rows()]
    assert len(sizes) == 3
    disk.total = 100_000_000
    disk.other = 89_000_000 - sum(sizes) + sizes[0]
    await world.local.relieve()
    assert await world.locals() == [False, True, True]
    assert len(world.files()) == 2, "at once"
    assert world.local.relieved_bytes == sizes[0]
    await world.local.relieve()
    assert await world.locals() == [False, True, True], "there is room"
    disk.other = 99_000_000
    await world.local.relieve()
    assert await world.locals() == [False, False, True], "the last one is nowhere else"


async def test_a_full_disk_takes_what_waits_for_its_grace_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded(local_retention_ms=str(HOUR_MS))
    world.later(HOUR_MS + world.find("t").segments.end[0])
    await world.look()
    assert await world.locals() == [False, True]
    disk = Disk(world, monkeypatch)
    disk.total, disk.other = 100_000_000, 89_000_000 - disk.used() + 1
    await world.local.relieve()
    assert await world.locals() == [False, True]
    assert len(world.files()) == 1


async def test_a_full_disk_leaves_what_is_read_or_never_read_remotely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded()
    disk = Disk(world, monkeypatch)
    disk.total, disk.other = 1000, 1000
    world.find("t").config.tiered = False
    await world.local.relieve()
    assert await world.locals() == [True, True]
    world.find("t").config.tiered = True
    segment = world.log.segments.store.by_id[1]
    segment.pins += 1
    await world.local.relieve()
    assert await world.locals() == [False, False]
    assert len(world.files()) == 1
    segment.pins -= 1
    await world.look()
    world.later(GRACE_MS)
    await world.look()
    assert world.files() == []


async def test_a_full_disk_is_relieved_before_produces_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await two_uploaded()
    world.local.start()
    disk = Disk(world, monkeypatch)
    size = disk.used()
    disk.total = 100 * size
    disk.other = 98 * size
    await world.log.upkeep._watch.measure()
    assert world.files() == []
    assert world.log.commit_log.refusal is None or disk.other >= 97 * size
    disk.other = 96 * size
    await world.log.upkeep._watch.measure()
    assert world.log.commit_log.refusal is None
    await world.local.close()
    await world.local.close()
    assert world.log.segments.relief is None


async def test_the_local_tier_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiering.local.LOOKED_EVERY_S", 0.0)
    world = await two_uploaded(local_retention_ms="1000")
    world.later(HOUR_MS)
    failures = [MetadataError("locked")]
    ask = world.storage.segment_mappings

    async def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await ask(*arguments)

    monkeypatch.setattr(world.storage, "segment_mappings", fail_once)
    world.local.start()
    for _ in range(200):
        await asyncio.sleep(0)
        world.later(GRACE_MS)
        if not world.files():
            break
    assert world.files() == []
    await world.local.close()
