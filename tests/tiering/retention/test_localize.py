"""Remote segments downloaded as files for the rewriter, and deleted again.

Covers: kafkawire.log.segments.merge.fetch_remote, kafkawire.log.segments.store.remote_tier,
kafkawire.tiering.retention.local_files, kafkawire.log.segments.store.remote_tier.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.codec.segment.format import TAIL_BYTES
from kafkawire.log.segments.store.segment_store import NotLocal, Segment
from kafkawire.manifest.keys import segment_key
from kafkawire.offsets.catalog.port import DELETING, LIVE, ObjectRow
from tests.kit import simloop
from tests.kit.log.cutting import expected
from tests.kit.log.logs import read_all
from tests.kit.tier.local import GRACE_MS, HOUR_MS, LocalWorld, remote, tend
from tests.kit.waiting import settle, until


async def one_remote(**configs: str) -> tuple[LocalWorld, Segment]:
    world = LocalWorld()
    partition = await world.begin(**configs)
    await world.fill(partition, 40)
    await world.cut()
    (segment,) = await remote(world)
    assert world.files() == []
    return world, segment


async def test_segment_is_downloaded_and_deleted_after_grace() -> None:
    world, segment = await one_remote()
    segment.pins += 1
    await world.local.files.localize([segment])
    (name,) = world.files()
    assert name == segment.name + ".segment"
    assert not segment.row.local
    with pytest.raises(NotLocal):
        await read_all(world.find("t"), 0)
    for _ in range(2):
        world.later(GRACE_MS)
        await world.scan()
    assert world.files() == [name], "a job reads it"
    segment.pins -= 1
    await world.scan()
    assert world.files() == [name]
    await world.local.files.localize([segment])
    assert world.local.files.downloads == 1, "it was still local"
    world.later(GRACE_MS)
    await world.scan()
    assert world.files() == []


def test_concurrent_jobs_share_one_download() -> None:
    """In virtual time: on a real loop the download may end while the machine is busy."""
    simloop.run(simloop.SimLoop(), _concurrent_jobs_share_one_download())


async def _concurrent_jobs_share_one_download() -> None:
    world, segment = await one_remote()
    world.bucket.faults.delay_s = (0.01, 0.01)
    segment.pins += 2
    calls = [asyncio.ensure_future(world.local.files.localize([segment])) for _ in range(2)]
    await settle()
    calls[0].cancel()
    segment.pins -= 1
    await calls[1]
    assert calls[0].cancelled()
    assert world.local.files.downloads == 1
    assert len(world.files()) == 1
    segment.pins -= 1


def test_file_of_cancelled_job_is_deleted() -> None:
    """In virtual time: on a real loop the download may end while the machine is busy."""
    simloop.run(simloop.SimLoop(), _file_of_cancelled_job_is_deleted())


async def _file_of_cancelled_job_is_deleted() -> None:
    world, segment = await one_remote()
    world.bucket.faults.delay_s = (0.01, 0.01)
    segment.pins += 1
    call = asyncio.ensure_future(world.local.files.localize([segment]))
    await settle()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    segment.pins -= 1
    assert segment.pins == 1, "the download goes on"
    await until(lambda: not segment.pins)
    for _ in range(2):
        await world.scan()
        world.later(GRACE_MS)
    assert world.files() == []


@pytest.mark.parametrize("fault", ["down", "forgotten", "truncated", "other", "no object", "tier"])
async def test_failed_download_leaves_no_file(fault: str) -> None:
    world, segment = await one_remote()
    key = segment_key(segment.row.object)
    if fault == "down":
        world.bucket.faults.down = True
        world.bucket.faults.timeout_s = 0.0
    elif fault == "forgotten":
        world.bucket.forget(key)
    elif fault == "truncated":
        world.bucket.truncate(key, 1000)
    elif fault == "other":
        world.bucket.store(key, bytes(segment.row.size_bytes))
    elif fault == "no object":
        segment.row.object = b""
    else:
        segment.row.tier = 3
    segment.pins += 1
    with pytest.raises(KafkaError) as caught:
        await world.local.files.localize([segment])
    short = fault == "truncated"
    code = ErrorCode.CORRUPT_MESSAGE if short else ErrorCode.KAFKA_STORAGE_ERROR
    assert caught.value.code is code
    assert segment.name in str(caught.value)
    assert world.local.files.failures == 1
    segment.pins -= 1
    await world.scan()
    await world.scan()
    assert world.files() == []
    assert await world.locals() == [False], "a broken download leaves no file"


async def test_failed_download_is_repeated() -> None:
    world, segment = await one_remote()
    key = segment_key(segment.row.object)
    whole = world.bucket.objects[key]
    world.bucket.truncate(key, 1000)
    segment.pins += 1
    with pytest.raises(KafkaError):
        await world.local.files.localize([segment])
    world.bucket.store(key, whole)
    await world.local.files.localize([segment])
    assert len(world.files()) == 1
    segment.pins -= 1


async def test_object_moved_meanwhile_is_found() -> None:
    world, segment = await one_remote()
    old = segment.row.object
    moved = ObjectRow(b"m" * 16, segment.row.id, 1)
    world.bucket.store(segment_key(moved.uuid), world.bucket.objects[segment_key(old)])
    await world.storage.relocate_objects({old: moved})
    world.bucket.forget(segment_key(old))
    segment.pins += 1
    await world.local.files.localize([segment])
    assert len(world.files()) == 1
    assert segment.row.object == moved.uuid
    segment.pins -= 1


async def test_full_disk_refuses_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    world, segment = await one_remote()
    monkeypatch.setattr(world.fs, "free_bytes", lambda path: (1 << 40, 256 << 20))
    segment.pins += 1
    with pytest.raises(OSError, match="do not fit"):
        await world.local.files.localize([segment])
    assert world.local.files.downloads == 0
    segment.pins -= 1


async def test_crash_during_job_leaves_no_file() -> None:
    world, segment = await one_remote()
    segment.pins += 1
    await world.local.files.localize([segment])
    world.fs.sync_dir(world.log.segments.folder)
    await world.again(power=False)
    await world.scan()
    assert world.files() == []
    assert await world.locals() == [False]


async def test_small_range_is_read_by_a_request() -> None:
    world, segment = await one_remote()
    whole = world.bucket.objects[segment_key(segment.row.object)]
    files = world.local.files
    assert await files.read(segment, 100, 8) == whole[100:108]
    assert await files.read(segment, -10, 10) == whole[-10:]
    with pytest.raises(KafkaError, match="ends after 0 of 8 bytes"):
        await files.read(segment, len(whole), 8)
    world.bucket.forget(segment_key(segment.row.object))
    with pytest.raises(KafkaError, match="NoSuchKey"):
        await files.read(segment, 0, 8)


async def half_dead(world: LocalWorld, **configs: str) -> Segment:
    """A remote segment of two partitions; more than half of it is below a log start."""
    one = await world.begin(**configs)
    (two,) = await world.topic("u", 1, **configs)
    await world.fill(one, 20)
    await world.fill(two, 5)
    await world.cut_all()
    (segment,) = await remote(world)
    await one.delete_records(20)
    await world.log.segments.deletion.run_pending()
    assert 0 < 2 * segment.row.live_bytes < segment.payload_bytes
    return segment


@pytest.mark.parametrize("restarted", [False, True])
async def test_half_dead_remote_segment_is_fetched_and_rewritten(restarted: bool) -> None:
    world = LocalWorld()
    segment = await half_dead(world)
    if restarted:
        await world.again()
        assert world.log.segments.store.by_id[segment.row.id].payload_bytes == -1
    await tend(world)
    rows = {row.generation: row for row in await world.storage.segments(1, (LIVE, DELETING), 9)}
    assert (rows[0].state, rows[1].state, rows[1].local) == (DELETING, LIVE, True)
    assert await read_all(world.find("u")) == expected(0, 5)
    assert [row.uuid for row in await world.storage.unneeded_objects(1, 9)] == [rows[0].object]
    world.later(GRACE_MS + 1000)
    await tend(world)
    assert world.files() == [rows[1].uuid.hex() + ".segment"]
    assert all(each.pins == 0 for each in world.log.segments.store.by_id.values())
    assert world.local.files.downloads == 1


async def test_nothing_is_fetched_for_topics_with_copy_disabled() -> None:
    world = LocalWorld()
    await half_dead(world, remote_log_copy_disable="true")
    await tend(world)
    assert world.local.files.downloads == 0
    assert [row.generation for row in await world.rows()] == [0]


async def test_remote_segments_are_unchanged_without_tier() -> None:
    world = LocalWorld()
    await half_dead(world)
    world.log.segments.remote.detach_files()
    await tend(world)
    assert [row.generation for row in await world.rows()] == [0]


async def test_unfetchable_segment_is_retried_later() -> None:
    world = LocalWorld()
    segment = await half_dead(world)
    world.bucket.faults.down = True
    world.bucket.faults.timeout_s = 0.0
    await tend(world)
    assert world.local.files.downloads == 1
    assert segment.pins == 0
    world.bucket.faults.down = False
    await tend(world)
    assert world.local.files.downloads == 1
    world.later(HOUR_MS)
    await tend(world)
    assert world.local.files.downloads == 2
    assert sorted(row.generation for row in await world.rows()) == [1]


def test_unneeded_downloaded_segment_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time: on a real loop the download may end while the machine is busy."""
    monkeypatch.setattr("kafkawire.log.segments.merge.merger.FETCH_WAIT_S", 0.0)
    simloop.run(simloop.SimLoop(), _unneeded_downloaded_segment_is_released())


