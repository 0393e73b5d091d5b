"""The cost of planning a job over a whole large cluster: manifest read, bounds, parts, tasks.

python -m bench.micro.plan [--objects 100000] [--entries 10] [--partitions 10000] [--deltas 64]

The tier is a folder with a manifest (no segment is read) of objects that each hold a share of some
random partitions, a snapshot and some deltas. Then the steps of a driver: open the catalog, ask for
the bounds of every partition, for its part, and split all of that into tasks; and pickle them, as
Spark does. Prints a Markdown table; the target is less than 5 seconds of wall time.
"""

from __future__ import annotations

import argparse
import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from typing import TypeVar

from bench.micro.manifest import World
from kafkawire.manifest.fold import empty, fold
from kafkawire.manifest.format import pack
from kafkawire.manifest.keys import CURRENT, delta_key, snapshot_key
from kafkawire.manifest.reader import Current, pack_current
from kafkawire.manifest.state import ClusterFacts, Delta, ManifestTopic
from kafkawire.reading.catalog import open_catalog
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import PartitionRange, Source
from kafkawire.reading.plan import plan_tasks

T = TypeVar("T")
WANTED_S = 5.0
MADE_MS = 1_700_000_000_000


def fill(place: Place, objects: int, entries: int, partitions: int, deltas: int) -> None:
    """Write the manifest."""
    world = World(partitions, entries)
    first = Delta(1, "c", 1, 1, MADE_MS, ClusterFacts(partitions + 1))
    per_topic = max(1, min(10, partitions))
    first.topics = [
        ManifestTopic(
            number.to_bytes(16, "big"), f"topic-{number}", False, 1, {},
            tuple(range(number, min(number + per_topic, partitions + 1))),
        )
        for number in range(1, partitions + 1, per_topic)
    ]  # fmt: skip
    for _ in range(objects):
        world.add(first)
    world.state(first)
    place.put(snapshot_key(1), pack(fold(empty("c", 1, 1, 0, 0), [first])))
    for number in range(2, deltas + 2):
        delta = Delta(number, "c", 1, 1, MADE_MS + number)
        world.add(delta)
        place.put(delta_key(number), pack(delta))
    place.put(CURRENT, pack_current(Current(1)))


def timed(what: str, work: Callable[[], T], total: list[float]) -> T:
    """Time a call, print a row, and add its seconds: of wall time, of CPU time."""
    begun, worked = time.perf_counter(), time.process_time()
    result = work()
    spent = time.perf_counter() - begun, time.process_time() - worked
    print(f"| {what} | {spent[0]:.2f} | {spent[1]:.2f} |")
    total[:] = [all_of_it + one for all_of_it, one in zip(total, spent, strict=True)]
    return result


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--deltas", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = open_place(folder)
        fill(place, options.objects, options.entries, options.partitions, options.deltas)
        total = [0.0, 0.0]
        print("| | s | CPU s |")
        print("|---|--:|--:|")
        catalog = timed("open the catalog", lambda: open_catalog(Source(place.url)), total)
        ranges = timed(
            "topics, and bounds of all partitions",
            lambda: [
                PartitionRange(topic, partition, *catalog.bounds(topic, partition)[::2])
                for topic, count in catalog.topics.items()
                for partition in range(count)
            ],
            total,
        )
        parts = timed("parts", lambda: catalog.parts(ranges), total)
        tasks = timed("tasks", lambda: plan_tasks(parts), total)
        print(f"| together (wanted: less than {WANTED_S:g}) | {total[0]:.2f} | {total[1]:.2f} |")
        size = timed("pickle them", lambda: sum(len(pickle.dumps(task)) for task in tasks), total)
        again = timed("open it again, with nothing new", catalog.refresh_catalog, total)
        pieces = sum(len(part.pieces) for part in parts)
        assert sum(len(part.pieces) for task in tasks for part in task.parts) >= pieces
        assert again.topics == catalog.topics
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        f"\n{options.objects} segments, {pieces} pieces in {len(parts)} partitions, "
        f"{len(tasks)} tasks of {sum(part.size_bytes for part in parts) / 1e9:.1f} GB, "
        f"{size / 1e6:.0f} MB pickled; at most {used} MB of memory"
    )


if __name__ == "__main__":
    main()
