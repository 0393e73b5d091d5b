"""The components of cold reads: cache, read-ahead, hedging, pieces."""

from __future__ import annotations

import gc
import random
from collections.abc import Sequence

import pytest
from crc32c import crc32c

from kafkawire.codec.segment.index import SparseIndex, write_index
from kafkawire.log.io.ports import Env
from kafkawire.tiering.read.batch_stream import blocks_of, piece_end
from kafkawire.tiering.read.block_cache import BlockCache, BlockKey, CachedBlock
from kafkawire.tiering.read.hedging import FEWEST, KEPT, Durations, Hedge
from kafkawire.tiering.read.loader import Loads, runs
from kafkawire.tiering.read.readahead import (
    MAX_READERS,
    MAX_WINDOW_BLOCKS,
    WINDOWS_PER_PARTITION,
    ReadAhead,
    ReadaheadWindow,
)
from kafkawire.tiering.read.requests import ColdCounts, Object, Requests
from kafkawire.tiering.store.port import ObjectPart
from tests.kit.env import sim_env
from tests.kit.log.logs import settings
from tests.kit.memfs import MemFileSystem
from tests.kit.simloop import SimLoop, run
from tests.kit.tier.fake_bucket import FakeBucket
from tests.kit.tier.fake_store import FakeStore

# -- Cache


def loaded(cache: BlockCache, number: int) -> CachedBlock:
    """A loaded block whose bytes are all its number."""
    block = CachedBlock(BlockKey(b"o", number), cache.block_bytes, None)
    (block.at,) = cache.room(1)
    cache.add(block)
    cache._memory[block.at : block.at + cache.block_bytes] = bytes([number]) * cache.block_bytes
    return block


def numbers(cache: BlockCache) -> list[int]:
    return [key.block for key in cache._blocks]


def test_least_recently_used_block_is_evicted_first() -> None:
    cache = BlockCache(memoryview(bytearray(30)), 10)
    for number in range(3):
        loaded(cache, number)
    assert cache.find(BlockKey(b"o", 0))
    loaded(cache, 3)
    assert numbers(cache) == [2, 0, 3]
    assert BlockKey(b"o", 1) not in cache


def test_block_with_views_stays_until_last_is_released() -> None:
    cache = BlockCache(memoryview(bytearray(40)), 10)
    first = loaded(cache, 7)
    view = cache.view(first, 2, 6)
    part = view[1:3]
    for number in range(10, 19):
        loaded(cache, number)
    del view
    assert cache.find(first.key) is first
    assert bytes(part) == b"\7\7"
    assert cache.leased == 1
    del part
    assert cache.leased == 0
    for number in range(20, 24):
        loaded(cache, number)
    assert cache.find(first.key) is None


def test_copies_are_returned_beyond_half_of_cache() -> None:
    cache = BlockCache(memoryview(bytearray(40)), 10)
    blocks = [loaded(cache, number) for number in range(4)]
    views = [cache.view(block, 0, 10) for block in blocks]
    assert cache.leased == 2
    again = cache.view(blocks[0], 0, 10)  # held anyway
    for block in blocks:
        cache._memory[block.at : block.at + 10] = bytes(10)
    assert [bytes(view[:1]) for view in views] == [b"\0", b"\0", b"\2", b"\3"]
    assert bytes(again) == bytes(10)
    assert all(view.readonly for view in views)


def test_cache_is_full_of_blocks_in_use_or_loading() -> None:
    cache = BlockCache(memoryview(bytearray(20)), 10)
    one, other = loaded(cache, 1), loaded(cache, 2)
    one.users, view = 1, cache.view(other, 0, 1)
    assert cache.room(1) == []
    one.users = 0
    assert cache.room(2) == [one.at]
    del view


@pytest.mark.slow
def test_removed_block_releases_slot_without_views() -> None:
    cache = BlockCache(memoryview(bytearray(20)), 10)
    block = loaded(cache, 1)
    view = cache.view(block, 0, 10)
    cache.remove(block)
    assert cache.find(block.key) is None
    assert len(cache.room(2)) == 1
    assert bytes(view) == b"\1" * 10
    del view
    gc.collect()
    assert cache.room(2) == [block.at]