async def _unneeded_downloaded_segment_is_released() -> None:
    world = LocalWorld()
    segment = await half_dead(world)
    world.bucket.faults.delay_s = (0.01, 0.01)
    await world.log.segments.tend()
    assert segment.pins > 0
    await world.find("u").delete_records(5)
    await world.log.segments.deletion.run_pending()
    assert segment.row.state == DELETING
    await until(lambda: segment.pins == 1)
    await tend(world)
    assert segment.pins == 0
    world.later(GRACE_MS + 1000)
    await tend(world)
    assert world.files() == []
    assert await world.storage.segments(1, (LIVE, DELETING), 9) == []


@pytest.mark.slow
async def test_size_is_requested_only_for_doubtful_remote_segments() -> None:
    world = LocalWorld()
    partition = await world.begin()
    for _ in range(2):
        await world.fill(partition, 40)
        await world.cut()
    await remote(world)
    await partition.delete_records(partition.segments.base[1] + 1)
    await partition.delete_records(partition.segments.end[0])
    await world.again()
    before = world.bucket.requests["get"]
    await tend(world)
    assert world.bucket.requests["get"] == before, "an idle bucket is not asked"


async def test_size_of_tiny_segment_is_requested_once() -> None:
    world = LocalWorld()
    one = await world.begin()
    (two,) = await world.topic("u", 1)
    await world.fill(one, 2)
    await world.fill(two, 1)
    await world.cut_all()
    (segment,) = await remote(world)
    assert segment.row.size_bytes < TAIL_BYTES
    had = segment.payload_bytes
    await one.delete_records(1)
    await one.delete_records(2)
    await world.log.segments.deletion.run_pending()
    await world.again()
    world.config.segment_dead_max_ms = 1 << 40
    before = world.bucket.requests["get"]
    await world.log.segments.rewriter.find_candidates(1 << 30)
    await settle()
    assert world.log.segments.store.by_id[segment.row.id].payload_bytes == had
    await world.log.segments.rewriter.find_candidates(1 << 30)
    await settle()
    assert world.bucket.requests["get"] == before + 1


