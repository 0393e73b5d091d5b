"""The cost of the worker's jobs: cutting, rewriting, scrubbing, in batches of 16 KB and of 200
bytes.

`python bench/micro/segments.py [MEGABYTES]` builds journals (64 partitions, their batches
interleaved; 200-byte batches once with a frame each, once with 16 in a frame), runs each job in
this process and prints megabytes of batches a second, next to the disk's rate of sequential writes
in the same run. Journals were just written, so they are read from memory, which is also the
cutter's usual case. Bounded: four times MEGABYTES (256) in a temporary folder (BENCH_DIR).
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from struct import Struct
from typing import Any

from crc32c import crc32c

from kafkawire.codec.batches import build
from kafkawire.codec.segment.format import PartitionState
from kafkawire.log.io.disk import DiskFileSystem
from kafkawire.log.io.worker_jobs import (
    CutArguments,
    Input,
    JournalFile,
    Keep,
    PartitionToCut,
    RewriteArguments,
    ScrubArguments,
    SegmentOutput,
    entries_of,
    find_job,
    no_pace,
    pack,
)
from kafkawire.log.journal import format as journal_format
from kafkawire.log.journal.file import journal_name
from kafkawire.log.journal.format import JournalHeader, pad_length
from kafkawire.log.journal.index_columns import IndexColumns, empty_columns
from kafkawire.log.journal.index_file import Extent, pack_index, write_index

PARTITIONS = 64
JOURNAL_BYTES = 128 << 20
RUN = 1 << 32
_PUT_BASE = Struct(">q").pack_into
FS = DiskFileSystem()


class Journals:
    """Journals built by hand: `per_frame` batches of one record of `value` bytes each."""

    def __init__(self, folder: str, megabytes: int, value: int, per_frame: int) -> None:
        self.folder = folder
        self.files: list[JournalFile] = []
        self.next = [0] * (PARTITIONS + 1)
        self.batch_bytes = self.batches = 0
        batch = build([(b"key", os.urandom(value))], timestamp_ms=1_700_000_000_000)
        count = max(1, megabytes * 1_000_000 // JOURNAL_BYTES)
        for number in range(1, count + 1):
            self._journal(number, batch, per_frame, megabytes * 1_000_000 // count)

    def _journal(self, number: int, batch: bytearray, per_frame: int, limit: int) -> None:
        data = bytearray(journal_format.write_header(JournalHeader(number, RUN, 0, 0)))
        rows: dict[int, IndexColumns] = {n: empty_columns() for n in range(1, PARTITIONS + 1)}
        partition = frames = 0
        while len(data) < limit:
            partition = partition % PARTITIONS + 1
            self._frame(data, number, partition, batch, per_frame, rows[partition])
            frames += 1
        path = os.path.join(self.folder, journal_name(number))
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        extent = Extent(len(data), RUN, 0, frames)
        write_index(FS, self.folder, number, pack_index(number, extent, rows))
        self.files.append(JournalFile(number, path, len(data)))

    def _frame(
        self, data: bytearray, journal: int, partition: int, batch: bytearray, count: int,
        rows: IndexColumns,
    ) -> None:  # fmt: skip
        log_position = journal << 32 | len(data)
        base = self.next[partition]
        length = len(batch) * count
        body = journal_format.pack_body(
            length, journal_format.KIND_BATCH, count, log_position, RUN, partition, 0
        )
        checksum = crc32c(body)
        start = len(data)
        data += bytes(journal_format.HEAD_BYTES)
        for n in range(count):
            _PUT_BASE(batch, 0, base + n)
            checksum = crc32c(memoryview(batch)[:21], checksum)
            data += batch
        data[start : start + 8] = journal_format.pack_front(journal_format.MAGIC, checksum)
        data[start + 8 : start + journal_format.HEAD_BYTES] = body
        data += bytes(pad_length(len(data)) - len(data))
        rows.base.append(base)
        rows.log_position.append(log_position + journal_format.HEAD_BYTES)
        rows.length.append(length)
        rows.count.append(count)
        rows.newest.append(1_700_000_000_000)
        self.next[partition] = base + count
        self.batches += count
        self.batch_bytes += length

    def cut(self, outputs: list[SegmentOutput]) -> CutArguments:
        """A job that cuts everything."""
        wanted = [
            PartitionToCut(n, bytes(16), "bench", n, 0, self.next[n], PartitionState())
            for n in range(1, PARTITIONS + 1)
        ]
        return CutArguments(1, 0, self.files, pack(wanted), outputs)


def warm(size: int) -> None:
    """Touch memory and release it, for the page cache of the next step: see bench.warm."""
    with mmap.mmap(-1, size) as memory:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1


def timed(run: Callable[[], Any], size: int) -> tuple[float, float, Any]:
    """Wall seconds, CPU seconds, result of a call that writes about `size` bytes."""
    warm(size + (64 << 20))
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def disk_rate(folder: str, megabytes: int) -> float:
    """Megabytes a second of one sequential write of 4 MiB pieces, synced as segments are."""
    piece = os.urandom(4 << 20)
    warm(megabytes * 1_000_000 + (64 << 20))
    path = os.path.join(folder, "disk")
    before = time.perf_counter()
    file = FS.open(path, create=True)
    count = megabytes * 1_000_000 // len(piece)
    for n in range(count):
        file.pwritev([piece], n * len(piece))
        if n % 4 == 3:
            file.sync()
    file.sync()
    file.close()
    rate = count * len(piece) / (time.perf_counter() - before) / 1e6
    os.remove(path)
    return rate


def report(what: str, size: int, batches: int, outcome: tuple[float, float, Any]) -> None:
    """One line of the report."""
    wall, cpu, _ = outcome
    print(
        f"  {what:<8} {size / wall / 1e6:7.0f} MB/s   {size / cpu / 1e6:7.0f} MB/s of CPU   "
        f"{cpu / batches * 1e6:6.2f} us of CPU a batch"
    )


def measure(folder: str, megabytes: int, value: int, per_frame: int) -> None:
    """Run all jobs over one kind of journals."""
    made = Journals(folder, megabytes, value, per_frame)
    size, batches = made.batch_bytes, made.batches
    print(f"batches of {size // batches} bytes, {per_frame} in a frame: {size / 1e6:.0f} MB")
    half = PARTITIONS // 2
    outputs = [
        SegmentOutput(os.path.join(folder, f"{n}.segment"), bytes([n]) * 16,
               list(range(n * half + 1, n * half + half + 1)))
        for n in range(2)
    ]  # fmt: skip
    outcome = timed(lambda: find_job("cut")(FS, made.cut(outputs), no_pace), size)
    result = outcome[2]
    assert not result.damaged
    report("cut", size, batches, outcome)
    for file in made.files:
        os.remove(file.path)
    inputs = [
        Input(part.path, part.uuid, pack(
            Keep(e.number, e.base_offset, e.end_offset, 0) for e in entries_of(part)))
        for part in result.made
    ]  # fmt: skip
    output = SegmentOutput(os.path.join(folder, "2.segment"), bytes([2]) * 16)
    arguments = RewriteArguments(1, 0, inputs, output)
    outcome = timed(lambda: find_job("rewrite")(FS, arguments, no_pace), size)
    report("rewrite", size, batches, outcome)
    scrubbing = ScrubArguments(output.path)
    outcome = timed(lambda: find_job("scrub")(FS, scrubbing, no_pace), 0)
    assert not outcome[2].problems, outcome[2].problems
    report("scrub", size, batches, outcome)
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))


def main() -> None:
    """Measure and print the report."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    where = os.environ.get("BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="micro-segments-", dir=where) as folder:
        print(f"sequential write: {disk_rate(folder, megabytes):.0f} MB/s")
        for value, per_frame in ((16_000, 1), (130, 1), (130, 16)):
            measure(folder, megabytes, value, per_frame)
        print(f"sequential write: {disk_rate(folder, megabytes):.0f} MB/s")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"most memory: {most >> 10} MiB, the journals made for it included")


if __name__ == "__main__":
    main()
