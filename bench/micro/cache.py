"""Hit rates of the cache of remote data: by its readers' positions, and as plain LRU.

`python -m bench.micro.cache [--blocks 128] [--seconds 600]` replays traces of three groups that
read a topic of old data at different speeds, block by block, and prints a table: hit rate of LRU,
of the broker's policy, and of Belady's optimum, which knows the future. It also prints the
microseconds per block read of both. No bytes are read and time is virtual.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from typing import NamedTuple

from kafkawire.tiering.read.block_cache import BlockCache, BlockKey, CachedBlock
from kafkawire.tiering.read.readers import Readers

OFFSETS = 1000
"""Offsets in a block."""
PARTITIONS = 4


class Read(NamedTuple):
    """A group reads a block of a partition, at a time in seconds."""

    at_s: float
    group: int
    partition: int
    block: int


class Group(NamedTuple):
    """A group's blocks per second and partition, its first block, and the second of its start."""

    pace: float
    first: int
    start_s: float = 0.0


TRACES = {
    "a catch-up passes two slower groups": [Group(0.2, 60), Group(0.4, 30), Group(1.2, 0)],
    "one pace, lags of 25 and 50 blocks": [Group(0.5, 50), Group(0.5, 25), Group(0.5, 0)],
    "started together, drift apart": [Group(0.45, 0), Group(0.5, 0), Group(0.55, 0)],
    "started one after another": [Group(0.5, 0), Group(0.6, 0, 60), Group(0.75, 0, 120)],
    "far apart, no block is shared in time": [Group(0.5, 900), Group(0.4, 450), Group(0.3, 0)],
}
"""The groups of each trace."""


def trace(groups: list[Group], seconds: float) -> list[Read]:
    """All reads in the order of time; each gap between two varies by half."""
    rng = random.Random(1)
    reads = []
    for number, group in enumerate(groups):
        for partition in range(PARTITIONS):
            at, block = group.start_s + rng.random() / group.pace, group.first
            while at < seconds:
                reads.append(Read(at, number, partition, block))
                at += rng.uniform(0.5, 1.5) / group.pace
                block += 1
    return sorted(reads)


def replay(reads: list[Read], blocks: int, by_readers: bool) -> tuple[float, float]:
    """Return the hit rate of the cache, and its microseconds per read."""
    readers, now, hits = Readers(), [0.0], 0
    memory = memoryview(bytearray(blocks))
    cache = BlockCache(memory, 1, readers if by_readers else None, lambda: now[0])
    begun = time.perf_counter()
    for read in reads:
        now[0] = read.at_s
        key = BlockKey(bytes([read.partition]), read.block)
        offset = read.block * OFFSETS
        if cache.find(key) is not None:
            hits += 1
        else:
            block = CachedBlock(key, 1, None)
            (block.at,) = cache.room(1)
            block.offsets = read.partition, offset, offset + OFFSETS
            cache.add(block)
        readers.note_read(read.partition, offset, offset + OFFSETS, read.at_s)
    return hits / len(reads), (time.perf_counter() - begun) / len(reads) * 1e6


def optimum(reads: list[Read], blocks: int) -> float:
    """Return the hit rate of Belady's algorithm: evict the block whose next read is the latest."""
    times: dict[tuple[int, int], list[float]] = defaultdict(list)
    for read in reversed(reads):
        times[read.partition, read.block].append(read.at_s)
    cached: set[tuple[int, int]] = set()
    hits = 0
    for read in reads:
        key = read.partition, read.block
        times[key].pop()
        hits += key in cached
        cached.add(key)
        if len(cached) > blocks:
            cached.remove(max(cached, key=lambda each: (times[each] or [float("inf")])[-1]))
    return hits / len(reads)


def main() -> None:
    """Replay the traces and print the table."""
    parser = argparse.ArgumentParser(description="Hit rates of the cache of remote data.")
    parser.add_argument("--blocks", type=int, default=128, help="size of the cache (128)")
    parser.add_argument("--seconds", type=float, default=600, help="length of each trace (600)")
    options = parser.parse_args()
    print(f"{'hit rates':40} {'LRU':>6} {'ours':>6} {'best':>6}    µs: LRU   ours")
    for name, groups in TRACES.items():
        reads = trace(groups, options.seconds)
        (lru, lru_us), (ours, us) = (replay(reads, options.blocks, by) for by in (False, True))
        best = optimum(reads, options.blocks)
        print(f"{name:40} {lru:6.1%} {ours:6.1%} {best:6.1%} {lru_us:10.1f} {us:6.1f}")


if __name__ == "__main__":
    main()
