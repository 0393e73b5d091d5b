"""Deletion of local files that are in the remote tier: when, in order, with failures.

Covers: kafkawire.tiering.retention.local_files.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kafkawire.fsck.check import check
from kafkawire.log.segments.store import segment_store
from kafkawire.log.segments.store.segment_store import NotLocal
from kafkawire.manifest.keys import segment_key
from kafkawire.metadata.store import MetadataError
from kafkawire.offsets.catalog.port import DELETE_STARTED
from tests.kit.log.logs import FOLDER, read_all, values
from tests.kit.tier.local import GRACE_MS, HOUR_MS, LocalWorld, two_uploaded


async def test_only_uploaded_files_are_deleted_after_readers_switch() -> None:
    world = LocalWorld()
    partition = await world.begin(local_retention_ms="1000")
    await world.fill(partition, 40)
    await world.cut()
    world.later(HOUR_MS)
    await world.scan()
    assert await world.locals() == [True], "it is not in the tier"
    await world.upload()
    await world.scan()
    assert await world.locals() == [False]
    assert len(world.files()) == 1, "a reader may be reading it"
    with pytest.raises(NotLocal):
        await read_all(partition)
    world.later(GRACE_MS - 1)
    await world.scan()
    assert len(world.files()) == 1
    world.later(1)
    await world.scan()
    assert world.files() == []
    assert (world.local.evicted, world.local.files.removed) == (1, 1)
    partition = await world.again()
    assert await world.locals() == [False]
    assert await read_all(partition, partition.cut_offset)


async def test_files_within_local_retention_are_kept() -> None:
    world = await two_uploaded(local_retention_ms=str(HOUR_MS))
    await world.scan()
    assert await world.locals() == [True, True]
    border = world.find("t").segments.end[0]
    world.later(HOUR_MS + border)
    await world.scan()
    assert await world.locals() == [False, True]
    world.later(HOUR_MS)
    await world.scan()
    assert await world.locals() == [False, False]


async def test_shared_file_is_kept_for_last_of_its_partitions() -> None:
    world = LocalWorld()
    one = await world.begin(local_retention_ms="1000")
    (two,) = await world.topic("u", local_retention_ms=str(HOUR_MS))
    await world.fill(one, 5)
    await world.fill(two, 5)
    await world.cut_all()
    assert len(await world.upload()) == 1
    world.later(HOUR_MS // 2)
    await world.scan()
    assert await world.locals() == [True]
    world.later(HOUR_MS)
    await world.scan()
    assert await world.locals() == [False]


@pytest.mark.parametrize("loaded", [True, False])
async def test_local_retention_bytes_are_kept(loaded: bool) -> None:
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
    await world.scan()
    assert await world.locals() == [True, True, True]
    partition.config.local_retention_bytes -= 1
    world.local.settings_changed()
    await world.scan()
    assert await world.locals() == [False, True, True]
    partition.config.local_retention_bytes = 0
    world.later(world.config.log_retention_check_interval_ms)
    await world.scan()
    assert await world.locals() == [False, False, False], "it is checked again without a change"


async def test_changed_settings_apply_at_next_scan() -> None:
    world = await two_uploaded(local_retention_ms=str(24 * HOUR_MS))
    await world.scan()
    partition = world.find("t")
    partition.config.local_retention_ms = 1000
    world.later(HOUR_MS // 2)
    await world.scan()
    assert await world.locals() == [True, True], "no change was reported"
    world.local.settings_changed()
    await world.scan()
    assert await world.locals() == [False, False]


async def test_unreported_change_is_found_within_an_hour() -> None:
    world = await two_uploaded(local_retention_ms=str(24 * HOUR_MS))
    await world.scan()
    world.find("t").config.local_retention_ms = 1000
    world.later(HOUR_MS)
    await world.scan()
    assert await world.locals() == [False, False]


async def test_file_is_kept_after_grace_while_read() -> None:
    world = await two_uploaded(local_retention_ms="1000")
    segment = next(iter(world.log.segments.store.by_id.values()))
    segment.pins += 1
    world.later(HOUR_MS)
    for _ in range(3):
        world.later(GRACE_MS)
        await world.scan()
    assert len(world.files()) == 1
    segment.pins -= 1
    await world.scan()
    assert len(world.files()) == 1, "the grace is of the last reader"
    world.later(GRACE_MS)
    await world.scan()
    assert world.files() == []


async def two_scans(world: LocalWorld) -> None:
    await world.scan()
    world.later(GRACE_MS)
    await world.scan()


async def failing(world: LocalWorld, step: str, patch: pytest.MonkeyPatch) -> None:
    """A scan in which one step fails."""

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
            await two_scans(world)


@pytest.mark.parametrize(
    "step", ["segment_mappings", "set_local", "answer", "segments_by_id", "remove"]
)
@pytest.mark.parametrize("restarted", [False, True])
async def test_failed_step_is_repeated_at_later_scan(
    step: str, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await two_uploaded(local_retention_ms="1000")
    world.later(HOUR_MS)
    await failing(world, step, monkeypatch)
    if restarted:
        await world.again()
    for _ in range(2):
        await world.scan()
        world.later(GRACE_MS)
    await world.scan()
    assert await world.locals() == [False, False]
    assert world.files() == []


@pytest.mark.parametrize("scans", [1, 2])
@pytest.mark.parametrize("power", [True, False])
async def test_crash_between_steps_leaves_no_file_or_dangling_row(scans: int, power: bool) -> None:
    world = await two_uploaded(local_retention_ms="1000")
    world.later(HOUR_MS)
    for _ in range(scans):
        await world.scan()
        world.later(GRACE_MS)
    partition = await world.again(power)
    assert await world.locals() == [False, False]
    await world.scan()
    assert world.files() == [], "the first scan removes what is left"
    assert await read_all(partition, partition.cut_offset)
    await world.log.close()
    report = await check(world.env, FOLDER, 1, world.catalog, world.storage, world.metadata)
    assert [problem.text for problem in report.problems] == []


@pytest.mark.parametrize("restarted", [False, True])
async def test_file_is_kept_if_its_object_is_lost(restarted: bool) -> None:
    world = await two_uploaded(local_retention_ms="1000")
    before = await read_all(world.find("t"))
    world.later(HOUR_MS)
    await world.scan()
    uuids = [row.object for row in await world.rows()]
    await world.storage.delete_objects(uuids[:1], 5)
    if restarted:
        await world.again()
    else:
        world.later(GRACE_MS)
    await world.scan()
    assert await world.locals() == [True, False]
    assert len(world.files()) == 1
    partition = world.find("t")
    border = partition.segments.end[0]
    plan = partition.plan(0, 1 << 20, border, True)
    assert values(await partition.log.read(plan)) == before[:border]
    (gone,) = await world.storage.objects(1, [DELETE_STARTED], 9)
    assert gone.uuid == uuids[0]


@pytest.mark.parametrize("how", ["gone", "short"])
@pytest.mark.parametrize("when", ["before", "in the grace period", "at a start"])
async def test_file_is_kept_if_its_object_is_not_in_the_bucket(how: str, when: str) -> None:
    """The rows say that it is uploaded, and the bucket does not have it."""
    world = await two_uploaded(local_retention_ms="1000")
    before = world.files()
    row = (await world.rows())[0]
    world.later(HOUR_MS)
    if when != "before":
        await world.scan()
        assert await world.locals() == [False, False]
    if when == "at a start":
        await world.again()
    key = segment_key(row.object)
    if how == "gone":
        world.bucket.forget(key)
    else:
        world.bucket.truncate(key, 100)
    for _ in range(3):
        await world.scan()
        world.later(GRACE_MS)
    assert world.files() == [name for name in before if name.startswith(row.uuid.hex())]
    assert await world.locals() == [when != "at a start", False]
    assert [segment.row.id for segment in world.lost] == [row.id]


async def test_files_are_kept_while_the_bucket_is_away() -> None:
    world = await two_uploaded(local_retention_ms="1000")
    world.later(HOUR_MS)
    world.bucket.faults.refused = "AccessDenied"
    await world.scan()
    await world.local.relieve()
    assert await world.locals() == [True, True]
    assert len(world.files()) == 2
    assert world.bucket.requests["head"] == 2, "not asked again at once"
    world.bucket.faults.refused = ""
    world.later(GRACE_MS)
    await world.scan()
    world.later(GRACE_MS)
    await world.scan()
    assert world.files() == []


async def test_local_tier_scans_periodically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkawire.tiering.retention.local_retention.SCAN_INTERVAL_S", 0.0)
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
