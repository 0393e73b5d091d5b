"""The cost of cleaning a compacted partition: the job `compact` on segments of a real folder.

`python bench/micro/compact.py [MEBIBYTES]` writes a segment of 1 KB records in 16 KB batches, as
keyed updates drawn at random from half as many keys, and cleans it: once as all dirty, once with
the cleaned half and a dirty half of new updates, once with LZ4 batches, once with 100-byte records.
It prints megabytes of input (unpacked) a second of CPU and of wall time, the best of three runs,
and the peak memory of the process. Bounded: some hundred megabytes in a temporary folder, deleted
at the end.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass

from kafkawire.codec.batches import Record, pack
from kafkawire.codec.compression import LZ4, NONE
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.worker_jobs import SegmentOutput, entries_of, no_pace
from kafkawire.log.io.worker_jobs import pack as pack_items
from kafkawire.log.segments.compact.job import run
from kafkawire.log.segments.compact.messages import (
    CompactArguments,
    CompactResult,
    CompactSource,
    PartitionToClean,
)
from kafkawire.log.segments.file.writer import SegmentWriter
from kafkawire.metadata.checkpoint import pack_epochs, pack_producers

BATCH_BYTES = 16 << 10
RECORD_BYTES = 24
"""Bytes of a record here without its value."""
NOW_MS = 1_700_000_000_000


@dataclass(slots=True)
class Load:
    """The data to write: this many bytes of records of one size, over this many keys."""

    name: str
    value_bytes: int
    codec: int
    mebibytes: int


def state() -> PartitionState:
    return PartitionState(0, pack_epochs([]), pack_producers([]), [])


def write_source(
    fs: DiskFileSystem, folder: str, load: Load, base: int, seed: int
) -> CompactSource:
    """One segment of random updates from offset `base` on."""
    rng = random.Random(seed)
    uuid = os.urandom(16)
    path = os.path.join(folder, uuid.hex() + ".segment")
    writer = SegmentWriter(fs, SegmentOutput(path, uuid), 1, NOW_MS)
    writer.start_partition(1, (bytes(16), "bench", 0), base, state())
    each = max(1, BATCH_BYTES // (load.value_bytes + RECORD_BYTES))
    count = load.mebibytes * (1 << 20) // (load.value_bytes + RECORD_BYTES)
    value = rng.randbytes(load.value_bytes // 2) + bytes(load.value_bytes - load.value_bytes // 2)
    offset = base
    while offset < base + count:
        records = [
            Record(
                offset + n,
                NOW_MS + offset - base + n,
                b"key-%012d" % rng.randrange(count // 2),
                value,
            )
            for n in range(each)
        ]
        writer.write([memoryview(pack(records, codec=load.codec))])
        offset += each
    writer.end_partition(offset)
    (entry,) = entries_of(writer.finish())
    return CompactSource(path, uuid, entry.start, entry.length, base, offset, entry.records)


def clean(
    fs: DiskFileSystem, folder: str, sources: list[CompactSource], dirty_from: int
) -> tuple[CompactResult, float, float]:
    """(result, CPU seconds, seconds) of the fastest of three jobs."""
    return min((_clean(fs, folder, sources, dirty_from) for _ in range(3)), key=lambda it: it[1])


def _clean(
    fs: DiskFileSystem, folder: str, sources: list[CompactSource], dirty_from: int
) -> tuple[CompactResult, float, float]:
    share = PartitionToClean(1, bytes(16), "bench", 0, dirty_from, 86_400_000, sources, state())
    uuid, rest = os.urandom(16), os.urandom(16)
    arguments = CompactArguments(
        1, NOW_MS, pack_items([share]),
        [SegmentOutput(os.path.join(folder, uuid.hex() + ".segment"), uuid)],
        SegmentOutput(os.path.join(folder, rest.hex() + ".segment"), rest),
        1 << 40, 128 << 20, 0.9,
    )  # fmt: skip
    cpu, wall = time.process_time(), time.perf_counter()
    result = run(fs, arguments, no_pace)
    return result, time.process_time() - cpu, time.perf_counter() - wall


def report(name: str, value_bytes: int, outcome: tuple[CompactResult, float, float]) -> None:
    result, cpu, wall = outcome
    (share,) = result.cleaned
    size = share.stats.read * (value_bytes + RECORD_BYTES) / 1e6
    stats = share.stats
    print(
        f"{name:<34} {size:7.0f} MB  {size / cpu:6.0f} MB/s of CPU  {size / wall:6.0f} MB/s  "
        f"{cpu / max(1, stats.read) * 1e6:5.2f} us a record, {stats.kept} of {stats.read} stay"
    )


def main() -> None:
    """Measure and print the table."""
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    fs = DiskFileSystem()
    with tempfile.TemporaryDirectory() as folder:
        plain = Load("1 KB records, all dirty", 1000, NONE, mebibytes)
        dirty = write_source(fs, folder, plain, 0, 1)
        outcome = clean(fs, folder, [dirty], 0)
        report(plain.name, 1000, outcome)
        made = outcome[0].made[0]
        (entry,) = entries_of(made)
        old = CompactSource(
            made.path, made.uuid, entry.start, entry.length, 0, entry.end_offset, entry.records
        )
        more = write_source(fs, folder, plain, old.end_offset, 2)
        report("1 KB records, half cleaned before", 1000,
               clean(fs, folder, [old, more], old.end_offset))  # fmt: skip
        for load in (
            Load("1 KB records in LZ4, all dirty", 1000, LZ4, mebibytes),
            Load("100-byte records, all dirty", 100, NONE, mebibytes // 4),
        ):
            source = write_source(fs, folder, load, 0, 3)
            report(load.name, load.value_bytes, clean(fs, folder, [source], 0))
    print(f"largest memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
