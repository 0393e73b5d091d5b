"""The cost of the manifest of a large bucket: packing, folding, reading, planning, outlining.

python bench/micro/manifest.py [--objects 100000] [--entries 10] [--partitions 10000]

Prints a Markdown table. Everything on one core, in memory; the manifest consists of objects that
each hold a share of some random partitions, and is folded with 64 small deltas.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from kafkawire.log.local_manifest.job import outline
from kafkawire.manifest.columns import Entry, ManifestObject, ManifestPartition
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.fold import empty, fold
from kafkawire.manifest.format import pack, unpack
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic, Snapshot

T = TypeVar("T")
EPOCHS = b"\1" + bytes(12)
DELTAS = 64


class World:
    """Objects like those of uploads."""

    def __init__(self, partitions: int, entries: int) -> None:
        self.rng = random.Random(1)
        self.ends = [0] * (partitions + 1)
        self.entries = entries

    def add(self, delta: Delta) -> None:
        """One more object, and the ends of its partitions."""
        rng, start = self.rng, 64
        row = ManifestObject(
            rng.randbytes(16), rng.randbytes(16), 0, 1, 8 << 20, delta.created_ms, 1,
            delta.objects.class_at("tiered"), self.entries,
        )  # fmt: skip
        delta.objects.append(row)
        for _ in range(self.entries):
            number, count = rng.randrange(1, len(self.ends)), rng.randrange(1, 1000)
            base = self.ends[number]
            entry = Entry(
                number, base, base + count, start, count * 100, 8 << 20, 28 * (count // 40 + 1),
                rng.getrandbits(32), delta.created_ms + base, count // 10 + 1, count,
            )  # fmt: skip
            delta.entries.append(entry)
            self.ends[number] = base + count
            start += count * 100

    def state(self, delta: Delta) -> None:
        """All partitions as they are now."""
        for number in range(1, len(self.ends)):
            delta.partitions.append(ManifestPartition(number, 0, self.ends[number], EPOCHS))


def timed(what: str, work: Callable[[], T]) -> T:
    """Time a call and print a row."""
    begun = time.process_time()
    result = work()
    print(f"| {what} | {time.process_time() - begun:.2f} |")
    return result


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=10_000)
    options = parser.parse_args()
    world = World(options.partitions, options.entries)
    first = Delta(1, "c", 1, 1, 1_700_000_000_000, ClusterFacts(options.partitions + 1))
    first.topics = [
        ManifestTopic(number.to_bytes(16, "big"), f"topic-{number}", False, 1, {}, (number,))
        for number in range(1, options.partitions + 1)
    ]
    for _ in range(options.objects):
        world.add(first)
    world.state(first)
    start = fold(empty("c", 1, 1, 0, 0), [first])
    deltas = [Delta(n, "c", 1, 1, first.created_ms + n) for n in range(2, DELTAS + 2)]
    for delta in deltas:
        world.add(delta)
    print("| | CPU s |")
    print("|---|--:|")
    data = timed("pack a snapshot", lambda: pack(start))
    state = timed("read it", lambda: unpack(data))
    assert isinstance(state, Snapshot)
    timed(f"fold {DELTAS} deltas into it", lambda: fold(state, deltas))
    timed("outline it, for a start of the broker", lambda: outline(state))
    manifest = Manifest(state)
    spans = timed(
        "plan all partitions",
        lambda: sum(len(manifest.spans(number)) for number in manifest.numbers),
    )
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"\n{len(state.objects)} objects, {len(state.entries)} entries, {spans} spans, "
        f"{len(data) / 1e6:.1f} MB; at most {used} MB of memory"
    )


if __name__ == "__main__":
    main()