def test_eviction_of_unread_block_is_reported_to_reader() -> None:
    cache = BlockCache(memoryview(bytearray(20)), 10)
    window = ReadaheadWindow(1, 0, 0.0)
    window.blocks = 8
    for number in range(4):
        loaded(cache, number).ahead = window
    assert cache.evicted_unread == 2
    assert window.blocks == 4  # both were of one window


# -- Read-ahead


def test_window_opens_on_sequential_read_grows_and_halves() -> None:
    ahead = ReadAhead(1000)
    window = ahead.open_window(1, 0, 0.0)
    assert ahead.room(window, 0.0) == 0
    ahead.went(window, 0, 10, 0.0)
    assert ahead.find(1, 10) is window
    ahead.went(window, 10, 20, 0.0)
    assert ahead.room(window, 0.0) == 2
    window.note_used()
    assert ahead.room(window, 0.0) == 3
    for _ in range(100):
        window.note_used()
    assert ahead.room(window, 0.0) == MAX_WINDOW_BLOCKS
    for _ in range(MAX_WINDOW_BLOCKS + 1):
        window.unread()  # one for all of the same window
    assert window.blocks == MAX_WINDOW_BLOCKS // 2
    for _ in range(100):
        window.unread()
    assert window.blocks == 1


def test_only_close_readers_share_a_window() -> None:
    ahead = ReadAhead(1000)
    window = ahead.open_window(1, 0, 0.0)
    for offset in range(0, 50, 10):
        ahead.went(window, offset, offset + 10, 0.0)
    assert ahead.find(1, 50) is window
    assert ahead.find(1, 20) is window  # another group, after it
    ahead.went(window, 20, 30, 0.0)
    assert window.next_offset == 50
    assert ahead.find(1, 51) is None
    assert ahead.find(2, 20) is None
    for offset in range(50, 500, 10):
        ahead.went(window, offset, offset + 10, 0.0)
    assert ahead.find(1, 20) is None  # by now too far behind
    other = ahead.open_window(1, 20, 0.0)
    assert ahead.find(1, 20) is other
    assert ahead.find(1, 500) is window


def test_window_follows_reader_that_continues() -> None:
    ahead = ReadAhead(1000)
    near, exact = ahead.open_window(1, 0, 0.0), ahead.open_window(1, 10, 0.0)
    ahead.went(near, 0, 20, 0.0)
    assert near.covers(10)
    assert ahead.find(1, 10) is exact


def test_windows_share_cache_and_are_bounded() -> None:
    ahead = ReadAhead(32)
    windows = [ahead.open_window(number, 0, 0.0) for number in range(8)]
    for window in windows:
        window.blocks = MAX_WINDOW_BLOCKS
    assert sum(ahead.room(window, 0.0) for window in windows) == 16
    ahead.went(windows[3], 0, 10, 100.0)  # all others are idle
    assert ahead.room(windows[3], 100.0) == 16
    for offset in range(WINDOWS_PER_PARTITION + 5):
        ahead.open_window(99, 1000 * offset, 100.0 + offset)
    assert len(ahead) == 8 + WINDOWS_PER_PARTITION
    assert ahead.find(99, 0) is None
    for number in range(2 * MAX_READERS):
        ahead.open_window(1000 + number, 0, 200.0)
    assert len(ahead) == MAX_READERS
    assert ahead.find(99, 12_000) is None


# -- Hedging


def test_percentile_of_last_durations() -> None:
    durations = Durations()
    for n in range(FEWEST - 1):
        durations.add(n)
    assert durations.percentile(50) is None
    rng = random.Random(1)
    last = [rng.random() for _ in range(3 * KEPT)]
    for seconds in last:
        durations.add(seconds)
    kept = sorted(last[-KEPT:])
    assert durations.percentile(95) == kept[int(KEPT * 0.95)]
    assert durations.percentile(100) == kept[-1]


def test_hedged_requests_are_at_most_a_twentieth() -> None:
    hedge = Hedge()
    taken = 0
    for _ in range(10_000):
        hedge.hedge_delay(1, 95)
        hedge.add_duration(1, 0.1)
        taken += hedge.use_allowance()
    assert 450 < taken <= 500
    assert hedge.hedge_delay(1, 95) == 0.1
    assert hedge.hedge_delay(1, 100) is None  # switched off
    assert hedge.hedge_delay(2, 95) is None  # no durations are known for this size


