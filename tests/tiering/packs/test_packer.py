"""Filter packs in a running broker: written when enough objects are in none, dropped when hardly
needed, and kill -9 at every step leaves nothing over.

Covers: kafkawire.tiering.packs, kafkawire.tiering.packs,
kafkawire.log.segments.file.pack_job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable

import pytest

from kafkawire.codec.segment.filter_pack import read_stripe
from kafkawire.codec.segment.format import KEYS, read_trailer
from kafkawire.codec.segment.key_hash import key_hash
from kafkawire.log.io.worker_jobs import no_pace
from kafkawire.log.segments.file.pack_job import PackArguments, PackInput, run
from kafkawire.manifest.keys import FILTERS, PACK_LIST, pack_key, segment_key
from kafkawire.manifest.packs import PackList, read_packs
from tests.kit.memfs import MemFileSystem
from tests.kit.tier.checks import manifest_of
from tests.kit.tier.crash_points import Points
from tests.kit.tier.life import SETTLE_S, Life
from tests.kit.tier.world import TierWorld

Act = Callable[[Life], Awaitable[None]]
IN_PACK = 4
STRIDE = 1 if int(os.environ.get("SIM_SEEDS", "100")) >= 500 else 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs of four objects."""
    for module in ("kafkawire.tiering.packs", "kafkawire.log.segments.file.pack_job"):
        monkeypatch.setattr(f"{module}.MAX_OBJECTS", IN_PACK)
    monkeypatch.setattr("kafkawire.tiering.packs.TRIED", IN_PACK + 1)


def live(act: Act, world: TierWorld | None = None, points: Points | None = None) -> TierWorld:
    life = Life(world or TierWorld(1), points or Points())

    async def main() -> None:
        await life.start()
        await act(life)
        await life.close()

    life.run(main)
    assert not life.loop.failures
    return life.world


def listed(world: TierWorld) -> PackList:
    return read_packs(world.bucket.objects[PACK_LIST])


def stored(world: TierWorld) -> list[str]:
    """The keys of packs, without the list."""
    return sorted(key for key in world.bucket.objects if key.startswith(FILTERS + "pack"))


def check_packs(world: TierWorld) -> set[bytes]:
    """Check that the bucket has the packs of its list and no others, and that they say of each
    object what its own filters say; return the objects in them."""
    packs = listed(world)
    held = [each.number for each in packs.packs] + [each.number for each in packs.obsolete]
    assert stored(world) == sorted(map(pack_key, held))
    covered: list[bytes] = []
    for pack in packs.packs:
        data = world.bucket.objects[pack_key(pack.number)]
        size = pack.shape.stripe_bytes
        assert len(data) == pack.shape.stripes * size
        stripe = read_stripe(data[:size], pack.number, pack.shape, 0)
        assert stripe.objects == pack.objects
        covered += pack.objects
    assert len(covered) == len(set(covered))
    return set(covered)


def indexed(world: TierWorld) -> set[bytes]:
    """The objects of the manifest that have a key index."""
    manifest = manifest_of(world)
    assert manifest is not None
    uuids = [manifest.objects.uuid(row) for row in range(len(manifest.objects))]
    return {uuid for uuid in uuids if _has_index(world.bucket.objects[segment_key(uuid)])}


def _has_index(data: bytes) -> bool:
    return read_trailer(data, len(data)).optional(KEYS) is not None


async def packed(life: Life) -> None:
    """Give the packer time to find what was uploaded."""
    await life.env.sleep(SETTLE_S)


async def produced(life: Life) -> None:
    await life.topic("t", index_keys_enable="true")
    await life.topic("plain")
    for _ in range(3):
        await life.produce("t")
        await life.produce("plain", 1)
    await packed(life)


def test_packs_are_written_of_indexed_objects() -> None:
    world = live(produced)
    covered = check_packs(world)
    assert len(covered) >= IN_PACK
    assert len(covered) % IN_PACK == 0
    assert covered <= indexed(world)
    assert len(indexed(world) - covered) < IN_PACK
    assert listed(world).obsolete == ()


def test_pack_has_the_keys_of_its_objects() -> None:
    async def act(life: Life) -> None:
        await life.topic("t", index_keys_enable="true")
        [row] = life.catalog.by_name["t"].partitions
        for _ in range(IN_PACK):
            partition = await life.partition(row.number)
            life.append(partition, 3)
            await life.log.commit_log.wait_until_committed()
            await life.env.sleep(2.5)
        await packed(life)
        [pack] = listed(life.world).packs
        data = life.world.bucket.objects[pack_key(pack.number)]
        stripe = read_stripe(data, pack.number, pack.shape, 0)
        for uuid in pack.objects:
            assert stripe.may_have(uuid, row.number, key_hash(b"no-such-key")) is False

    live(act)


def test_topics_without_index_cost_no_request() -> None:
    async def act(life: Life) -> None:
        await life.topic("plain")
        await life.produce("plain", 6)
        await packed(life)

    world = live(act)
    assert not [call for call in world.bucket.calls if call.key.startswith(FILTERS)]


def unpacked(monkeypatch: pytest.MonkeyPatch) -> TierWorld:
    """A bucket with indexed objects and no packs."""

    async def before(life: Life) -> None:
        await life.topic("t", index_keys_enable="true", local_retention_ms="1")
        await life.produce("t", 6)
        await packed(life)

    monkeypatch.setattr("kafkawire.tiering.packs.MAX_OBJECTS", 1000)
    world = live(before)
    assert len(indexed(world)) > IN_PACK
    assert PACK_LIST not in world.bucket.objects
    monkeypatch.setattr("kafkawire.tiering.packs.MAX_OBJECTS", IN_PACK)
    return world


