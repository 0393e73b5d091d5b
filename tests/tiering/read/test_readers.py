"""Eviction by the positions of readers: estimates, reasons, bounds, and hit rates."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.micro import cache as bench
from kafkawire.tiering.read.block_cache import BlockCache, BlockKey, CachedBlock, EvictionReason
from kafkawire.tiering.read.readers import (
    MAX_PARTITIONS,
    READERS_PER_PARTITION,
    SILENT_S,
    Readers,
)
from tests.kit.log.segments import split
from tests.kit.tier.cold import BLOCK_BYTES, ColdWorld, gets, prepared, simulated, take


def test_block_is_needed_when_slowest_or_nearest_reader_arrives() -> None:
    readers = Readers()
    for second in range(5):
        readers.note_read(1, second * 10, second * 10 + 10, float(second))  # 10 offsets a second
        readers.note_read(1, 500 + second, 501 + second, float(second))
    assert readers.seconds_until_read(1, 100, 200, 4.0) == pytest.approx(5)
    assert readers.seconds_until_read(1, 100, 200, 6.0) == pytest.approx(3)
    assert readers.seconds_until_read(1, 40, 60, 4.0) == 0  # it reads there
    assert readers.seconds_until_read(1, 510, 600, 4.0) == pytest.approx(5)  # the nearer one
    assert readers.seconds_until_read(1, 505, 600, 4.0) == 0
    assert readers.seconds_until_read(1, 495, 505, 4.0) == pytest.approx(44.5)  # by the other
    assert readers.seconds_until_read(1, 495, 506, 4.0) == 0
    assert Readers().seconds_until_read(1, 0, 10, 4.0) is None
    assert readers.seconds_until_read(2, 0, 10, 4.0) is None


def test_silent_reader_is_ignored() -> None:
    readers = Readers()
    readers.note_read(1, 0, 10, 0.0)
    assert readers.seconds_until_read(1, 50, 60, SILENT_S) is not None
    assert readers.seconds_until_read(1, 50, 60, SILENT_S + 1) is None


def test_two_readers_at_one_offset_are_distinguished_once_one_moves() -> None:
    readers = Readers()
    for _ in range(2):
        readers.note_read(1, 0, 10, 0.0)
    readers.note_read(1, 10, 20, 1.0)
    assert readers.seconds_until_read(1, 5, 15, 1.0) == 0
    readers.note_read(1, 10, 20, 1.0)
    assert readers.seconds_until_read(1, 5, 15, 1.0) is None


def test_memory_for_positions_is_bounded() -> None:
    readers = Readers()
    for number in range(MAX_PARTITIONS + 50):
        readers.note_read(0, 0, 5, 1.0)
        for offset in range(READERS_PER_PARTITION + 3):
            readers.note_read(number, offset * 100, offset * 100 + 1, float(offset))
    assert len(readers) == MAX_PARTITIONS * READERS_PER_PARTITION
    # The latest partitions and readers are kept.
    assert readers.seconds_until_read(1, 2000, 2001, 10.0) is None
    assert readers.seconds_until_read(0, 2000, 2001, 10.0) is not None
    assert readers.seconds_until_read(MAX_PARTITIONS, 1000, 1002, 10.0) == 0
    assert readers.seconds_until_read(MAX_PARTITIONS, 50, 101, 10.0) is None


def filled(readers: Readers, now: list[float], blocks: int) -> BlockCache:
    """A cache full of blocks of partition 1, each with 10 offsets, used one after another."""
    cache = BlockCache(memoryview(bytearray(blocks)), 1, readers, lambda: now[0])
    for number in range(blocks):
        add(cache, number)
    return cache


def add(cache: BlockCache, number: int) -> CachedBlock:
    block = CachedBlock(BlockKey(b"o", number), 1, None)
    (block.at,) = cache.room(1)
    block.offsets = 1, number * 10, number * 10 + 10
    cache.add(block)
    return block


def test_passed_block_is_evicted_first_then_the_one_needed_last() -> None:
    readers, now = Readers(), [0.0]
    cache = filled(readers, now, 6)
    for second in range(3):
        readers.note_read(1, second * 10, second * 10 + 10, float(second))
    now[0] = 2.0
    # The reader is at 30, in block 3. Blocks 0 to 2 are passed; block 0 was used again since.
    assert cache.find(BlockKey(b"o", 0))
    order: list[int] = []
    for number in range(100, 105):
        kept = {key.block for key in cache._blocks}
        add(cache, number).offsets = None
        now[0] += 0.01
        cache.find(BlockKey(b"o", number))
        order += kept - {key.block for key in cache._blocks}
    assert order == [1, 2, 0, 5, 4]
    assert cache.evicted == {EvictionReason.PASSED: 3, EvictionReason.NEEDED_LATER: 2}


def test_chosen_block_that_is_used_or_pinned_meanwhile_is_not_evicted() -> None:
    readers, now = Readers(), [0.0]
    cache = filled(readers, now, 48)  # three are chosen at a time
    cache.give_back(cache.room(1))
    assert BlockKey(b"o", 0) not in cache
    add(cache, 100)
    now[0] = 1.0
    assert cache.find(BlockKey(b"o", 1))
    pinned = cache.find(BlockKey(b"o", 2))
    assert pinned is not None
    pinned.used_at, pinned.users = 0.0, 1
    add(cache, 101)
    assert BlockKey(b"o", 1) in cache
    assert BlockKey(b"o", 2) in cache
    assert BlockKey(b"o", 3) not in cache


def test_free_memory_is_found_when_all_ranked_blocks_are_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafkawire.tiering.read.block_cache.MAX_RANKED", 2)
    cache = filled(Readers(), [0.0], 6)
    for number in (0, 1, 2, 3, 5):  # 0 and 3 are ranked
        block = cache.peek(BlockKey(b"o", number))
        assert block is not None
        block.users = 1
    assert len(cache.room(2)) == 1


def test_three_groups_hit_nearly_as_often_as_possible() -> None:
    """The trace of the bench: LRU keeps nothing that the slower groups could use."""
    reads = bench.trace(bench.TRACES["one pace, lags of 25 and 50 blocks"], 300)
    lru, ours = (bench.replay(reads, 128, by)[0] for by in (False, True))
    assert lru < 0.05
    assert ours > 0.8 * bench.optimum(reads, 128)


def test_cache_knows_offsets_of_blocks_of_one_partition() -> None:
    async def main(world: ColdWorld) -> None:
        await world.start()
        for name in ("t", "u"):
            await world.topic(name)
            await world.fill(name, 200)
        await world.cut()
        await world.remote(world.segments())
        cache = world.open_tier(blocks=32).tier(0).cache
        for offset in (0, 100, 199):
            assert (await take(world, "t", offset, 1000))[0]
        found = {key.block: block.offsets for key, block in cache._blocks.items()}
        size = len((await take(world, "t", 5, 1))[0])
        border = max(found)  # with batches of both partitions
        assert found.pop(border) is None
        assert len(found) >= 3
        for block, offsets in found.items():
            assert offsets is not None
            _, first, end = offsets
            # The first and the last offset whose index block begins in the block.
            assert 0 <= first - block * BLOCK_BYTES / size < 8
            assert end == 200 or 0 <= end - (block + 1) * BLOCK_BYTES / size < 8

    simulated(main)


@pytest.mark.parametrize("knows", [True, False])
def test_lagging_reader_finds_blocks_that_another_has_read(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of another topic fills the cache with blocks that no reader will need. Without
    positions (`knows`) they replace those between the two readers of `t`."""
    if not knows:
        monkeypatch.setattr(Readers, "note_read", lambda *_: None)
        monkeypatch.setattr(Readers, "seconds_until_read", lambda *_: None)

    async def main(world: ColdWorld) -> None:
        await prepared(world, count=1200, cuts=1)
        await world.topic("u")
        await world.fill("u", 1200)
        await world.cut()
        await world.remote(world.segments())
        cold = world.open_tier(blocks=24)
        offsets = {"first": 0, "last": 0, "other": 0}
        requests = dict.fromkeys(offsets, 0)

        async def step(reader: str, topic: str) -> None:
            before = gets(world)
            data, _ = await take(world, topic, offsets[reader], 4000)
            requests[reader] += gets(world) - before
            offsets[reader] += len(split(data))
            await world.env.sleep(0.5)

        while offsets["first"] < 1100 and offsets["other"] < 1100:
            await step("first", "t")
            await step("other", "u")
            if offsets["first"] > 200:  # seven blocks of 16 KiB
                await step("last", "t")
        assert offsets["last"] > 800
        evicted = sum((cache.evicted for cache in cold.caches), Counter[EvictionReason]())
        assert evicted[EvictionReason.PASSED] > 20
        if knows:
            assert requests["last"] <= 2
        else:
            assert requests["last"] > 15

    simulated(main)
