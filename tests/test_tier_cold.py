"""Cold reads: the same bytes wherever segments lie, within the limits, whatever goes wrong."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest

from kafkawire.codec.batches import iter_batches
from kafkawire.codec.configs import TierLevel
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.manifest.keys import segment_key
from log.env import Buffer
from log.segments.remote import local_log_start
from offsets.storage import ObjectRow
from tests.kit.cold import BLOCK_BYTES, ColdWorld, simulated, take
from tests.kit.env import EPOCH_MS
from tests.kit.fakestore import Hook
from tests.kit.segments import split


async def prepared(world: ColdWorld, count: int = 120, size: int = 500, cuts: int = 3) -> None:
    """A topic `t` in some segments, and the last records in the journals."""
    await world.start()
    await world.topic("t")
    for _ in range(cuts):
        await world.fill("t", count // cuts, size)
        await world.cut()
    await world.fill("t", 5, size)


async def whole(world: ColdWorld, name: str = "t") -> list[bytes]:
    """Every batch, as it is read now."""
    partition = world.find(name)
    found: list[bytes] = []
    offset = partition.log_start
    while offset < partition.high_watermark:
        data, _ = await take(world, name, offset)
        found += split(data)
        offset = next(iter(iter_batches(found[-1])))[1].last_offset + 1
    return found


@pytest.mark.parametrize("seed", range(8))
def test_reads_are_the_same_wherever_segments_lie(seed: int) -> None:
    async def main(world: ColdWorld) -> None:
        rng = random.Random(seed)
        await prepared(world, size=rng.choice((60, 500, 3000)))
        batches = await whole(world)
        segments = world.segments()
        assert len(segments) == 3
        await world.remote(rng.sample(segments, rng.choice((1, 2, 3))), local=rng.random() < 0.2)
        world.open_tier(rng.choice((1, 2, 5, 64)), rng.choice((4096, 10_000, BLOCK_BYTES)))
        for _ in range(60):
            offset = rng.randrange(len(batches))
            room = rng.choice((0, 100, 700, 5000, 1 << 20))
            first = rng.random() < 0.8
            data, size = await take(world, "t", offset, room, first=first)
            assert size == len(data)
            got = split(data)
            assert got == batches[offset : offset + len(got)]
            assert len(data) <= room or (first and len(got) == 1)
            assert got or not first
            assert world.cold.tier(0).cache.leased <= len(world.cold.tier(0).cache)
        assert await whole(world) == batches

    simulated(main, seed)


@pytest.mark.parametrize("seed", range(12))
def test_many_readers_at_once_over_a_small_cache_and_a_bad_storage(seed: int) -> None:
    """Some give up, some never look at what they got; the bytes are right and places come back."""

    async def main(world: ColdWorld) -> None:
        rng = random.Random(seed)
        await prepared(world, count=300)
        batches = await whole(world)
        await world.remote(world.segments())
        faults = world.bucket.faults
        faults.delay_s, faults.error_rate = (0.0, 0.3), rng.choice((0.0, 0.1))
        world.config.tier_hedge_percentile = rng.choice((50, 95, 100))
        blocks = rng.choice((1, 2, 3, 8, 30))
        cold = world.open_tier(blocks)
        cache, partition = cold.tier(0).cache, world.find("t")
        held: list[tuple[int, list[Buffer]]] = []

        async def reader() -> None:
            offset = rng.randrange(300)
            for _ in range(rng.randrange(1, 12)):
                room = rng.choice((0, 2000, 30_000))
                plan = partition.plan(offset, room, partition.high_watermark, True)
                plan.patience_s = rng.choice((None, 0.0, 0.05, 1.0))
                views = await partition.log.read(plan)
                held.append((offset, views))
                assert len(cache) <= blocks
                offset += len(split(b"".join(views)))
                if offset >= 300:
                    return
                await world.env.sleep(rng.choice((0.0, 0.01, 0.5)))
                if rng.random() < 0.8:
                    held.pop(rng.randrange(len(held)))

        tasks = [world.env.spawn(reader(), f"reader {n}") for n in range(25)]
        for task in rng.sample(tasks, 8):
            await world.env.sleep(rng.random() / 4)
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            assert task.cancelled() or task.exception() is None
        for offset, views in held:
            got = split(b"".join(views))
            assert got == batches[offset : offset + len(got)]
        held.clear()
        tasks.clear()
        await world.env.sleep(60)
        del task, views
        gc.collect()
        assert cache.leased == 0
        places = cache.room(blocks)
        assert sorted(places) == [at * BLOCK_BYTES for at in range(blocks)]

    simulated(main, seed)


# -- How long a first byte takes, and how often the storage is asked


def gets(world: ColdWorld) -> int:
    return world.bucket.requests["get"]


def test_the_first_byte_takes_two_round_trips_and_what_follows_none() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=600, cuts=1)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.5, 0.5)  # a second there and back
        world.open_tier(blocks=64)
        for offset, trips in [(300, 2), (301, 0), (0, 1), (2, 0)]:
            began = world.env.clock.monotonic()
            data, _ = await take(world, "t", offset, 1000)
            assert data
            assert round(world.env.clock.monotonic() - began) == trips

    simulated(main)


def test_a_row_is_begun_and_a_small_one_taken_within_one_round_trip() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=30)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.5, 0.5)
        world.open_tier(block_bytes=64 << 10)
        for offset in (0, 15):
            began = world.env.clock.monotonic()
            assert (await take(world, "t", offset, 1000))[0]
            assert round(world.env.clock.monotonic() - began) == 1

    simulated(main)


def test_readers_of_the_same_bytes_share_one_request() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=90)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.1, 0.2)
        world.open_tier()
        reads = [world.env.spawn(take(world, "t", 40, 900), f"reader {n}") for n in range(20)]
        answers = {(await read)[0] for read in reads}
        assert len(answers) == 1
        assert gets(world) == 2  # index and data

    simulated(main)


def test_a_reader_that_goes_on_is_read_ahead_for_over_the_border_of_segments() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=900)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.05, 0.05)
        world.open_tier(blocks=200)
        offset, waits, began = 0, 0, world.env.clock.monotonic()
        while offset < 900:
            before = world.env.clock.monotonic()
            got = split((await take(world, "t", offset, 4000))[0])
            assert got == batches[offset : offset + len(got)]
            offset += len(got)
            waits += world.env.clock.monotonic() > before
            await world.env.sleep(0.02)  # what a client does with it
        reads = 900 * len(batches[0]) / 4000
        assert waits < reads / 4
        assert world.env.clock.monotonic() - began < reads * 0.05  # a round trip takes 0.1
        assert gets(world) < reads / 2

    simulated(main)


def test_who_jumps_about_is_not_read_ahead_for() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=900, cuts=1)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=200)
        rng = random.Random(1)
        for _ in range(30):
            await take(world, "t", rng.randrange(880), 100)
        loaded = len(cold.tier(0).cache) * BLOCK_BYTES
        assert cold.counts.bytes_read < loaded + (64 << 10)  # and the index
        assert loaded <= 30 * 4 * BLOCK_BYTES  # the slack before and behind each

    simulated(main)


# -- Patience


def test_a_read_that_is_not_answered_in_time_is_empty_and_its_load_is_not_wasted() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.4, 0.4)
        cold = world.open_tier()
        began = world.env.clock.monotonic()
        assert await take(world, "t", 3, 600, patience_s=0.5) == (b"", 0)
        assert 0.5 <= world.env.clock.monotonic() - began < 0.51
        assert cold.counts.late == 1
        await world.env.sleep(2)
        asked = gets(world)
        assert asked == 2
        assert (await take(world, "t", 3, 600, patience_s=0.0))[0] == batches[3]
        assert gets(world) == asked

    simulated(main)


def test_a_cancelled_read_leaves_nothing_behind_and_its_load_goes_on() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.delay_s = (0.2, 0.2)
        cold = world.open_tier(blocks=4)
        for delay in (0.0, 0.1, 0.41, 0.7):
            read = world.env.spawn(take(world, "t", 70, 600), "read")
            await world.env.sleep(delay)
            read.cancel()
        await world.env.sleep(5)
        cache = cold.tier(0).cache
        assert cache.leased == 0
        assert len(cache.room(4)) == 4  # every place is free, or can be made so
        cache.give_back([at * BLOCK_BYTES for at in range(4)])
        assert (await take(world, "t", 70, 600))[0] == batches[70]

    simulated(main)


def test_what_is_in_hand_is_not_kept_waiting_for_more() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        first, second, _ = world.segments()
        await world.remote([second])
        world.bucket.faults.delay_s = (5, 5)
        world.open_tier()
        began = world.env.clock.monotonic()
        got = split((await take(world, "t", 35))[0])
        assert got == batches[35:40]
        assert world.env.clock.monotonic() - began < 1
        assert first.row.local

    simulated(main)


# -- Bounds


def test_held_views_take_half_of_the_cache_and_others_go_on() -> None:
    """Answers of clients that do not read: their bytes stay as they were."""

    async def main(world: ColdWorld) -> None:
        await prepared(world, count=900, cuts=1)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=8)
        partition = world.find("t")
        held: list[tuple[int, list[Buffer]]] = []
        for offset in range(0, 900, 15):
            plan = partition.plan(offset, 2000, partition.high_watermark, True)
            held.append((offset, await partition.log.read(plan)))
            assert cold.tier(0).cache.leased <= 4
            assert len(cold.tier(0).cache) <= 8
        assert cold.tier(0).cache.leased == 4
        for offset, views in held:
            got = split(b"".join(views))
            assert got
            assert got == batches[offset : offset + len(got)]
        del held, views, plan
        gc.collect()
        assert cold.tier(0).cache.leased == 0

    simulated(main)


def test_a_batch_larger_than_the_whole_cache_is_read() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=12, size=40_000)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=2)
        assert await whole(world) == batches
        assert cold.tier(0).cache.slots * BLOCK_BYTES < len(batches[0])

    simulated(main)


def test_reads_keep_to_the_rate_limit() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=300)
        await world.remote(world.segments())
        cold = world.open_tier(blocks=2)
        world.config.remote_log_manager_fetch_max_bytes_per_second = 20_000
        began = world.env.clock.monotonic()
        for offset in range(0, 300, 10):
            await take(world, "t", offset, 100)
        seconds = world.env.clock.monotonic() - began
        assert cold.counts.bytes_read > 100_000
        assert seconds >= (cold.counts.bytes_read - 2 * BLOCK_BYTES) / 20_000 - 1

    simulated(main)


# -- What goes wrong


def test_errors_are_tried_again_and_nobody_sees_them() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        faults = world.bucket.faults
        faults.error_rate = faults.slow_down_rate = faults.lost_rate = faults.partial_rate = 0.15
        faults.delay_s = (0.01, 0.2)
        cold = world.open_tier(blocks=4)
        for _ in range(3):
            assert await whole(world) == batches
            for block in [*cold.tier(0).cache._blocks.values()]:
                cold.tier(0).cache.remove(block)
        assert cold.counts.failed > 5

    for seed in range(4):
        simulated(main, seed)


def test_a_storage_that_is_down_is_said_after_a_while_and_then_waited_for() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        world.bucket.faults.down, world.bucket.faults.timeout_s = True, 0.3
        world.open_tier()
        assert await take(world, "t", 3, patience_s=0.5) == (b"", 0)  # it may be slow alone
        await world.env.sleep(5)
        with pytest.raises(KafkaError, match=r"t-0 at offset 3.*EndpointConnectionError") as told:
            await take(world, "t", 3, patience_s=0.5)
        assert told.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        began = world.env.clock.monotonic()
        with pytest.raises(KafkaError):
            await take(world, "t", 50)  # as long as it takes: until it has failed
        assert 25 < world.env.clock.monotonic() - began < 60
        world.bucket.faults.down = False
        await world.env.sleep(6)
        assert await whole(world) == batches

    simulated(main)


@pytest.mark.parametrize("harm", ["forgotten", "truncated", "damaged", "index", "refused"])
def test_an_object_that_cannot_be_read_is_named_and_all_others_are(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        key = f"segments/{world.segments()[1].row.object.hex()}.segment"
        mapping = world.find("t").segments.mapping(world.find("t").number, 1)
        data = bytearray(world.bucket.objects[key])
        if harm == "forgotten":
            world.bucket.forget(key)
        elif harm == "truncated":
            world.bucket.truncate(key, mapping.start + 100)
        elif harm == "refused":
            world.bucket.hook = refuse(world, key)
        else:
            at = mapping.start + 200 if harm == "damaged" else mapping.index_start + 5
            data[at] ^= 1
            world.bucket.store(key, bytes(data))
        cold = world.open_tier()
        with pytest.raises(KafkaError, match=f"{key}, t-0 at offset 40") as told:
            await take(world, "t", 40, 600)
        assert told.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        for offset in (0, 39, 80, 119, 122):
            assert (await take(world, "t", offset, 600))[0] == batches[offset]
        got = split((await take(world, "t", 38))[0])
        assert got == batches[38:40]  # what lies before it
        assert cold.counts.gone == (harm == "forgotten")
        asked = gets(world)
        with pytest.raises(KafkaError):
            await take(world, "t", 40, 600)
        assert harm != "refused" or gets(world) == asked  # nobody asks again at once
        named = [r for r in caplog.records if r.levelname == "ERROR" and key in r.message]
        assert len(named) == 1

    simulated(main)


def refuse(world: ColdWorld, key: str) -> Hook:
    """No permission for one object."""

    def hook(moment: str, kind: str, asked: str) -> None:
        if moment == "call":
            world.bucket.faults.refused = "AccessDenied" if asked == key else ""

    return hook


def test_damage_on_the_way_is_read_again() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier()
        assert (await take(world, "t", 3, 600))[0] == batches[3]
        for block in cold.tier(0).cache._blocks.values():
            world.remote_store.memory[block.at + 2000] ^= 1
            block.checked = (0, 0)
        assert await whole(world) == batches
        assert cold.counts.damaged

    simulated(main)


def test_an_object_that_was_replaced_is_looked_up_once_more() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments())
        cold = world.open_tier()
        for segment in world.segments():
            old = segment.row
            uuid = world.env.random.randbytes(16)
            data = world.bucket.objects[segment_key(old.object)]
            world.bucket.store(segment_key(uuid), data)
            moved = ObjectRow(uuid, old.id, 1, tier=1, size_bytes=old.size_bytes, state=1)
            await world.storage.relocate_objects({old.object: moved})
            world.bucket.forget(segment_key(old.object))
            assert segment.row is old  # memory has not heard of it
        assert await whole(world) == batches
        assert cold.counts.gone == 0
        assert {segment.row.tier for segment in world.segments()} == {1}

    simulated(main)


# -- Levels


@pytest.mark.parametrize("level", TierLevel)
@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("in_memory", [True, False])
def test_the_level_says_where_is_read(level: TierLevel, local: bool, in_memory: bool) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments(), local=local)
        world.open_tier()
        world.find("t").config.tier_level = level
        world.fs.cold = not in_memory
        if not local and level is TierLevel.DISABLE:
            with pytest.raises(KafkaError, match="tieredStorageLevel is disable"):
                await take(world, "t", 3)
            assert not gets(world)
            return
        assert await whole(world) == batches
        wanted = not local or level is TierLevel.FORCE
        wanted |= level is TierLevel.NOT_IN_MEM and not in_memory
        assert bool(gets(world)) == wanted

    simulated(main)


@pytest.mark.parametrize("down", [True, False])
def test_a_local_file_serves_what_the_tier_cannot(down: bool) -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world)
        batches = await whole(world)
        await world.remote(world.segments(), local=True)
        world.find("t").config.tier_level = TierLevel.FORCE
        world.open_tier()
        world.bucket.faults.down, world.bucket.faults.delay_s = down, (2, 2)
        data, _ = await take(world, "t", 3, 600, patience_s=0.5)
        assert data == batches[3]
        assert world.log.segments.warm.fallbacks == 1

    simulated(main)


def test_times_are_found_in_the_tier() -> None:
    async def main(world: ColdWorld) -> None:
        await prepared(world, count=300)
        segments = world.segments()
        await world.remote([segments[0], segments[2]])
        world.open_tier()
        partition = world.find("t")
        for offset in (0, 7, 99, 100, 150, 199, 200, 250, 299, 302):
            found = await partition.offset_for_time(EPOCH_MS + offset)
            assert found == (offset, EPOCH_MS + offset)
        assert await partition.max_timestamp() == (304, EPOCH_MS + 304)
        assert await partition.offset_for_time(EPOCH_MS + 305) is None
        assert local_log_start(partition, world.log.segments.store) == 300

    simulated(main)