class SlowStore(FakeStore):
    """Requests with these numbers take ten seconds, and then write their result."""

    def __init__(self, bucket: FakeBucket, env: Env, memory_bytes: int) -> None:
        super().__init__(bucket, None, memory_bytes)
        self.env = env
        self.slow: set[int] = set()
        self.count = 0

    async def read(self, key: str, parts: Sequence[ObjectPart]) -> None:
        self.count += 1
        await self.env.sleep(10 if self.count in self.slow else 0.1 - self.count * 1e-4)
        await super().read(key, parts)


def test_slow_request_is_hedged_and_writes_only_to_its_slots() -> None:
    loop = SimLoop()
    env = sim_env(loop, random.Random(0), MemFileSystem())
    bucket = FakeBucket()
    bucket.store(Object(b"o" * 16, 0).key, bytes(n // 10 % 251 for n in range(1000)))
    store = SlowStore(bucket, env, 60)
    config = settings(tier_hedge_percentile=95)
    counts = ColdCounts()
    cache = BlockCache(store.memory, 10)
    loads = Loads(env, Requests(env, store, config, counts), cache, config)
    target = Object(b"o" * 16, 1000)

    async def get(number: int) -> float:
        began = env.clock.monotonic()
        block = await loads.get(target, number, None)
        assert block is not None
        assert bytes(cache.view(block, 0, 10)) == bytes([number % 251]) * 10
        return env.clock.monotonic() - began

    async def main() -> None:
        for number in range(40):
            assert await get(number) < 0.2
        store.slow = {store.count + 1}
        assert await get(40) < 0.3
        assert counts.hedged == counts.hedges_won == 1
        for number in range(41, 60):  # every slot is used again while the slow request is in flight
            assert await get(number) < 0.2
        places = cache.room(6)
        assert len(places) == 5  # all but its own
        cache.give_back(places)
        await env.sleep(20)
        places = cache.room(6)
        assert len(places) == 6
        cache.give_back(places)
        store.slow = {store.count + n for n in range(1, 100)}
        assert await get(70) > 9  # not more often than it may

    run(loop, main())


# -- Requests


def test_requests_cover_contiguous_blocks_of_equal_size() -> None:
    assert list(runs([1, 2, 3, 4, 7, 8], 2)) == [[1, 2], [3, 4], [7, 8]]
    assert [len(run) for run in runs(range(9), 8)] == [4, 5]
    assert [len(run) for run in runs(range(17), 100)] == [5, 6, 6]  # never above the bound
    assert list(runs([], 4)) == []
    for count in range(1, 60):
        for size in range(1, 9):
            found = list(runs(range(count), size))
            assert [n for run in found for n in run] == list(range(count))
            lengths = {len(run) for run in found}
            assert max(lengths) - min(lengths) <= 1
            assert max(lengths) <= 8


# -- Pieces


def test_pieces_cover_range_within_single_blocks() -> None:
    rng = random.Random(3)
    for _ in range(200):
        lengths = [rng.choice((50, 100, 130, 700)) for _ in range(rng.randrange(1, 40))]
        start, size = rng.randrange(300), rng.choice((100, 256, 1000))
        most = rng.choice((80, 300, 10_000))
        positions = [sum(lengths[:n]) for n in range(len(lengths))]
        body = write_index(range(len(lengths)), positions, [0] * len(lengths), [0] * len(lengths))
        index = sparse(body, start, sum(lengths))
        borders = [start + at for at in positions] + [start + sum(lengths)]
        first = rng.randrange(len(lengths))
        limit = borders[rng.randrange(first + 1, len(borders))]
        position = borders[first]
        while position < limit:
            end = piece_end(index, position, limit, size, most)
            assert position < end <= limit
            assert end in borders
            inside = len(blocks_of(position, end, size)) == 1
            alone = borders.index(end) == borders.index(position) + 1
            assert end - position <= most or alone
            assert inside or alone
            position = end
        if limit < borders[-1]:
            assert piece_end(index, limit, limit, size, most) == borders[borders.index(limit) + 1]


def sparse(body: bytes, start: int, length: int) -> SparseIndex:
    return SparseIndex(body, start, length, 0, crc32c(body))