def test_objects_that_left_the_disk_are_read_from_the_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after indexes were enabled by a version that wrote no packs."""

    world = unpacked(monkeypatch)

    async def after(life: Life) -> None:
        rows = [segment.row for segment in life.log.segments.store.by_id.values()]
        assert sum(not row.local for row in rows) >= IN_PACK
        await packed(life)

    live(after, world)
    assert len(check_packs(world)) >= IN_PACK


def test_packs_without_live_objects_are_deleted() -> None:
    async def act(life: Life) -> None:
        await produced(life)
        first = [each.number for each in listed(life.world).packs]
        life.world.config.tier_delete_delay_ms = 10_000_000
        await life.delete_records("t", 1)
        await packed(life)
        life.tiering.packer.rescan()
        await packed(life)
        packs = listed(life.world)
        assert [each.number for each in packs.obsolete] == first
        assert [pack_key(each) for each in first] == stored(life.world), "for readers of the list"
        life.world.clock_ms += 10_000_000
        life.tiering.packer.rescan()
        await packed(life)
        assert stored(life.world) == []
        assert listed(life.world) == PackList(first[-1] + 1)

    live(act)


def test_paused_tier_writes_no_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = unpacked(monkeypatch)
    world.config.tier_paused = True

    async def act(life: Life) -> None:
        await packed(life)
        assert PACK_LIST not in world.bucket.objects
        world.config.tier_paused = False
        await packed(life)

    assert check_packs(live(act, world))


@pytest.mark.parametrize("damage", [b"", b'{"format":1}'])
def test_damaged_list_is_written_again(damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = live(produced)
    world.bucket.store(PACK_LIST, damage)

    async def after(life: Life) -> None:
        await packed(life)

    with caplog.at_level(logging.WARNING):
        live(after, world)
    assert "the filter packs are written again" in caplog.text
    packs = listed(world)
    assert {uuid for pack in packs.packs for uuid in pack.objects} <= indexed(world)
    assert min(each.number for each in packs.packs) > 1000, "no number of an older list"


def test_list_of_a_newer_version_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = live(produced)
    newer = world.bucket.objects[PACK_LIST].replace(b'"format":1', b'"format":2')
    world.bucket.store(PACK_LIST, newer)

    async def after(life: Life) -> None:
        await life.produce("t", 6)
        await packed(life)

    with caplog.at_level(logging.WARNING):
        live(after, world)
    assert world.bucket.objects[PACK_LIST] == newer
    assert "no filter packs are written" in caplog.text


def test_list_that_another_broker_changed_is_read_again() -> None:
    async def act(life: Life) -> None:
        await produced(life)
        before = listed(life.world)
        life.world.bucket.store(PACK_LIST, life.world.bucket.objects[PACK_LIST] + b"\n")
        await life.produce("t", 6)
        await life.env.sleep(2 * SETTLE_S)
        assert len(listed(life.world).packs) > len(before.packs)

    check_packs(live(act))


async def packing(life: Life) -> None:
    """Packs are written, and dropped with their records."""
    await life.start()
    await life.topic("t", index_keys_enable="true", local_retention_ms="1")
    await life.produce("t", 2)
    life.points.on = True
    await life.produce("t", 3)
    await life.env.sleep(SETTLE_S / 2)
    await life.delete_records("t", 1)
    await life.env.sleep(SETTLE_S / 4)
    life.tiering.packer.rescan()
    await life.env.sleep(SETTLE_S / 4)


def run_until(fatal: int) -> Points:
    """One run: the first process dies at a point, the next one finishes."""
    world, points = TierWorld(1), Points(fatal)
    first = Life(world, points)

    async def begin() -> None:
        await packing(first)
        points.on = False
        await first.settle()
        await first.close()

    first.run(begin, "kill")
    if fatal < 0 or not points.dead:
        return points
    second = Life(world)

    async def go_on() -> None:
        await second.start()
        await second.settle()
        await second.produce("t", 6)
        await packed(second)
        await second.settle()
        await second.close()

    second.run(go_on)
    check_packs(world)
    return points


@pytest.mark.slow
def test_kill_at_every_step_of_packs() -> None:
    """Each request for packs: before it, once it is done, and once it is answered."""
    logging.disable(logging.CRITICAL)
    try:
        points = run_until(-1)
        near = [at for at, name in enumerate(points.names) if name.endswith(" filters")]
        assert len(near) > 10, set(points.names)
        for fatal in near[::STRIDE]:
            assert run_until(fatal).dead
    finally:
        logging.disable(logging.NOTSET)
    print(f"{len(near[::STRIDE])} of {len(near)} points")


def test_pack_job_leaves_out_damaged_and_missing_files() -> None:
    """It writes nothing unless the pack is full."""
    fs = MemFileSystem()
    file = fs.open("/damaged", create=True)
    file.pwritev([bytes(5000)], 0)
    inputs = [PackInput(b"a" * 16, "/damaged", 5000), PackInput(b"b" * 16, "/missing", 9)]
    result = run(fs, PackArguments(1, inputs, "/out"), no_pace)
    assert (result.packed, result.without) == ([], [b"a" * 16, b"b" * 16])
    with pytest.raises(FileNotFoundError):
        fs.open("/out")