async def test_lost_object_is_not_requested_at_each_scan() -> None:
    world = LocalWorld()
    segment = await half_dead(world)
    world.bucket.forget(segment_key(segment.row.object))
    await world.again()
    before = world.bucket.requests["get"]
    await tend(world, 5)
    assert world.bucket.requests["get"] == before + 1
    world.later(HOUR_MS)
    await tend(world, 5)
    assert world.bucket.requests["get"] == before + 2


@pytest.mark.parametrize("prices", ["free", "aws-s3-standard", "OUT_GB=90000000"])
async def test_remote_segments_are_fetched_for_worthwhile_merges(
    monkeypatch: pytest.MonkeyPatch, prices: str
) -> None:
    monkeypatch.setattr("kafkawire.log.segments.merge.plan.MAX_SMALL", 6)
    world = LocalWorld(tier_prices=prices)
    partition = await world.begin()
    for _ in range(6):
        await world.fill(partition, 20)
        await world.cut()
    ids = [row.id for row in await world.rows()]
    await remote(world, *ids[:3])
    await tend(world)
    rows = {row.id: row for row in await world.rows()}
    if prices.startswith("OUT_GB"):
        assert world.local.files.downloads == 0
        assert set(ids) == set(rows), "too few are local"
    else:
        assert world.local.files.downloads == 3
        assert rows.keys().isdisjoint(ids[:6])
        assert sorted(row.generation for row in rows.values())[-1] == 1
        assert await read_all(partition) == expected(0, 120)
    assert all(each.pins == 0 for each in world.log.segments.store.by_id.values())
